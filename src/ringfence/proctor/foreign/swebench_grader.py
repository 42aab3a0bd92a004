"""Grades an instance of SWE-bench: ``prepare`` before the agent runs, ``grade`` after it.

``prepare`` runs the tests on the repository with the instance's own patch. That shows what its names mean, and that
they can pass here at all. Then each test gets a twin that contradicts it (``counter_tests``), wherever a file tolerates
that. ``grade`` runs the same files on what the agent left: resolved exactly when all of both sets pass.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from random import Random, SystemRandom
from types import MappingProxyType

from ringfence.engine.run import run
from ringfence.errors import SupervisionError, UsageError
from ringfence.model.job import Job
from ringfence.model.outcome import Outcome, Status
from ringfence.model.record import record
from ringfence.model.system_text import escape_controls as plain
from ringfence.proctor import pytest_results as results
from ringfence.proctor.counter_tests import Mixed, TestFile
from ringfence.proctor.foreign.graded_tree import (
    Files,
    copied,
    harness_of,
    is_harness,
    is_test,
    lay_over,
    patched,
    restore,
)
from ringfence.proctor.foreign.instance import Instance, checked_patch
from ringfence.proctor.foreign.named_tests import check_files, django_label, files_to_run, meant
from ringfence.proctor.foreign.patches import Content, PatchError, read_below
from ringfence.proctor.foreign.repositories import DJANGO, TestedRepository, repository_of
from ringfence.proctor.grading import Grading, described
from ringfence.proctor.pytest_results import Expected, Read, Told
from ringfence.proctor.rooted import phase

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.model.events import OnEvent
    from ringfence.proctor.submission import Submission
    from ringfence.proctor.task import Task

WORKER = "/grader/swebench_worker.py"
_WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "swebench_worker.py")
GOOD = ("passed", "xfailed")
"""How a test may end; as the data set counts it."""
_NAMED, _MOST_MESSAGES, _TAIL_BYTES = 5, 50, 600
_SHUFFLED, _IN_ORDER, _ALONE = range(3)


@record
class PreparedInstance:
    """What was fixed before the agent ran."""

    files: Files
    """Laid over what the agent left: all that runs tests, and the tests as they are run."""
    run_files: tuple[str, ...]
    expected: Expected
    required: Mapping[str, tuple[str, ...]]
    """By the data set's name, the tests that it means."""
    without_twin: tuple[str, ...] = ()


def prepare(task: Task, staged: str, *, rng: Random | None = None) -> PreparedInstance:
    """Try an instance with its own patch. ``staged``: the repository as the agent will get it."""
    instance = instance_of(task)
    where = instance.where
    tests = checked_patch(instance.test_patch, f"{where}: test_patch")
    solution = patched(checked_patch(instance.patch, f"{where}: patch"), staged, f"{where}: patch")
    own = repository_of(instance.repo).harness
    solved = {path: content for path, content in solution.items() if is_harness(path, own)}
    files = {**harness_of(staged, own), **solved, **patched(tests, staged, f"{where}: test_patch")}
    run_files = files_to_run(instance.tests, tests, repository_of(instance.repo).runner)
    check_files(run_files, where)
    with tempfile.TemporaryDirectory(prefix="ringfence-reference-") as folder:
        tree = copied(staged, os.path.join(folder, "testbed"))
        lay_over(tree, {**solution, **files})
        files |= {path: Content(_data_at(tree, path, where)) for path in run_files if is_test(path)}
        return _Trials(task, instance, tree, files, run_files, rng or SystemRandom()).prepared()


def instance_of(task: Task) -> Instance:
    """Return the instance that a task is graded by."""
    if task.grader is None or task.grader.instance is None:
        raise UsageError(f"task {task.id} is not a SWE-bench instance")
    return task.grader.instance


