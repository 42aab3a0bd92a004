"""Grades with pytest: ``prepare`` before the agent runs, ``grade`` after it.

``prepare`` gives tests twins that contradict them (``counter_tests``) and tries both in a sandbox, on the reference
solution or on the untouched workspace. ``grade`` runs the same files on the submission; ``pytest_results`` says what
is believed.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from random import Random, SystemRandom
from types import MappingProxyType

from ringfence.errors import SupervisionError, UsageError
from ringfence.model.outcome import Outcome, Status
from ringfence.model.record import record
from ringfence.model.system_text import escape_controls as plain
from ringfence.proctor import pytest_results as results
from ringfence.proctor.counter_tests import Mixed, TestFile, Twin, halved
from ringfence.proctor.grading import Grading
from ringfence.proctor.pytest_results import Expected, Read, Told
from ringfence.proctor.pytest_sandbox import Imports, grader_of, imports_of, run_worker, with_reference

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.model.events import OnEvent
    from ringfence.proctor.submission import Submission
    from ringfence.proctor.task import Task

_FEW = 24
"""With this many pairs or fewer, no run sees a test together with its twin: guessing them all would be worth a try.
With more pairs that costs more than it gains."""
_NAMED = 5
_MOST_MESSAGES = 50
_TAIL_BYTES = 600


@record
class PreparedTests:
    """What was fixed before the agent ran."""

    texts: Mapping[str, str]
    """The test files as they are run, by their path in the oracle."""
    other_texts: Mapping[str, str] = MappingProxyType({})
    """The same with the other half of each pair, for a second run. Empty: both are in the first."""
    expected: Expected
    imports: Imports
    interpreter: str = ""
    """Absent: the one that ringfence runs on."""
    without_twin: tuple[str, ...] = ()
    """Tests without a contradiction, or without one that fails for the reference."""
    figures: Mapping[str, float] = MappingProxyType({})
    """How many twins were made, how many of them serve, in how many seconds."""


def prepare(task: Task, staged: str, *, interpreter: str = "", rng: Random | None = None) -> PreparedTests:
    """Make the counter-tests of a task. ``staged``: the workspace as the agent will get it. ``interpreter`` must have
    pytest; absent: the one that ringfence runs on."""
    began, lots = time.monotonic(), rng or SystemRandom()
    grader = grader_of(task)
    files = [_read_tests(task.oracle, path, lots) for path in grader.pytest]
    with tempfile.TemporaryDirectory(prefix="ringfence-reference-") as folder:
        workspace = with_reference(task, staged, os.path.join(folder, "workspace"))
        trials = _Trials(task, workspace, files, imports_of(task, staged), interpreter, lots)
        texts, others, expected = _on_reference(trials) if grader.reference else _on_untouched(trials)
    twinned = {own for own, _ in expected.twins.values()}
    return PreparedTests(
        texts=texts, other_texts=others, expected=expected, imports=trials.imports, interpreter=interpreter,
        without_twin=tuple(own for own in dict.fromkeys(expected.tests.values()) if own not in twinned),
        figures={**trials.figures, "tests": len(expected.tests), "pairs": len(expected.twins),
                 "seconds": round(time.monotonic() - began, 3)},
    )  # fmt: skip


def _read_tests(oracle: str, path: str, rng: Random) -> TestFile:
    try:
        with open(os.path.join(oracle, path), encoding="utf-8") as file:
            return TestFile(path, file.read(), rng)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: a test file of the oracle that can't be read: {error}") from error


class _Trials:
    """Runs on what is trusted before there is a submission."""

    def __init__(
        self, task: Task, workspace: str, files: Sequence[TestFile], imports: Imports, interpreter: str, rng: Random
    ) -> None:
        self.task, self.workspace, self.imports, self.interpreter = task, workspace, imports, interpreter
        self.files = files
        self.rng = rng
        self.candidates = {file.path: {test.name: test.twins for test in file.tests} for file in files}
        self.figures: dict[str, float] = {"made": sum(len(test.twins) for file in files for test in file.tests)}

    def run(self, texts: Texts) -> tuple[Told, Outcome]:
        outcome = run_worker(self.task, self.workspace, texts, self.imports, interpreter=self.interpreter, times=4)
        told = results.parse(outcome.message)
        if told.missing:
            python = self.interpreter or outcome.argv[0]
            raise UsageError(f"{python} has no pytest", hint=f"{python} -m pip install pytest")
        return told, outcome


Texts = dict[str, str]
Chosen = Mapping[str, Mapping[str, Sequence[Twin]]]
_SHUFFLED, _IN_ORDER, _ALONE = range(3)
"""How a file is mixed. Tests that do not tolerate another order and other forms stay as they are beside their twins.
Tests that tolerate no twins at all, because they build on each other, stay alone."""


def _texts(mixes: Mapping[str, Mixed]) -> Texts:
    return {path: mixed.text for path, mixed in mixes.items()}


def _on_reference(trials: _Trials) -> tuple[Texts, Texts, Expected]:
    """Tests must pass there, and twins fail."""
    ways = dict.fromkeys((file.path for file in trials.files), _SHUFFLED)
    while True:
        mixes = _mixes(trials, trials.candidates, ways)
        told, outcome = trials.run(_texts(mixes))
        if not _problem(told, mixes):
            failing = {name for name, ends in _ends(told, mixes).items() if ("failed", "passed") in ends}
            trials.figures["failing"] = len(failing)
            mixes = _mixes(trials, _chosen(mixes, failing), ways)
            told, outcome = trials.run(_texts(mixes))
            if not _problem(told, mixes):
                trials.figures["reference_s"] = outcome.duration_ms / 1000
                return _apart(trials, mixes, _expected(mixes, told))
        bad = [path for path in mixes if _problem(told, {path: mixes[path]})] or [*mixes]
        if any(ways[path] == _ALONE for path in bad):
            raise _unfit(_problem(told, mixes), outcome)
        ways |= {path: ways[path] + 1 for path in bad}


def _apart(trials: _Trials, mixes: Mapping[str, Mixed], expected: Expected) -> tuple[Texts, Texts, Expected]:
    """In two runs where there are few pairs, if the tests tolerate it; else in one."""
    together: Texts = {}
    if not 0 < len(expected.twins) <= _FEW:
        return _texts(mixes), together, expected
    halves = {path: halved(mixed, trials.rng) for path, mixed in mixes.items()}
    one, other = ({path: half[number] for path, half in halves.items()} for number in range(2))
    ran = [trials.run(texts) for texts in (one, other)]
    told = [each for each, _ in ran]
    apart = _expected(mixes, results.joined(told))
    if any(_problem(each, mixes) for each in told) or apart.failing != expected.failing:
        return _texts(mixes), together, expected
    trials.figures["reference_s"] = sum(outcome.duration_ms for _, outcome in ran) / 1000
    return one, other, apart


def _mixes(trials: _Trials, twins: Chosen, ways: Mapping[str, int]) -> dict[str, Mixed]:
    return {
        file.path: file.mixed({} if (way := ways[file.path]) == _ALONE else twins[file.path],
                              in_order=way != _SHUFFLED, forms=way == _SHUFFLED)
        for file in trials.files
    }  # fmt: skip


def _unfit(problem: str, outcome: Outcome) -> UsageError:
    output = (outcome.stdout + outcome.stderr)[-_TAIL_BYTES:].decode("utf-8", "replace").strip()
    return UsageError(f"the reference solution does not pass the task's own tests: {problem} ({outcome.reason})",
                      hint=plain(output, keep="\n"))  # fmt: skip


def _on_untouched(trials: _Trials) -> tuple[Texts, Texts, Expected]:
    """Without a reference: a pair that passes as a whole already is dropped, the others are weak."""
    mixes = {file.path: file.mixed(trials.candidates[file.path], in_order=True, turn=False) for file in trials.files}
    told, _ = trials.run(_texts(mixes))
    if told.doubt or told.finished not in (0, 1):
        told = Told()  # its report may be incomplete
    before = _expected(mixes, told)
    chosen = _chosen(mixes, {name for name, ends in _ends(told, mixes).items() if ("passed", "passed") not in ends
                             and (ends or name.partition("::")[0] in before.open_files)})  # fmt: skip
    final = {file.path: file.mixed(chosen[file.path], in_order=True, turn=False) for file in trials.files}
    names = _expected(final, Told())
    marked = {f"{file.path}::{test.name}" for file in trials.files for test in file.tests if test.may_skip}
    collected = {own: how or ("skipped" if own in marked else "") for own, how in before.collected.items()}
    extra = {own: own for own in before.tests.values() if own not in names.tests.values()}
    return _texts(final), {}, Expected(
        tests={**names.tests, **extra}, twins=names.twins, collected=collected, weak=True,
        open_files=before.open_files, clocks=frozenset() if before.open_files else before.clocks,
    )  # fmt: skip


def _problem(told: Told, mixes: Mapping[str, Mixed]) -> str:
    """Why a trial can't be the basis for grading these files; empty: it can."""
    if told.doubt or told.finished not in (0, 1):
        return told.doubt or f"pytest ended with {told.finished or 'nothing'}"
    broken = [f"{name}: {words}" for name, words in told.uncollected.items() if name.partition("::")[0] in mixes]
    own = {name: how for name, how in told.outcomes.items() if name.partition("::")[0] in mixes}
    known = _expected(mixes, told)
    bad = [known.tests[base] + case for name, how in own.items() if how in ("failed", "error")
           for base, case in (results.split(name),) if base in known.tests]  # fmt: skip
    return ", ".join([*broken, *bad][:_NAMED])


