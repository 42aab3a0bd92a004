"""How a transaction's directory comes into our hands: made or opened by one descriptor, known to be ours, and locked.

Opens no layer, and carries nothing out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from ringfence.checkpoint import layout
from ringfence.checkpoint.layout import Layout
from ringfence.checkpoint.lock import Lock, hold
from ringfence.checkpoint.tree import Tree
from ringfence.errors import CheckpointError

TYPE_CHECKING = False
if TYPE_CHECKING:
    Path = str | os.PathLike[str]


def made(folder: Path, bases: Iterable[Path], kind: str, hidden: Iterable[str], root: str) -> tuple[Layout, Lock]:
    """A new one."""
    plan = layout.make(os.fspath(folder), [os.fspath(base) for base in bases], kind, hidden, root)
    lock = _held(plan.tree)
    try:
        plan.save()
    except BaseException:
        let_go(plan, lock)
        raise
    return plan, lock


def opened(folder: Path | Tree, *, finish: bool) -> tuple[Layout, Lock]:
    """One that is there. Not ``finish``: CheckpointError where an operation was broken off in it."""
    place = layout.documents_of(folder) if isinstance(folder, Tree) else layout.opened(os.fspath(folder))
    try:
        plan = layout.load(place)  # nothing that is not ours is locked
    except BaseException:
        place.tree.close()
        raise
    lock = _held(place.tree)
    try:
        plan = layout.load(place)  # read again, now that nobody else writes it
        layout.hide_from_guests(plan)
        if not finish and plan.is_begun():
            hint = "open the sandbox, which completes it: ringfence diff ID, or attach(id)"
            raise CheckpointError(f"an operation was interrupted in {plan.folder}", hint=hint)
        _end_turn(plan)  # left by a holder that was killed and had nothing to finish
    except BaseException:
        let_go(plan, lock)
        raise
    return plan, lock


def _held(tree: Tree) -> Lock:
    try:
        return hold(tree)
    except BaseException:
        tree.close()
        raise


def let_go(plan: Layout, lock: Lock) -> None:
    """From now on no journal of this holder counts, unless one is left to be finished."""
    if lock.is_held:
        try:
            _end_turn(plan)
        finally:
            lock.release()
    plan.tree.close()


def _end_turn(plan: Layout) -> None:
    if not plan.is_begun():
        plan.documents.seal.end()
