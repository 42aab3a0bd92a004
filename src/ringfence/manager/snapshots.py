"""Checkpoints as directories that can be opened: made on request, in ``snapshots`` of the sandbox's directory."""

from __future__ import annotations

import os
from pathlib import Path

from ringfence.checkpoint import past
from ringfence.checkpoint.transaction import Transaction
from ringfence.errors import CheckpointError, UsageError
from ringfence.roles.removal import remove_tree

FOLDER = "snapshots"


def place(folder: Path, checkpoint_id: str) -> Path:
    """Where the directory of a checkpoint is."""
    return folder / FOLDER / checkpoint_id


def make(transaction: Transaction, checkpoint_id: str, path: Path) -> None:
    """Make it, unless it exists; UsageError if the checkpoint is gone."""
    if all(each.checkpoint_id != checkpoint_id for each in transaction.checkpoints()):
        raise UsageError(f"the checkpoint {checkpoint_id} no longer exists: a commit or the limit on "
                         "checkpoints removed it")  # fmt: skip
    if not path.is_dir():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        past.write_out(transaction, checkpoint_id, os.fspath(path))


def sweep(transaction: Transaction, *, all_of_them: bool = False) -> None:
    """Remove directories whose checkpoint is gone, or all: they can be made again."""
    top = os.path.join(transaction.folder, FOLDER)
    if not os.path.isdir(top):
        return
    kept = set() if all_of_them else {each.checkpoint_id for each in transaction.checkpoints()}
    for name in set(os.listdir(top)) - kept:
        try:
            remove_tree(os.path.join(top, name))
        except OSError as error:
            raise CheckpointError(f"{top}/{name} could not be removed ({error.strerror})") from error