def _expected(mixes: Mapping[str, Mixed], told: Told) -> Expected:
    """What is known after a trial: from the report where a file could be collected, else from its text."""
    tests = {f"{path}::{name}": f"{path}::{own}" for path, mixed in mixes.items() for name, own in mixed.tests.items()}
    twins = {f"{path}::{name}": (f"{path}::{own}", twin.case)
             for path, mixed in mixes.items() for name, (own, twin) in mixed.twins.items()}  # fmt: skip
    known = results.KnownTests(Expected(tests=tests, twins=twins))
    for base in dict.fromkeys(results.split(name)[0] for name in told.outcomes):
        if known.twin(base)[0]:
            twins[base] = known.twin(base)
        else:
            tests[base] = known.test(base) or base
    first = Expected(tests=tests, twins=twins)
    ended = results.read(told, first).tests
    whole = {own.partition("::")[0] for own in ended} - {name.partition("::")[0] for name in told.uncollected}
    open_files = mixes.keys() - whole
    unseen = {own: "" for own in tests.values() if own.partition("::")[0] in open_files}
    partners = results.partners(told, first)
    failing = {own for own, outcome in partners.items() if outcome == "failed" and ended.get(own) == "passed"}
    return Expected(tests=_run_ones(tests, ended, open_files), twins=twins, collected={**unseen, **ended},
                    failing=frozenset(failing), open_files=frozenset(open_files),
                    clocks=results.true_clocks(told))  # fmt: skip


