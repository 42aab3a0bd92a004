"""What is handed on while a sandbox is made: between the steps of its plan, and from inside to its leader."""

from __future__ import annotations

from collections.abc import Callable

from ringfence.linux import namespaces

LISTENER, TRIPWIRE, HOLDER = b"l", b"t", b"h"
"""What pid 1 and the job hand over to the leader."""


class Building:
    """What the steps of one sandbox hand on to each other: the cloned sources and the new root."""

    def __init__(self) -> None:
        self.trees: dict[str, int] = {}
        self.points: dict[int, tuple[str, bool]] = {}
        """What is mounted where, in the mould; see ``submounts``."""
        self.parts: dict[str, list[tuple[str, str, bool]]] = {}
        """Of a directory with mounts below it: (source in the building, path in it, whether it is a directory)."""
        self.taken_apart: set[str] = set()
        """Directories that consist of their parts alone."""
        self.covered: dict[str, list[str]] = {}
        """Workspace: where something is mounted in it."""
        self.identity = 0
        """The id on the host of a sandbox whose caller is root; 0: none was chosen yet."""
        self.idmaps: dict[tuple[int, int], int] = {}
        """User namespaces that map an owner on disk to the identity."""
        self.root = -1
        self.fuse = -1
        """The FUSE device, where hidden paths get tripwires."""
        self.status = -1
        """Where pid 1 tells how the job ended."""
        self.tally = -1
        """Where pid 1 and the holders of a box count what the dead wrote; -1: nobody asks."""
        self.wake_on_child: Callable[[], int] = lambda: -1
        """Makes a descriptor that becomes readable when a child ends; given by the leader."""
        self.await_leader: Callable[[], None] = lambda: None
        """Returns when the leader has mapped our ids and placed us in the groups; given by the leader."""
        self.serve_visits: Callable[[], None] = lambda: None
        """The loop of a box's pid 1; given by the leader."""
        self.hand_over: Callable[[bytes, list[int]], None] = lambda kind, descriptors: None
        """Gives descriptors to the leader, and says what they are; given by the leader."""

    def idmap(self, owner: tuple[int, int]) -> int:
        if owner not in self.idmaps:
            self.idmaps[owner] = namespaces.mapping_namespace(*owner, self.identity)
        return self.idmaps[owner]


BUILDING = Building()
