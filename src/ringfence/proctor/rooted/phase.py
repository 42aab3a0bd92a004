"""What every phase of a task with a root has in common: its root, where it begins, and what it works on."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ringfence.checkpoint.transaction import Transaction
from ringfence.model.ways.walk import real
from ringfence.proctor.task import Task

_LAYERS = "agent"


def fields(task: Task, environment: Mapping[str, str]) -> dict[str, object]:
    """The fields of a policy: the task's root, and its variables under those that are given."""
    if task.root is None:
        return {"environment": dict(environment)}
    inside = {**task.root.environment, **environment}
    return {"root": real(task.root.folder), "root_user": task.root.user, "environment": inside}


def start(task: Task) -> str | None:
    """Where it begins, as a path of the host; None: in its workspace."""
    if task.root is None:
        return None
    return real(task.root.folder) + task.root.workdir.rstrip("/")


def layers(task: Task, staged: str, place: str) -> Transaction:
    """The layers of set-up and agents, which go on where the one before ended."""
    folder = os.path.join(place, _LAYERS)
    if os.path.isdir(folder):
        return Transaction.open(folder)
    bases = [real(task.root.folder)] if task.root is not None else []
    return Transaction.create(folder, [*bases, *([staged] if staged else [])], kind="overlay")