def _run_ones(tests: Mapping[str, str], ended: Mapping[str, str], open_files: set[str]) -> dict[str, str]:
    """Leave out what looks like a test but is not collected, e.g. in a class that pytest skips."""
    seen = {results.split(own)[0] for own in ended}
    return {name: own for name, own in tests.items() if own in seen or own.partition("::")[0] in open_files}


def _ends(told: Told, mixes: Mapping[str, Mixed]) -> dict[str, list[tuple[str, str]]]:
    """For each twin, by its name in the files: how it and its test ended, case by case."""
    first = _expected(mixes, Told())
    tests, known = results.read(told, first).tests, results.KnownTests(first)
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in first.twins}
    for name, outcome in told.outcomes.items():
        base, case = results.split(name)
        own, only = known.twin(base)
        if own and only in case:
            found[known.direct(base)].append((outcome, tests.get(own + case, "")))
    return found


def _chosen(mixes: Mapping[str, Mixed], serving: set[str]) -> dict[str, dict[str, list[Twin]]]:
    """Choose one usable twin for each test: one with another value, if there is one."""
    found: dict[str, dict[str, list[Twin]]] = {path: {} for path in mixes}
    for path, mixed in mixes.items():
        good = [pair for name, pair in mixed.twins.items() if f"{path}::{name}" in serving]
        for own, twin in sorted(good, key=lambda pair: not pair[1].by_value):
            found[path].setdefault(own, [twin])
    return found


