"""Before a transaction is removed because somebody says so: what was broken off in it is carried to its end, if it is
ours, for its journal goes too.

Removes nothing itself.
"""

from __future__ import annotations

from ringfence.checkpoint import layout
from ringfence.checkpoint.transaction import Transaction
from ringfence.errors import BusyError, CheckpointError, ConflictError


def finish(folder: str) -> None:
    """Leave no base half changed, where that can be helped: not by a journal of somebody else's, nor where the base is
    gone. BusyError where somebody has it open."""
    try:
        if is_begun(folder):
            Transaction.open(folder).close()
    except ConflictError:
        return  # it is finished, and somebody else's was left
    except BusyError:
        raise
    except CheckpointError:
        return


def is_begun(folder: str) -> bool:
    """Whether something was broken off in it, whoever began it."""
    place = layout.opened(folder)
    try:
        return layout.is_begun(place)
    finally:
        place.tree.close()
