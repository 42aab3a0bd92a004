"""What a checkpoint holds, without going back to it: what had changed by then, and its files as a directory.

Reads the store and the bases, and nothing that a job can write meanwhile. Paths that the checkpoint's layer does not
have are as the base has them now.
"""

from __future__ import annotations

import os
import shutil

from ringfence.checkpoint import merge
from ringfence.checkpoint.apply import Source, Writer, new_name
from ringfence.checkpoint.conversion import converted
from ringfence.checkpoint.diff import differences
from ringfence.checkpoint.entry import Entry, Manifest, of_index
from ringfence.checkpoint.scan import OF_BASE
from ringfence.checkpoint.transaction import Transaction
from ringfence.checkpoint.tree import Tree
from ringfence.checkpoint.workspace import Workspace
from ringfence.errors import CheckpointError
from ringfence.model.record import replace

_PLAIN_MODE = 0o777
"""Nobody who looks into a copy should run anything in another user's name."""


def count_changed(transaction: Transaction, checkpoint_id: str) -> int:
    """How many paths had changed: counted as ``Transaction.changes`` counts them."""
    return sum(_changed(workspace, checkpoint_id) for _, workspace in transaction._numbered())


@converted
def _changed(workspace: Workspace, checkpoint_id: str) -> int:
    return len(differences.changes(workspace.store.load(checkpoint_id).layer, workspace._below))


def write_out(transaction: Transaction, checkpoint_id: str, folder: str) -> None:
    """Make a directory with the files as of a checkpoint, which nothing needs and anybody may remove.

    For one base, its tree; for several, each at its absolute path below the directory.
    """
    making = folder + new_name()
    try:
        for number, workspace in transaction._numbered():
            place = making if len(transaction.bases) == 1 else making + transaction.bases[number]
            os.makedirs(place, mode=0o700)
            _write(workspace, checkpoint_id, place)
        os.rename(making, folder)
    except BaseException as error:
        shutil.rmtree(making, ignore_errors=True)
        if isinstance(error, OSError):
            raise CheckpointError(f"{folder}: {error.strerror}") from error
        raise


@converted
def _write(workspace: Workspace, checkpoint_id: str, place: str) -> None:
    tree = Tree(place, resolve=False)
    try:
        target = _target(workspace, workspace.store.load(checkpoint_id).layer)
        Writer(tree, _contents(workspace), new_name(), special=False).apply({}, target)
    finally:
        tree.close()


def _target(workspace: Workspace, layer: Manifest) -> dict[str, Entry]:
    whole = merge.view(of_index(workspace._scan.below("", OF_BASE)), layer)
    return {path: replace(entry, mode=entry.mode & _PLAIN_MODE, attributes=(), opaque=False, copied=False)
            for path, entry in whole.items() if not merge.is_below(path, workspace.hidden)}  # fmt: skip


def _contents(workspace: Workspace) -> Source:
    def opened(path: str, entry: Entry) -> int:
        return workspace.store.open(entry.digest) if entry.digest else workspace.base.read(path)

    return opened