def grade(task: Task, prepared: PreparedTests, submission: Submission, *, on_event: OnEvent | None = None) -> Grading:
    """Run the tests on what an agent left, and return the grading."""
    runs = [texts for texts in (prepared.texts, prepared.other_texts) if texts]
    ended = []
    for texts in runs:
        outcome = run_worker(task, submission.folder, texts, prepared.imports, interpreter=prepared.interpreter,
                             times=3 - len(runs), on_event=on_event)  # fmt: skip
        if outcome.status is Status.INTERNAL_ERROR:
            raise SupervisionError(f"the grader's sandbox was lost: {outcome.reason}")
        ended.append(outcome)
        if _status(outcome) is None:
            break  # it can't pass any more
    return judged(prepared, *ended)


def judged(prepared: PreparedTests, *ended: Outcome) -> Grading:
    """Return the grading for the ends of the worker."""
    expected, parts = prepared.expected, [results.parse(outcome.message) for outcome in ended]
    told = results.joined(parts)
    found = results.read(told, expected)
    doubts = [results.misreport(part, expected, _status(outcome), outcome.duration_ms / 1000)
              for part, outcome in zip(parts, ended, strict=True)]  # fmt: skip
    forged = next(filter(None, doubts), "") or results.forgery(told, found, expected)
    bad = results.failures(found, expected)
    wall_s = sum(outcome.duration_ms for outcome in ended) / 1000
    clock = results.wrong_clock(told, expected, wall_s)
    passed = not forged and not bad and not clock and told.finished in (0, 1) and bool(found.tests)
    worst = next((outcome for outcome in ended if _status(outcome) is None), ended[-1])
    failed = (clock if not bad else "") or _reason(told, worst, bad, len(found.tests))
    reason = f"forged: {forged}" if forged else "" if passed else failed
    return Grading(
        passed=passed, reward=float(passed), forged=plain(forged), outcome=worst,
        reason=plain(reason or f"{len(found.tests)} tests passed"),
        details={**_details(prepared, told, found, bad), "wall_s": round(wall_s, 3),
                 "reference_wall_s": prepared.figures.get("reference_s")},
    )  # fmt: skip


def _status(outcome: Outcome) -> int | None:
    """Absent: a signal or a limit ended it."""
    return outcome.rc if outcome.status in (Status.OK, Status.FAILED) else None


def _reason(told: Told, outcome: Outcome, bad: Sequence[str], ran: int) -> str:
    if told.finished not in (0, 1):
        why = next(iter(told.uncollected.values()), "") or outcome.reason
        return f"the tests did not come to their end: {why}"
    named = ", ".join(bad[:_NAMED]) + (f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else "")
    why = next(iter(told.uncollected.values()), "")
    return f"{len(bad)} tests did not pass: {named}" + (f" ({why})" if why else "") if ran or bad else "no test ran"


def _details(prepared: PreparedTests, told: Told, found: Read, bad: Sequence[str]) -> dict[str, object]:
    """Plain data for ``grading.json``; names and messages are the worker's word."""
    messages = {own: found.messages.get(own, "") for own in bad[:_MOST_MESSAGES]}
    return {
        "tests": {plain(own): outcome for own, outcome in found.tests.items()},
        "messages": {plain(own): plain(words) for own, words in messages.items() if words},
        "uncollected": {plain(name): plain(words) for name, words in told.uncollected.items()},
        "counter_tests": {
            "pairs": len(prepared.expected.twins), "failed": found.twins_failed, "weak": prepared.expected.weak,
            "both_passed": [plain(own) for own in found.both], "without_twin": list(prepared.without_twin),
        },
        "runs": 2 if prepared.other_texts else 1,
        "duration_s": round(told.took_s, 3),
        "exit_status_told": told.finished,
    }  # fmt: skip
