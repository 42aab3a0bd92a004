"""Before a transaction is removed on request: finish an operation that was broken off in it, if it is ours, since its
journal goes too.

Removes nothing itself.
"""

from __future__ import annotations

from ringfence.checkpoint import layout
from ringfence.checkpoint.transaction import Transaction
from ringfence.errors import BusyError, CheckpointError, ConflictError


def finish(folder: str) -> bool:
    """Leave no base half changed, if possible: not if the journal is somebody else's, nor if the base is gone.
    BusyError if somebody has it open. Return whether something was finished."""
    try:
        if not is_begun(folder):
            return False
        Transaction.open(folder).close()
    except ConflictError:
        return True  # and somebody else's was left
    except BusyError:
        raise
    except CheckpointError:
        return False
    return True


def is_begun(folder: str) -> bool:
    """Whether an operation was broken off in it, no matter who began it."""
    place = layout.opened(folder)
    try:
        return layout.is_begun(place)
    finally:
        place.tree.close()
