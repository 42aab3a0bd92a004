"""The step that lays a cover over the directory that becomes the root, and goes on in both together (ADR 0085).

Anybody may have written the directory's content. It is read through descriptors that never leave it, and no link in it
is followed: every later mount point is made in the cover, which hides what the directory has there. """

from __future__ import annotations

import errno
import os
import stat
import sys
from _collections_abc import Callable

from ringfence.kernel.mount import mounts
from ringfence.steps.state import SETUP

_IN_THE_WAY = "a link or a file in the root is in the way to it; show it at another place (shown_at)"
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def image_root(
    base: str, own: list[str], named: list[tuple[str, bool]], files: list[tuple[str, str]],
    given: list[tuple[str, int]], absent: list[str], flags: list[str], options: str,
) -> None:  # fmt: skip
    """``own``: directories of the sandbox's. ``named``: what else is mounted, and whether it is a directory. ``given``:
    directories that are made if the directory has nothing there. ``absent``: names that must not be seen."""
    _load_what_comes_later()
    cover = _Cover(base)
    try:
        for path in own:
            cover.folder(path)
        for path, is_folder in named:
            cover.refuse_links(path)
            cover.folder(path if is_folder else os.path.dirname(path))
            if not is_folder:
                cover.file(path, "")
        for path, text in files:
            cover.folder(os.path.dirname(path))
            cover.file(path, text)
        for path, mode in given:
            cover.give(path, mode)
        for path in absent:
            cover.white_out(path)
    finally:
        cover.close()
    mounts.mount("overlay", "root", ["nosuid", "nodev", *flags], f"{options},userxattr", source="overlay")
    os.close(SETUP.root)
    SETUP.root = os.open("root", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    load_nothing_more()


class _Cover:
    """The cover over the directory; it is empty, and nobody else reaches it."""

    def __init__(self, base: str) -> None:
        self._base = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        os.chmod("root", stat.S_IMODE(os.fstat(self._base).st_mode) & 0o777)

    def close(self) -> None:
        os.close(self._base)

    def _found(self, path: str) -> os.stat_result | None:
        """What the directory has at a path without links; None: nothing, or a link is in the way."""
        try:
            place = mounts.open_inside(self._base, path.strip("/") or ".")
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise
            return None
        try:
            return os.fstat(place)
        finally:
            os.close(place)

    def folder(self, path: str) -> None:
        """Make a directory with those above it, each with the mode that it has in the directory."""
        above = ""
        for name in filter(None, path.split("/")):
            above = f"{above}/{name}"
            try:
                os.mkdir(f"root{above}", 0o755)
            except FileExistsError:
                continue
            found = self._found(above)
            if found is not None and stat.S_ISDIR(found.st_mode):
                os.chmod(f"root{above}", stat.S_IMODE(found.st_mode) & 0o1777)

    def file(self, path: str, text: str) -> None:
        with open(os.open(f"root{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
            file.write(text.encode())

    def refuse_links(self, path: str) -> None:
        """A directory of ours in place of a link would hide everything that the link leads to."""
        above = os.path.dirname(path)
        while above != "/":
            try:
                os.close(mounts.open_inside(self._base, above.strip("/")))
                return
            except FileNotFoundError:
                above = os.path.dirname(above)
            except OSError as error:
                raise OSError(error.errno, _IN_THE_WAY, path) if error.errno in _NOT_THERE else error from error

    def give(self, path: str, mode: int) -> None:
        try:
            os.close(mounts.open_inside(self._base, path.strip("/")))
        except FileNotFoundError:
            self.folder(path)
            os.chmod(f"root{path}", mode)
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise

    def white_out(self, path: str) -> None:
        """Does nothing if its path is not there: then it can't be seen."""
        above, _, _ = path.rpartition("/")
        found = self._found(above)
        if found is None or not stat.S_ISDIR(found.st_mode):
            return
        try:
            self.folder(f"/{above}")
            os.mknod(f"root/{path}", stat.S_IFCHR)
        except (FileExistsError, NotADirectoryError):
            pass  # hidden twice, or with what it lies in


def _load_what_comes_later() -> None:
    for name in ("_socket", "fcntl", "resource"):
        try:
            __import__(name)
        except ImportError:
            pass  # then the step that needs it reports that, as without a root


def load_nothing_more() -> None:
    """From here on an imported module would come from the image, and run before the job is confined."""
    sys.path[:] = []
    sys.meta_path[:] = [each for each in sys.meta_path if getattr(each, "__name__", "") in _WITHOUT_FILES]


_WITHOUT_FILES = ("BuiltinImporter", "FrozenImporter")

STEPS: dict[str, Callable[..., None]] = {
    "image root": image_root,
}
