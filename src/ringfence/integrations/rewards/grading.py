"""``Rewards``: grades programs over a pool. The program and the right answers are never in one sandbox.

A program is called in a sandbox and gives values back, as data. Plain ``assert call == literal`` is compared out here.
Other tests run in a second sandbox, in which the program's functions are stand-ins that know the values from the first.
Unknown values are asked for in the first, and the tests run again. So a program can choose its values and nothing else:
not how they are compared, not how a test ends, not what is counted.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ringfence.engine.call_result import CallResult
from ringfence.engine.pool import Pool
from ringfence.errors import SandboxError, UsageError
from ringfence.integrations.rewards.asked import Call, Check, free_names, parsed, plain_checks
from ringfence.integrations.rewards.guests import answers, verdicts
from ringfence.model.limits import IsolationLevel
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import record
from ringfence.python_jobs.reply import ReplyKind

MOST_CALLS = 1000
MOST_ROUNDS = 200
_TIMES = 50
"""How many times the wall time of a sandbox all rounds together may take."""
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
_DEFAULT = {"isolation": IsolationLevel.STRICT, "wall_time_s": 10, "cpu_time_s": 10, "mem_bytes": 256 * 2**20}
_NOT_SENT = (ReplyKind.UNSENDABLE, ReplyKind.TOO_LARGE)


@record
class Reward:
    """What a program is worth, and why."""

    score: float
    """The share of tests that it passed."""
    passed: int
    total: int
    reasons: tuple[str, ...] = ()
    """For each failed test, in order: the test, and what was wrong. Parts of the text may be the program's."""
    status: str = "OK"
    """How its sandbox, or that of its tests, ended: a text of ``Status``."""

    @property
    def all_passed(self) -> bool:
        return self.total > 0 and self.passed == self.total


class Rewards:
    """A pool and what grades over it. Used from any thread."""

    def __init__(
        self, policy: SandboxPolicy | None = None, *, pool: Pool | None = None, at_once: int | None = None,
        warm: int = 2, preload: Sequence[str] = (), timeout: float | None = None,
    ) -> None:  # fmt: skip
        """``pool``: one of the caller's, who closes it; else one is made. ``timeout``: for each program."""
        self._own = pool is None
        if pool is None:
            pool = Pool(policy or SandboxPolicy.from_dict(_DEFAULT), at_once=at_once, warm=warm, preload=preload)
        elif policy is not None:
            raise UsageError("the pool already has a policy; give only one")
        self._pool = pool
        self._timeout = timeout

    def close(self) -> None:
        if self._own:
            self._pool.close()

    def __enter__(self) -> Rewards:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- grading

    def score(self, code: str, tests: str) -> Reward:
        """Score one program. UsageError where the tests can't be read: that is no mistake of the program."""
        return self.score_many([(code, tests)])[0]

    def score_many(self, pairs: Iterable[tuple[str, str]], *, progress: bool = False) -> list[Reward]:
        """Many, as many at a time as the pool runs, in order."""
        work = [(code, tests, plain_checks(parsed(tests))) for code, tests in pairs]
        plain = [(place, code, checks) for place, (code, _, checks) in enumerate(work) if checks]
        done: dict[int, Reward] = {}
        jobs = [(code, [_sent(check.call) for check in checks]) for _, code, checks in plain]
        ended = self._pool.try_map(_answers, jobs, progress=progress, timeout=self._timeout) if jobs else []
        for (place, code, checks), result in zip(plain, ended, strict=True):
            done[place] = self._compared(code, checks, result)
        rest = [place for place in range(len(work)) if place not in done]
        done |= dict(zip(rest, self._replay_many([work[place][:2] for place in rest]), strict=True))
        return [done[place] for place in range(len(work))]

    def reward_function(self, column: str = "tests", *, whole: bool = False) -> Callable[..., list[float]]:
        """A function for trainers that call ``f(completions=[…], tests=[…])`` and want a number for each.

        ``whole``: 1 for a program that passes all its tests, else 0.
        """

        def reward(completions: Sequence[object], **columns: Any) -> list[float]:
            if column not in columns:
                raise UsageError(f"there is no column {column!r} with tests", hint="name it: reward_function(column=…)")
            pairs = zip(map(code_of, completions), columns[column], strict=True)
            return [float(each.all_passed) if whole else each.score for each in self.score_many(pairs)]

        reward.__name__ = "ringfence_reward"
        return reward

    # ---- plain checks

    def _compared(self, code: str, checks: list[Check], result: CallResult) -> Reward:
        if not result.ok and result.reply.kind in _NOT_SENT and len(checks) > 1:
            told = [self._answer(code, check.call) for check in checks]  # one of the values spoils the others
        else:
            told = _told(result, len(checks))
        wrong = [_wrong(check, each) for check, each in zip(checks, told, strict=True)]
        lines = [f"{check.line}: {why}" if why else "" for check, why in zip(checks, wrong, strict=True)]
        return _reward(lines, result)

    def _answer(self, code: str, call: Call) -> tuple[str, ...] | tuple[str, object]:
        (result,) = self._pool.try_map(_answers, [(code, [_sent(call)])], timeout=self._timeout)
        return _told(result, 1)[0]

    # ---- other tests

    def _replay_many(self, pairs: list[tuple[str, str]]) -> list[Reward]:
        if not pairs:
            return []
        from ringfence.engine.mapping import map_in_order

        return map_in_order(lambda pair: self._replay(*pair), pairs, 4, progress=False)  # type: ignore[misc]

    def _replay(self, code: str, tests: str) -> Reward:
        names = list(free_names(parsed(tests)))
        known: dict[str, tuple[object, object]] = {}
        ends: list[tuple[str, str]] = []
        until = time.monotonic() + _TIMES * (self._timeout or self._pool.policy.wall_time_s)
        for _ in range(MOST_ROUNDS):
            (judged,) = self._pool.try_map(_verdicts, [(tests, names, list(known.values()))], timeout=self._timeout)
            try:
                ends, missing = _judged(judged)
                if not missing:
                    return _reward([f"{label}: {why}" if why else "" for label, why in ends], None)
                problem = self._learn(code, missing, known)
            except UsageError as error:
                if not known:  # nothing of the program was in it
                    raise
                return _failed(ends, str(error), judged)
            if problem is not None:
                return _reward([f"{label}: {problem.problem}" for label, _ in ends], problem)
            if time.monotonic() > until:
                break
        again = f"with its values they call it more than {MOST_ROUNDS} times in a row, or for too long"
        return _failed(ends, again, None)

    def _learn(self, code: str, missing: list[Any], known: dict[str, tuple[object, object]]) -> CallResult | None:
        """Ask the program; return how it ended, if that was not well."""
        asked = {key: call for call in missing if (key := _key(call)) not in known}
        if len(known) + len(asked) > MOST_CALLS:
            raise UsageError(f"the tests call the program more than {MOST_CALLS} times")
        (result,) = self._pool.try_map(_answers, [(code, list(asked.values()))], timeout=self._timeout)
        if result.ok or (result.reply.kind in _NOT_SENT and len(asked) > 1):
            told = _told(result, len(asked)) if result.ok else [
                self._answer(code, Call(name=name, args=tuple(args), kwargs=tuple(kwargs.items())))
                for name, args, kwargs in asked.values()]  # fmt: skip
            known |= {key: (call, each) for (key, call), each in zip(asked.items(), told, strict=True)}
            return None
        return result


