"""How a job's programs are looked up on this host, and who vouches for what is found.

The PATH, or a working directory, may be somebody else's: a link in there must not cause anything to be shown. All
decisions of one look use the same resolved paths (``model/ways``).
"""

from __future__ import annotations

import os

from ringfence.model.paths import within
from ringfence.model.record import made_by, record
from ringfence.model.ways import who
from ringfence.model.ways.walk import Look, absolute
from ringfence.sandbox import root as rootfs


@record
class Search:
    """How a job's programs are looked up."""

    path: str
    """The PATH, as the caller has it or as the policy or the job sets it."""
    here: str
    """The working directory, where relative names start."""
    hostile: tuple[str, ...] = ()
    """Directories whose content nobody vouches for, although they may be in the PATH."""
    apart: tuple[str, ...] = ()
    """Those of them that are never shown to a job as a whole."""
    look: Look = made_by(default_factory=Look)
    known_folders: list[str] = made_by(default_factory=list)
    """The directories of the PATH, once they were asked for."""

    def folders(self) -> list[str]:
        """The directories of the PATH, without empty entries, which would mean the working directory implicitly."""
        if not self.known_folders:
            named = filter(None, self.path.split(os.pathsep))
            self.known_folders.extend(absolute(os.path.join(self.here, folder)) for folder in named)
        return self.known_folders

    def which(self, name: str) -> str:
        """The program that a word means, as an absolute path; empty: there is none. Only a plain file counts: for a
        directory everything in it would be shown."""
        if "/" in name:
            path = absolute(os.path.join(self.here, name))
            return path if os.path.isfile(path) else ""
        for folder in self.folders():
            path = os.path.join(folder, name)
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return path
        return ""

    def real(self, path: str) -> str:
        return self.look.real(path)

    def vouches_for(self, path: str) -> bool:
        """Whether the caller or the administrator put it there, and not somebody whom the caller does not trust."""
        place = os.path.join(self.real(os.path.dirname(path)), os.path.basename(path))
        if any(within(place, folder) for folder in self.hostile) or self.look.way(path).link_of_others():
            return False
        return any(within(place, folder) for folder in (*rootfs.SYSTEM_FOLDERS, "/etc", *self.folders()))

    def trusts_text_of(self, path: str) -> bool:
        """Whether nobody but the caller and the administrator can have written the content of a file."""
        try:
            status, top = os.stat(path), os.stat("/")
        except OSError:
            return False
        return not self.look.way(path).is_open and not who.open_to(status, None, who.trusted(top))

    def passes_hostile(self, path: str) -> bool:
        """Whether the way to it leads through such a directory, where anybody may have made a link, or replaced it by
        now; or over a link that another user could have put there."""
        return self._in_hostile(path) or self.look.way(path).link_of_others() is not None

    def _in_hostile(self, path: str) -> bool:
        folders = [folder for folder in self.hostile if folder != "/"]  # which is never shown as a whole
        return self.look.way(path).passes(*folders)

    def settled(self, paths: list[str], own: list[str]) -> list[str]:
        """Paths that nobody but the caller can redirect. What lies in a hostile directory is shown with it.

        ``own``: what this interpreter runs on. Another user who can change that can run code as us anyway."""
        taken = [path for path in own if not self._in_hostile(path)]
        taken += [path for path in paths if not self.passes_hostile(path)]
        apart = [path for path in (*own, *paths) if any(within(self.real(path), folder) for folder in self.apart)]
        return list(dict.fromkeys((*taken, *apart)))

    def taken_once(self, path: str) -> tuple[str, bool]:
        """The path, with its directory as it is now if a hostile link leads there; and whether no hostile link does."""
        folder, name = os.path.split(path)
        if not self.passes_hostile(folder):
            return path, True
        place = self.real(folder)
        return os.path.join(place, name), any(within(place, each) for each in self.hostile)