def run_tests(
    task: Task, tree: str, files: Sequence[str], *, describes: bool = False, times: int = 1,
    on_event: OnEvent | None = None,
) -> Outcome:  # fmt: skip
    """Run these test files in a tree; nothing of it is changed. With an image its root is as it was before the agent.
    ``times``: how much longer than the tests it may take, since twins run beside them."""
    grader, repository = task.grader, repository_of(instance_of(task).repo)
    assert grader is not None
    mount_at = task.policy.mount_at
    policy = task.policy.sandbox_policy(
        "grader", wall_time_s=grader.wall_time_s * times, shown_at={tree: mount_at, _WORKER: WORKER},
        **phase.fields(task, {**repository.environment, **grader.environment}),
    )  # fmt: skip
    settings = json.dumps(_settings(repository, mount_at, files, describes))
    job = Job(argv=(*grader.argv, "-I", "-B", WORKER, settings), cwd=tree, channel=True)
    return run(job, policy, on_event=on_event)


def _settings(repository: TestedRepository, workspace: str, files: Sequence[str], describes: bool) -> dict[str, object]:
    labels = [django_label(path) for path in files] if repository.runner == DJANGO else list(files)
    return {
        "workspace": workspace, "sources": repository.sources, "own": repository.packages, "runner": repository.runner,
        "arguments": repository.arguments, "files": labels, "describes": describes,
    }  # fmt: skip


# ---- before the agent


class _Trials:
    """Runs on the solved repository."""

    def __init__(
        self, task: Task, instance: Instance, tree: str, files: Files, run_files: tuple[str, ...], rng: Random
    ) -> None:
        self.task, self.instance, self.tree, self.files, self.run_files = task, instance, tree, files, run_files
        self.rng = rng
        self.runner = repository_of(instance.repo).runner

    def prepared(self) -> PreparedInstance:
        plain = self._run(describes=True)
        self._check(plain)
        names = meant(self.instance.tests, {name: plain.messages.get(name, "") for name in plain.outcomes}, self.runner)
        self._check_names(names, plain)
        wanted = {test for tests in names.values() for test in tests}
        mixes, told = self._mixed(plain, wanted)
        expected = expected_of(mixes, told)
        return PreparedInstance(
            files={**self.files, **_texts(mixes)}, run_files=self.run_files, expected=expected,
            required={name: _required(tests, mixes, expected) for name, tests in names.items()},
            without_twin=_without_twin(wanted, expected),
        )  # fmt: skip

    def _run(self, mixes: Mapping[str, Mixed] = MappingProxyType({}), *, describes: bool = False) -> Told:
        lay_over(self.tree, {**self.files, **_texts(mixes)})
        self.outcome = run_tests(self.task, self.tree, self.run_files, describes=describes, times=2)
        return results.parse(self.outcome.message)

    def _check(self, told: Told) -> None:
        python = self.outcome.argv[0]
        if told.missing:
            raise UsageError(f"{python} has no pytest",
                             hint=f"{python} -m pip install pytest, or name one with --python")  # fmt: skip
        if told.doubt or told.finished not in (0, 1):
            raise self._unfit(told.doubt or next(iter(told.uncollected.values()), "") or self.outcome.reason)

    def _check_names(self, names: Mapping[str, tuple[str, ...]], told: Told) -> None:
        """UsageError where a test can't pass here, whatever an agent does."""
        gone = [name for name, tests in names.items() if not tests]
        bad = [name for name, tests in names.items() if any(told.outcomes[test] not in GOOD for test in tests)]
        if gone or bad:
            said = [f"{len(gone)} are not there: {_listed(gone)}"] if gone else []
            said += [f"{len(bad)} do not pass: {_listed(bad)}"] if bad else []
            why = [*told.uncollected.values(), *(told.messages.get(test, "") for name in bad for test in names[name])]
            raise self._unfit("; ".join([*said, *filter(None, why[:1])]))

    def _unfit(self, problem: str) -> UsageError:
        output = (self.outcome.stdout + self.outcome.stderr)[-_TAIL_BYTES:].decode("utf-8", "replace").strip()
        return UsageError(
            plain(f"{self.instance.instance_id}: not all of its tests pass here with its own patch: {problem}"),
            hint="name an interpreter with what the repository needs (--python), or use its image (--image): "
                 + plain(output, keep="\n"),
        )  # fmt: skip

    def _mixed(self, plain: Told, wanted: set[str]) -> tuple[dict[str, Mixed], Told]:
        """Tests and twins, as far as each file tolerates them; else the file as it is."""
        files = {path: made for path in self.run_files if (made := self._test_file(path, plain, wanted)) is not None}
        ways = dict.fromkeys(files, _SHUFFLED)
        while ways:
            mixes = {path: self._mix(files[path], way, wanted) for path, way in ways.items()}
            told = self._run(mixes)
            bad = [path for path in mixes if told.doubt or not _bears(path, mixes[path], told, plain, wanted)]
            if not bad:
                return mixes, told
            ways = {path: way + (path in bad) for path, way in ways.items() if way + (path in bad) < _ALONE}
        return {}, plain

    def _test_file(self, path: str, plain: Told, wanted: set[str]) -> TestFile | None:
        """None: its tests get no twins, because the file can't be read, or because a name of the data set means only
        some cases of a test."""
        cases = [name for name in plain.outcomes if name.partition("::")[0] == path]
        functions = {results.split(name)[0] for name in cases if name in wanted}
        partly = any(results.split(name)[0] in functions and name not in wanted for name in cases)
        content = self.files.get(path)
        if partly or not functions or content is None:
            return None
        try:
            return TestFile(path, content.data.decode("utf-8"), self.rng, candidates=1)
        except (UnicodeDecodeError, UsageError):
            return None

    def _mix(self, file: TestFile, way: int, wanted: set[str]) -> Mixed:
        functions = {results.split(name)[0] for name in wanted}
        chosen = {test.name: test.twins[:1] for test in file.tests if f"{file.path}::{test.name}" in functions}
        return file.mixed(chosen, in_order=way != _SHUFFLED, forms=way == _SHUFFLED)


