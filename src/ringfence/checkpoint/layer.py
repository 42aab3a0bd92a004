"""What a layer over a base must be able to do, and what operations on one come to.

``OverlayLayer`` and ``Snapshot`` are the layers; ``Workspace`` works on either without knowing which. Plain data else.
"""

from __future__ import annotations

from _collections_abc import Collection, Mapping

from ringfence.checkpoint.commit.commit_plan import CommitPlan
from ringfence.checkpoint.entry import Entry, Index, Manifest, Seen
from ringfence.checkpoint.scan import Reading, Scan
from ringfence.model.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from ringfence.checkpoint.commit.conflicts import Settled

    class Layer(Protocol):
        """Where the changes lie. ``OverlayLayer`` and ``Snapshot``."""

        scan: Scan
        """How to read the tree that holds the current state."""

        def leave_out(self, paths: frozenset[str]) -> None: ...
        def read(self, how: Reading) -> dict[str, Entry]: ...
        def restore(self, layer: Manifest, temporary: str) -> int: ...
        def remember(self) -> None: ...
        def foreign(self, path: str, seen: Seen | None, entry: Entry | None) -> bool: ...
        def base_mode(self, path: str) -> int | None:
            """That of the base's directory when it was first looked at; None: not known, or there was none."""

        def begin_staging(self) -> None: ...
        def end_staging(self) -> None: ...
        def settle(
            self, rest: Manifest | None, commit: CommitPlan, written: Index, temporary: str, *, whole: bool,
            anew: Collection[str] = (),
        ) -> None: ...  # fmt: skip
        def close(self) -> None: ...


@record
class Rollback:
    """What a rollback did."""

    checkpoint_id: str
    partial: bool
    """Only some paths were restored."""
    files_restored: int
    state_data: Mapping[str, Any] | None
    """The data of the checkpoint. Absent after a partial rollback: they would not fit the rest."""


@record
class Planned:
    """A commit that has been looked over and not begun."""

    chosen: Manifest
    plan: CommitPlan
    rest: Manifest | None
    """What the layer holds afterwards. Absent: it stays as it is, since somebody works on it."""
    whole: bool
    temporary: str
    settled: Settled
    """What became of conflicts."""


@record
class Committed:
    """What a commit did, by absolute paths."""

    paths: tuple[str, ...]
    """What was carried over. If a socket, FIFO or device took something's place, its removal is."""
    left: tuple[str, ...]
    """Sockets, FIFOs and devices, which stay in the layer."""
    theirs: tuple[str, ...] = ()
    """Conflicts in which the base stays as somebody else made it; the layer's side is gone."""
    mine: tuple[str, ...] = ()
    """Conflicts in which what somebody else made was overwritten."""
    merged: tuple[str, ...] = ()
    """Conflicts in which both changes were carried over, line by line."""
