"""Executes a table in place of the steps that it was made from, and splits pid 1 from the job."""

from __future__ import annotations

import errno
import marshal
import os
from _collections_abc import Mapping, Sequence

from ringfence.kernel.calls import native
from ringfence.kernel.calls.execute import CallFailed, execute
from ringfence.kernel.calls.table import CALL, HEAD, OPERATIONS
from ringfence.steps import pid1
from ringfence.steps.state import SETUP
from ringfence.steps.step import StepFailed

TREE = "tree "
"""What a slot begins with that has the descriptor of a cloned source."""
_NO_OVERLAY = "no overlay can be laid over its file system, and nothing is shown without; copy what is needed"


def execute_table(
    table: bytes, slots: dict[str, int], labels: bytes, left_open: list[str], split: int
) -> None:
    """``labels``: packed, the steps by the number of their first calls. ``left_open``: the sources that are cloned here
    and attached later. ``split``: the call that splits the two."""
    trees = {f"{TREE}{name}": tree for name, tree in SETUP.trees.items()}
    values = given(slots, {**_descriptors(), **trees})
    by_python = split >= 0 and (SETUP.init < 0 or native.library() is None)
    try:
        found = _split(table, values, split) if split >= 0 and not by_python else execute(table, values, _fork)
    except CallFailed as failed:
        raise explained(table, labels, failed) from failed
    keep(slots, left_open, found)


def given(slots: Mapping[str, int], own: Mapping[str, int]) -> dict[int, int]:
    """What is in the slots of a table at its beginning; ``own``: what this sandbox has of its own."""
    known = {**SETUP.thread, **own}
    return {slot: known[name] for name, slot in slots.items() if name in known}


def keep(slots: Mapping[str, int], left_open: Sequence[str], found: memoryview[int]) -> None:
    """Note for later steps what a table has left behind."""
    for name in slots:
        if name.startswith(TREE):
            SETUP.trees.pop(name[len(TREE) :], None)
    for name in left_open:
        SETUP.trees[name] = found[slots[f"{TREE}{name}"]]
    if "root" in slots:
        SETUP.root = found[slots["root"]]


def _descriptors() -> dict[str, int]:
    return {"root": SETUP.root, "door": SETUP.door, "status": SETUP.status, "tally": SETUP.tally,
            "init": SETUP.init}  # fmt: skip


def _fork() -> None:
    """Without the native part pid 1 stays in Python."""
    import _signal as signal  # type: ignore[import-not-found]

    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    pid1.run_as_init()


def _split(table: bytes, values: dict[int, int], split: int) -> memoryview[int]:
    """Tell the interpreter of a fork: the process that returns from the split is the job."""
    before, after, parent = native.fork_hooks()
    before()
    try:
        found = execute(table, values)
    except CallFailed as failed:
        (after if failed.number > split else parent)()
        raise
    after()
    return found


def explained(table: bytes | bytearray, labels: bytes, failed: CallFailed) -> StepFailed:
    """The step that the call belongs to, as what has failed."""
    step = next(label for first, label in reversed(marshal.loads(labels)) if first <= failed.number)
    name = _name(CALL.unpack_from(table, HEAD.size + failed.number * CALL.size)[6])
    if step.startswith("show /") and failed.errno == errno.EINVAL:
        return StepFailed(step, OSError(failed.errno, _NO_OVERLAY))
    return StepFailed(step, OSError(failed.errno, f"{name}: {os.strerror(failed.errno)}"))


def _name(number: int) -> str:
    if number < 0:
        return next((name for name, each in OPERATIONS.items() if each == number), "operation")
    from ringfence.kernel import syscall_numbers

    return syscall_numbers.name_of(number, syscall_numbers.architecture())