def _data_at(tree: str, path: str, where: str) -> bytes:
    found = None
    try:
        found = read_below(tree)(path)
    except (PatchError, OSError):
        pass
    if found is None:
        raise UsageError(f"{where}: FAIL_TO_PASS or PASS_TO_PASS: the repository has no test file {path!r}")
    return found.data


def _texts(mixes: Mapping[str, Mixed]) -> dict[str, Content | None]:
    return {path: Content(mixed.text.encode("utf-8", "surrogatepass")) for path, mixed in mixes.items()}


def _bears(path: str, mixed: Mixed, told: Told, plain: Told, wanted: set[str]) -> bool:
    """Whether all tests of a file that count end in the same way with their twins as without, case by case."""
    found = results.read(told, expected_of({path: mixed}, told)).tests
    return _ends_of(path, found, wanted) == _ends_of(path, plain.outcomes, wanted)


def _ends_of(path: str, outcomes: Mapping[str, str], wanted: set[str]) -> dict[str, list[str]]:
    functions = {results.split(name)[0] for name in wanted if name.partition("::")[0] == path}
    ends: dict[str, list[str]] = {name: [] for name in functions}
    for name, outcome in outcomes.items():
        if (base := results.split(name)[0]) in functions:
            ends[base].append(outcome)
    return {name: sorted(each) for name, each in ends.items()}


def expected_of(mixes: Mapping[str, Mixed], told: Told) -> Expected:
    """What is known after a trial; for files without twins, only from what was reported."""
    tests = {f"{path}::{name}": f"{path}::{own}" for path, mixed in mixes.items() for name, own in mixed.tests.items()}
    seen = {results.split(name)[0] for name in told.outcomes}
    twins = {f"{path}::{name}": (f"{path}::{own}", twin.case) for path, mixed in mixes.items()
             for name, (own, twin) in mixed.twins.items()}  # fmt: skip
    known = results.KnownTests(Expected(tests=tests, twins=twins))
    for base in seen:
        if known.twin(base)[0]:
            twins[base] = known.twin(base)
        else:
            tests[base] = known.test(base) or base
    first = Expected(tests=tests, twins={name: pair for name, pair in twins.items() if name in seen})
    ended = results.read(told, first).tests
    partners = results.partners(told, first)
    failing = {own for own, outcome in partners.items() if outcome == "failed" and ended.get(own) == "passed"}
    return Expected(tests=tests, twins=first.twins, collected=ended, failing=frozenset(failing))


