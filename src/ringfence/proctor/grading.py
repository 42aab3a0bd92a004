"""``grade``: picks the grader of a task, and defines what every grading returns.

A submission that can't be graded fails by its own fault. The verdict comes from the side that the code under test can't
write to; see ``script_grader`` and ``pytest_grader``, which are loaded when a task needs them.
"""

from __future__ import annotations

import sys
from _collections_abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from ringfence.errors import UsageError
from ringfence.model.outcome import Outcome
from ringfence.model.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    from ringfence.model.events import OnEvent
    from ringfence.proctor.submission import Submission
    from ringfence.proctor.task import Task

    _Item = TypeVar("_Item")

# By name: they make gradings, so they import this module.
_SCRIPT, _PYTEST = "ringfence.proctor.script_grader", "ringfence.proctor.pytest_grader"
_SWEBENCH = "ringfence.proctor.foreign.swebench_grader"
MAX_CHARS = 8 << 20
"""Of the details, escaped. The code under test influences them, and no verifier takes a bundle of more than 64 MiB: a
run with a larger bundle would have no verdict."""


@record
class Grading:
    """The result of a grader."""

    passed: bool
    reward: float | None = None
    """Absent: the task has none."""
    forged: str = ""
    """Why the grading is a forgery; empty: it is not. A forged one is not passed, and its reward is 0."""
    reason: str = ""
    """One sentence for people."""
    outcome: Outcome | None = None
    """How the grader's sandbox ended; absent: none was started."""
    details: Mapping[str, object] = MappingProxyType({})
    """Plain data for ``grading.json``."""

    def __post_init__(self) -> None:
        if self.forged and (self.passed or self.reward):
            raise ValueError("a run whose grading was forged can't pass or have a reward")

    def plain(self) -> dict[str, object]:
        """What ``grading.json`` holds: the verdict, its reasons and the details, without the logs."""
        told: dict[str, object] = {"passed": self.passed, "forged": self.forged, "reason": self.reason}
        if self.reward is not None:
            told["reward"] = self.reward
        if self.outcome is not None:
            told["outcome"] = {"status": str(self.outcome.status), "rc": self.outcome.rc, "reason": self.outcome.reason,
                               "limits_hit": list(self.outcome.limits_hit)}  # fmt: skip
        room = [MAX_CHARS]
        details = _fitting(self.details, room)
        return {**told, "details": details, **({"cut": True} if room[0] < 0 else {})}


def _fitting(value: object, room: list[int]) -> object:
    """As much of the plain data as fits, in characters of JSON; the rest is left out."""
    room[0] -= len(ascii(value)) + 2 if isinstance(value, str) else 4
    if isinstance(value, str):
        return value if room[0] >= 0 else ""
    if isinstance(value, Mapping):
        found = ((str(_fitting(name, room)), _fitting(item, room)) for name, item in _until_full(value.items(), room))
        return dict(found)
    return [_fitting(item, room) for item in _until_full(value, room)] if isinstance(value, list | tuple) else value


def _until_full(items: Iterable[_Item], room: list[int]) -> Iterator[_Item]:
    for item in items:
        if room[0] < 0:
            return
        yield item


def grade(
    task: Task, submission: Submission, *, on_event: OnEvent | None = None, prepared: object | None = None
) -> Grading:
    """Grade what an agent left. ``prepared``: what ``pytest_grader.prepare`` made before the agent ran."""
    if task.grader is None:
        raise UsageError(f"task {task.id} has no grader", hint="add a grade.sh to the task")
    if submission.problem:
        has_reward = task.grader.reward_file or task.grader.instance is not None
        return Grading(passed=False, reward=0.0 if has_reward else None, reason=submission.problem,
                       details=described(submission))  # fmt: skip
    if not task.grader.pytest and task.grader.instance is None:
        return _loaded(_SCRIPT)(task, submission, on_event=on_event)
    if prepared is None:
        raise UsageError(f"task {task.id} is graded by pytest, but prepare() was not called",
                         hint="call pytest_grader.prepare before the agent runs, and pass its result")  # fmt: skip
    if task.grader.instance is not None:
        return _loaded(_SWEBENCH)(task, prepared, submission, on_event=on_event)
    graded = _loaded(_PYTEST)(task, prepared, submission, on_event=on_event)
    return replace(graded, details={**graded.details, **described(submission)})


def _loaded(module: str) -> Callable[..., Grading]:
    __import__(module)
    found: Callable[..., Grading] = sys.modules[module].grade
    return found


def described(submission: Submission) -> dict[str, object]:
    """What was left out of the submission, and which of its files configure test runs, as plain data."""
    return {
        "dropped": [{"path": each.path, "reason": each.reason} for each in submission.dropped],
        "forbidden_writes": list(submission.forbidden), "test_settings": list(submission.settings),
    }
