"""Agents that every kind of task knows by name: ``oracle`` runs the task's own solution, ``nop`` does nothing.

Their scores show whether a task is sound: the oracle gets 1, ``nop`` gets 0. Evidence has the name as the command, so
nobody takes the oracle's verdict for an agent's. No other agent is shown a solution.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ringfence.errors import UsageError
from ringfence.model.files import read_file
from ringfence.model.ways.walk import real
from ringfence.proctor.task import Task

NOP, ORACLE = "nop", "oracle"
NAMES = (ORACLE, NOP)
SOLUTION = "/solution"
"""Where the oracle has the directory of the task's solution."""
_MOST_BYTES = 16 << 20
_NO_PATHS: Mapping[str, str] = {}


def words_of(agent: str, task: Task) -> tuple[str, ...]:
    """The program and the arguments of a named agent; empty: it is not one of these, but a command."""
    if agent == NOP:
        return ("true",)
    if agent != ORACLE:
        return ()
    if task.solution:
        return (*_interpreter(task.solution), f"{SOLUTION}/{os.path.basename(task.solution)}")
    if _reference(task):
        return ("cp", "-R", f"{SOLUTION}/.", ".")
    raise UsageError(f"{task.folder or task.id} has no solution that the oracle could run",
                     hint="a task has one in solution/solve.sh, solution.sh or grader.reference")  # fmt: skip


def shown_to(agent: str, task: Task) -> Mapping[str, str]:
    """Which part of the task a named agent is shown, and where: the oracle sees its solution, with everything beside it
    unless that is the task itself."""
    if agent != ORACLE:
        return _NO_PATHS
    folder = os.path.dirname(task.solution)
    if not task.solution:
        return {_reference(task): SOLUTION} if _reference(task) else _NO_PATHS
    alone = not task.folder or real(folder) == real(task.folder)
    return {task.solution: f"{SOLUTION}/{os.path.basename(task.solution)}"} if alone else {folder: SOLUTION}


def _reference(task: Task) -> str:
    return task.grader.reference if task.grader else ""


def _interpreter(script: str) -> tuple[str, ...]:
    """The interpreter that the script's first line names; the script may not be executable."""
    first = read_file(script, _MOST_BYTES).partition(b"\n")[0].decode("utf-8", "replace").strip()
    return tuple(first[2:].split()) if first.startswith("#!") and first[2:].strip() else ("/bin/sh",)