def _answers(job: tuple[str, list[Any]]) -> Any:
    return answers(*job)


def _verdicts(job: tuple[str, list[str], list[Any]]) -> Any:
    return verdicts(*job)


def _sent(call: Call) -> tuple[str, tuple[object, ...], dict[str, object]]:
    return call.name, call.args, dict(call.kwargs)


def _told(result: CallResult, count: int) -> list[tuple[Any, ...]]:
    """What a program answered to each call; it is untrusted, so every part is checked."""
    value = result.value if result.ok else None
    if type(value) is list and len(value) == count and all(map(_is_told, value)):
        return value
    problem = result.problem or "it sent something other than answers"
    return [("raised", "", problem)] * count


def _is_told(each: object) -> bool:
    if type(each) is not tuple or not each:
        return False
    return (each[0] == "value" and len(each) == 2) or (
        each[0] == "raised" and len(each) == 3 and type(each[1]) is str and type(each[2]) is str)  # fmt: skip


def _wrong(check: Check, told: tuple[Any, ...]) -> str:
    if told[0] == "raised":
        return f"{told[1]}: {told[2]}".strip(": ") or "it raised"
    return "" if _equal(told[1], check.right) else f"the result was {_short(told[1])}"


def _equal(value: object, right: object) -> bool:
    """As ``==`` of plain data; a value that is deep or long is no error."""
    try:
        return bool(value == right) and not (isinstance(value, float) and math.isnan(value))
    except RecursionError:
        return False


def _short(value: object) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python writes no number of some thousand digits
        return "something that can't be written out"
    return text if len(text) <= 100 else f"{text[:100]}…"


def _judged(result: CallResult) -> tuple[list[tuple[str, str]], list[Any]]:
    """The result of the tests' own sandbox; an error there is a mistake in the tests."""
    value = result.value if result.ok else None
    if not isinstance(value, Mapping) or not value.get("ends"):
        raise UsageError(f"the tests can't be run: {result.problem or 'there is no assert and no test in them'}",
                         hint="they run apart from the program, and may use what the policy shows")  # fmt: skip
    return value["ends"], value["missing"]


def _key(call: object) -> str:
    """Arguments may come from the program, such as a number that Python refuses to write out."""
    try:
        return repr(call)
    except (ValueError, RecursionError):
        raise UsageError("the tests call the program with something that can't be written out") from None


def _failed(ends: list[tuple[str, str]], why: str, judged: CallResult | None) -> Reward:
    """For tests that ran before the program's values came: an error with these values is the program's failure."""
    return _reward([f"{label}: {why}" for label, _ in ends] or [why], judged)


def _reward(reasons: list[str], result: CallResult | None) -> Reward:
    failed = tuple(reason for reason in reasons if reason)
    passed, total = len(reasons) - len(failed), len(reasons)
    status = str(result.status) if result is not None and not result.outcome.ok else "OK"
    return Reward(score=passed / total if total else 0.0, passed=passed, total=total, reasons=failed, status=status)


def code_of(completion: object) -> str:
    """The program in what a model wrote: the last block of code, else all of it. Takes a text or a list of messages."""
    if isinstance(completion, str):
        blocks = _FENCE.findall(completion)
        return blocks[-1] if blocks else completion
    if isinstance(completion, Sequence) and completion and isinstance(completion[-1], Mapping):
        return code_of(str(completion[-1].get("content", "")))
    raise SandboxError(f"{type(completion).__name__} is not a completion", hint="give a string, or a list of messages")
