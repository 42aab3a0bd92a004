"""A transaction out of a layer that a box made for itself.

On the same file system the layer is moved, which costs nothing; else it is written anew, which costs what changed.
Nobody may work on the layer any more.
"""

from __future__ import annotations

import errno
import os

from ringfence.checkpoint import layout
from ringfence.checkpoint.layout import OVERLAY, Layout
from ringfence.checkpoint.lock import hold
from ringfence.checkpoint.overlay import OverlayLayer
from ringfence.checkpoint.scan import Reading
from ringfence.checkpoint.transaction import Transaction
from ringfence.checkpoint.workspace import Workspace, open_overlay
from ringfence.errors import CheckpointError


def adopt(workspace: Workspace, folder: str, layer: str) -> Transaction:
    """``layer``: the directory of its ``upper`` and ``work``. The workspace is of no use afterwards."""
    base = workspace.base.path
    hidden = [os.path.join(base, path) for path in workspace.hidden]
    plan = layout.make(folder, [base], OVERLAY, hidden)
    lock = hold(plan.tree)
    try:
        _take(workspace, layer, plan)
        plan.save()
    except BaseException as error:
        lock.release()
        plan.tree.close()
        if isinstance(error, OSError):
            raise CheckpointError(f"{plan.folder}: {error.strerror}") from error
        raise
    return Transaction(plan, lock)


def _take(workspace: Workspace, layer: str, plan: Layout) -> None:
    try:
        workspace.changes(noting=True)
        os.rename(layer, plan.layer(0))
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy(workspace, plan)
    else:
        os.rename(workspace.store.path, plan.store(0))
        store = plan.open_store(0)
        try:
            store.take_over(workspace.store)
        finally:
            store.close()


def _copy(workspace: Workspace, plan: Layout) -> None:
    """Through a store, as a rollback writes a layer; changes in the base since then are still reported."""
    assert isinstance(workspace.layer, OverlayLayer)
    store = plan.open_store(0)
    upper = f"{plan.layer(0)}/upper"
    for path in (upper, f"{plan.layer(0)}/work"):
        os.mkdir(path, 0o755)
    if os.geteuid() == 0:
        for path in (plan.layer(0), upper, f"{plan.layer(0)}/work"):
            os.chown(path, *workspace.layer.live.owner)
    held = workspace.layer.read(Reading(store.put, store.has))
    workspace.layer.hand_on(store)
    made = open_overlay(upper, plan.bases[0], plan.open_store(0), hidden=plan.hidden)
    try:
        made.go_to(held)
        made.changes(noting=True)
        made.sweep()
    finally:
        made.close()
    store.close()