def _required(tests: Sequence[str], mixes: Mapping[str, Mixed], expected: Expected) -> tuple[str, ...]:
    """Cases have other names in a file with twins: there a name means all of a function's cases."""
    found: dict[str, None] = {}
    for test in tests:
        base = results.split(test)[0]
        in_mix = test.partition("::")[0] in mixes
        found.update(dict.fromkeys(own for own in expected.collected if results.split(own)[0] == base)
                     if in_mix else {test: None})  # fmt: skip
    return tuple(found)


def _without_twin(wanted: set[str], expected: Expected) -> tuple[str, ...]:
    twinned = {results.split(own)[0] for own in expected.failing}
    return tuple(sorted({results.split(name)[0] for name in wanted} - twinned))


# ---- after it


def grade(
    task: Task, prepared: PreparedInstance, submission: Submission, *, on_event: OnEvent | None = None
) -> Grading:
    """Run the tests on what an agent left, and return the grading. Its directory belongs to the run, and is changed."""
    own = repository_of(instance_of(task).repo).harness
    replaced = restore(submission.folder, prepared.files, own)
    outcome = run_tests(task, submission.folder, prepared.run_files, times=2, on_event=on_event)
    if outcome.status is Status.INTERNAL_ERROR:
        raise SupervisionError(f"the grader's sandbox was lost: {outcome.reason}")
    return judged(instance_of(task), prepared, outcome, {**described(submission), "restored": replaced})


def judged(instance: Instance, prepared: PreparedInstance, outcome: Outcome, details: Mapping[str, object]) -> Grading:
    """Return the grading for an end of the worker."""
    told = results.parse(outcome.message)
    found = results.read(told, prepared.expected)
    ended = outcome.rc if outcome.status in (Status.OK, Status.FAILED) else None
    forged = (results.misreport(told, prepared.expected, ended, outcome.duration_ms / 1000)
              or results.forgery(told, found, prepared.expected))  # fmt: skip
    bad = [name for name, tests in prepared.required.items() if not _passed(tests, found, prepared.expected)]
    passed = not forged and not bad and told.finished in (0, 1) and bool(prepared.required)
    reason = f"forged: {forged}" if forged else f"{len(prepared.required)} tests passed" if passed else \
        _reason(told, outcome, bad)  # fmt: skip
    return Grading(
        passed=passed, reward=float(passed), forged=plain(forged), outcome=outcome, reason=plain(reason),
        details={**details, **_details(instance, prepared, told, found, bad)},
    )  # fmt: skip


def _passed(tests: Sequence[str], found: Read, expected: Expected) -> bool:
    """Whether a test ended as with the instance's own patch: a new «expected failure» proves nothing."""
    ends = [(found.tests.get(test), expected.collected.get(test)) for test in tests]
    return bool(ends) and all(end == "passed" or (end == before == "xfailed") for end, before in ends)


def _reason(told: Told, outcome: Outcome, bad: Sequence[str]) -> str:
    why = next(iter(told.uncollected.values()), "")
    if told.finished not in (0, 1):
        return f"the tests did not come to their end: {why or outcome.reason}"
    return f"{len(bad)} tests did not pass: {_listed(bad)}" + (f" ({why})" if why else "")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _details(
    instance: Instance, prepared: PreparedInstance, told: Told, found: Read, bad: Sequence[str]
) -> dict[str, object]:
    """Plain data for ``grading.json``; messages are the worker's word."""
    sets = {"FAIL_TO_PASS": instance.fail_to_pass, "PASS_TO_PASS": instance.pass_to_pass}
    words = ((test, found.messages.get(test, "")) for name in bad[:_MOST_MESSAGES] for test in prepared.required[name])
    return {
        "grader": "swebench",
        **{key: {"success": [plain(name) for name in names if name not in bad],
                 "failure": [plain(name) for name in names if name in bad]} for key, names in sets.items()},
        "messages": {plain(test): plain(said) for test, said in words if said},
        "uncollected": {plain(name): plain(said) for name, said in told.uncollected.items()},
        "counter_tests": {"pairs": len(prepared.expected.failing), "failed": found.twins_failed,
                          "both_passed": [plain(own) for own in found.both],
                          "without_twin": [plain(name) for name in prepared.without_twin]},
        "duration_s": round(told.took_s, 3),
        "exit_status_told": told.finished,
    }  # fmt: skip
