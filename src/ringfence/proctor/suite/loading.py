"""From an entry to its task. Adapters of public benchmarks are loaded when an entry is theirs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from ringfence.errors import UsageError
from ringfence.model.record import replace
from ringfence.proctor.suite.entry import Entry
from ringfence.proctor.task import Task
from ringfence.proctor.task_policy import TaskPolicy


def load(entry: Entry, place: str = "") -> Task:
    """Return it; UsageError or UnavailableError says what is wrong with it, by file and key. ``place``: an empty
    private directory for what is written for the run; absent: one that goes with this process."""
    if entry.kind not in _LOADERS:
        raise UsageError(f"{entry.kind!r} is not a kind of task", hint=f"there are {', '.join(_LOADERS)}")
    return _LOADERS[entry.kind](entry, place)


def _generic(entry: Entry, place: str) -> Task:
    if entry.options.get("rootfs") == "image":
        raise UsageError(f"{entry.path} names no image", hint="omit --image: its root is the host's")
    task = Task.from_folder(entry.path, policy=entry.options.get("policy"))
    return replace(task, policy=replace(task.policy, env_allow=())) if entry.options.get("no-env") else task


def _terminal(entry: Entry, place: str) -> Task:
    from ringfence.proctor.foreign import terminal_tasks

    options = entry.options
    return terminal_tasks.load(
        entry.path, rootfs=options.get("rootfs", ""), allow=options.get("allow", "").split(),
        environment={name: os.environ[name] for name in options.get("env", "").split() if name in os.environ},
        build_network=options.get("build-network", ""),
    )  # fmt: skip


def _swebench(entry: Entry, place: str) -> Task:
    from ringfence.proctor.foreign import instance, swebench

    options = entry.options
    row = instance.read_instance(entry.path, entry.id)
    policy = TaskPolicy.from_yaml(options["policy"]) if "policy" in options else None
    return swebench.load(
        row, options["repo"], rootfs=options.get("rootfs", ""), grade=options.get("grade") == "yes", place=place,
        python=options.get("python", ""), policy=policy,
    )  # fmt: skip


_LOADERS: Mapping[str, Callable[[Entry, str], Task]] = {
    "generic": _generic, "harbor": _terminal, "terminal-bench": _terminal, "swebench": _swebench,
}  # fmt: skip
