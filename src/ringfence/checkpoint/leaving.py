"""Before a transaction is removed: what was broken off in it is carried to its end, for its journal goes too.

Removes nothing itself.
"""

from __future__ import annotations

import glob
import os

from ringfence.checkpoint.transaction import Transaction
from ringfence.errors import BusyError, CheckpointError, ConflictError


def finish(folder: str, *, if_possible: bool = False) -> None:
    """Leave no base half changed. ``if_possible``: it is to go all the same where that can't be done, as where the
    base is gone; BusyError where somebody else has it."""
    if not _is_begun(folder):
        return
    try:
        Transaction.open(folder).close()
    except ConflictError:
        return  # it is finished, and somebody else's was left
    except BusyError:
        raise
    except CheckpointError:
        if not if_possible:
            raise


def _is_begun(folder: str) -> bool:
    own, others = os.path.join(folder, "journal.json"), os.path.join(glob.escape(folder), "checkpoints/*/journal.json")
    return os.path.exists(own) or bool(glob.glob(others))
