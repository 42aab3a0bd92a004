"""What is handed on while a sandbox is made: between the steps of its plan, and from inside to its leader."""

from __future__ import annotations

from _collections_abc import Iterable, Sequence

from ringfence.kernel.mount import namespaces, submounts
from ringfence.transport import passing

LISTENER, TRIPWIRE, REAPER, UNHEARD, SOCKETS, LAST_SOCKET = b"l", b"t", b"h", b"u", b"s", b"e"
COUNTS = b"c"
"""What a job hands over to its reaper: its io file."""
"""What pid 1 and the job hand over to the leader. ``UNHEARD``: there is no listener. ``SOCKETS``: sockets that the
gateway accepts on, which the leader passes on to it; ``LAST_SOCKET``: there are no more."""


class SetupState:
    """What the steps of one sandbox hand on to each other: the cloned sources and the new root."""

    network = -1
    """A network namespace that no other sandbox uses, and in which nothing can be left; -1: a new one is made."""
    identity = 0
    """The id on the host of a sandbox whose caller is root; 0: none was chosen yet."""
    root = -1
    fuse = -1
    """The FUSE device, where hidden paths get tripwires."""
    status = -1
    """Where pid 1 tells how the job ended."""
    tally = -1
    """Where pid 1 and the reapers of a box count what the dead wrote; -1: nobody asks."""
    door = -1
    """The socket to the leader."""
    counts = -1
    """The socket to the reaper of a visit whose operations are counted."""
    certificates = b""
    """The authorities that this one sandbox trusts, as PEM; empty: those that it is shown."""
    init = -1
    """The program that pid 1 becomes; -1: it stays in Python."""

    def __init__(self) -> None:
        self.trees: dict[str, int] = {}
        self.points: dict[int, tuple[str, bool]] = {}
        """What is mounted where, in the zygote; see ``submounts``."""
        self.parts: dict[str, list[tuple[str, str, bool]]] = {}
        """For a directory with mounts below it: (source in the building, path in it, whether it is a directory)."""
        self.taken_apart: set[str] = set()
        """Directories that consist of their parts alone."""
        self.covered: dict[str, list[str]] = {}
        """Workspace → the mount points in it."""
        self.idmaps: dict[tuple[int, int], int] = {}
        """User namespaces that map an owner on disk to the identity."""
        self._kept_idmaps: dict[int, int] = {}
        """Identity → user namespace for the owner of a zygote; made once, used by one sandbox after the other."""
        self.thread: dict[str, int] = {}
        """What tables need to know of the one thread of this process and of its memory; see ``kernel.calls.thread``."""

    def kept_open(self) -> list[int]:
        """Return the descriptors that pid 1 needs at their present numbers."""
        return [*self.trees.values(), *((self.init,) if self.init >= 0 else ())]

    def is_plain(self, workspaces: Iterable[str]) -> bool:
        """Whether nothing is mounted below what is shown, nor in the workspaces."""
        if self.parts or self.taken_apart:
            return False
        return not any(submounts.below(path, self.points) for path in workspaces)

    def hand_over(self, kind: bytes, descriptors: list[int]) -> None:
        """Give descriptors to the leader, and say what they are."""
        passing.send(self.door, kind, descriptors)

    def identify(self, identity: int, owner: Sequence[int]) -> None:
        """Set the next sandbox's id on the host; 0: not chosen yet. ``owner``: whose files it works on, or empty."""
        self.identity = identity
        self.idmaps.clear()
        if identity and owner:
            if identity not in self._kept_idmaps:
                self._kept_idmaps[identity] = namespaces.mapping_namespace(owner[0], owner[1], identity)
            self.idmaps[owner[0], owner[1]] = self._kept_idmaps[identity]

    def idmap(self, owner: tuple[int, int]) -> int:
        if owner not in self.idmaps:
            self.idmaps[owner] = namespaces.mapping_namespace(*owner, self.identity)
        return self.idmaps[owner]


SETUP = SetupState()
