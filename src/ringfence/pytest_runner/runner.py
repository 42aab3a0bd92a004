"""``run_pytests`` and ``run_pytests_v2``: pytest under a policy, in a working directory of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence

from ringfence.engine.run import run, traits_of
from ringfence.engine.supervision import Attach, new_run_id
from ringfence.errors import SandboxError, UnavailableError, UsageError
from ringfence.model.events import OnOutput
from ringfence.model.job import Job
from ringfence.model.outcome import Enforcement
from ringfence.model.paths import within
from ringfence.model.policy import SandboxPolicy
from ringfence.model.ways.walk import absolute, real
from ringfence.pytest_runner.hints import hints
from ringfence.pytest_runner.records import parse_records
from ringfence.pytest_runner.result import SandboxResultV2, from_outcome, from_refusal
from ringfence.steps.executor import CHANNEL_FD

GUEST_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guest")
_DETERMINISTIC = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
_COVERAGE = ("COVERAGE_PROCESS_START", "COVERAGE_FILE")


def run_pytests(paths: list[str], timeout_s: int) -> tuple[int, str]:
    """Run pytest with a wall-clock timeout; (return code, stdout and stderr).

    The processor-time limit is set so high that the timeout comes first.
    """
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        raise UsageError(f"timeout_s: {timeout_s!r} is not a number of seconds")
    cores = os.cpu_count() or 1
    result = run_pytests_v2(paths, SandboxPolicy(wall_time_s=timeout_s, cpu_time_s=timeout_s * cores + 1))
    failed_to_run = "" if result["status"] != "INTERNAL_ERROR" else result["reason"]
    return result["rc"], result["stdout"] + result["stderr"] + failed_to_run


def run_pytests_v2(
    paths: Sequence[str | os.PathLike[str]],
    policy: SandboxPolicy | None = None,
    *,
    here: bool = False,
    arguments: Sequence[str] = (),
    interpreter: str | os.PathLike[str] | None = None,
    on_output: OnOutput | None = None,
    attach: Attach | None = None,
) -> SandboxResultV2:
    """Run pytest on ``paths`` under ``policy``; never raises for what the host or the tests do.

    The tests run in a fresh private directory, or in the current one with ``here``; ``arguments`` go to
    pytest. It is the pytest of ``interpreter``, or of this one; ``attach`` gets the running visit.
    """
    policy = _checked_policy(policy)
    refuse_images(policy)
    try:
        targets = _targets(paths)
        words, program = _words(arguments, "arguments"), _checked_interpreter(interpreter)
        job = _job(targets, here, words, program, policy.environment)
    except FileNotFoundError as error:
        raise UsageError("the current directory no longer exists", hint="change to one that exists") from error
    try:
        outcome = run(job, _showing(policy, targets), on_output=on_output, attach=attach)
    except SandboxError as error:
        return from_refusal(_refusal(error), list(job.argv), _nothing_applied(policy, error), new_run_id())
    records = parse_records(outcome.message)
    return from_outcome(outcome, records, hints(outcome, records))


def refuse_images(policy: SandboxPolicy) -> None:
    """UsageError for a sandbox with a Python of its own."""
    if policy.root or traits_of(policy.isolation).python:
        what = "root" if policy.root else f"isolation {policy.isolation}"
        raise UsageError(f"{what}: tests run in an interpreter of the host", hint="run the image's pytest with run()")


def _checked_policy(policy: object) -> SandboxPolicy:
    if policy is not None and not isinstance(policy, SandboxPolicy):
        hint = "write SandboxPolicy(…), or SandboxPolicy.from_dict(…) for a mapping"
        raise UsageError(f"policy: {type(policy).__name__} is not a SandboxPolicy", hint=hint)
    return policy or SandboxPolicy()


def _checked_interpreter(interpreter: str | os.PathLike[str] | None) -> str:
    """Links stay as they are: an environment is known by where its own Python lies."""
    if interpreter is None:
        return sys.executable
    path = absolute(_words([interpreter], "interpreter")[0])
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        raise UsageError(f"interpreter: {path} is not a program", hint="name a Python, e.g. .venv/bin/python")
    return path


def _words(values: object, name: str) -> list[str]:
    """A list of texts or paths. A single text would be split into its letters."""
    if isinstance(values, str | bytes | os.PathLike) or not isinstance(values, Iterable):
        raise UsageError(f"{name}: {values!r} is not a list", hint=f"write [{values!r}]")
    words = list(values)
    wrong = [word for word in words if not isinstance(word, str | os.PathLike)]
    if wrong:
        raise UsageError(f"{name}: {wrong[0]!r} is not a string or a path")
    return [os.fsdecode(word) for word in words]


def _targets(paths: object) -> list[str]:
    """What pytest runs, as absolute paths and node ids. An unreadable path is reported before pytest stumbles."""
    targets = [_absolute(path) for path in _words(paths, "paths")]
    for path in (target.partition("::")[0] for target in targets or [os.getcwd()]):
        needed = os.R_OK | os.X_OK if os.path.isdir(path) else os.R_OK
        if os.path.lexists(path) and not os.access(path, needed):
            raise UsageError(f"{path} can't be read by this user", hint="ask its owner for read permission")
    return targets


def _job(targets: list[str], here: bool, arguments: list[str], interpreter: str, asked: Mapping[str, str]) -> Job:
    # The cache goes into the private directory: nothing of a run may change the next one.
    options = ["-p", "ringfence_reporter", "-o", "cache_dir=$TMPDIR/pytest-cache"]
    return Job(
        argv=(interpreter, os.path.join(GUEST_FOLDER, "start.py"), *options, *arguments, *targets),
        cwd=os.getcwd(),
        environment=_environment(asked) | ({} if here else {"RINGFENCE_TEST_FOLDER": "$TMPDIR/work"}),
        channel=True,
    )


def _showing(policy: SandboxPolicy, paths: Sequence[str | os.PathLike[str]]) -> SandboxPolicy:
    """A sandbox that shows only the current directory also shows tests that lie elsewhere, each with its directory."""
    if not traits_of(policy.isolation).files_apart:
        return policy
    from ringfence.sandbox import workplaces

    here = real(os.getcwd())
    named = [absolute(os.fspath(path).partition("::")[0]) for path in paths]
    outside = [path for path in named if os.path.exists(path) and not within(real(path), here)]
    folders = [folder for folder in map(workplaces.around, outside) if folder not in policy.writable_paths]
    return policy.with_changes(readable_paths=tuple(dict.fromkeys((*policy.readable_paths, *folders))))


def _absolute(target: str) -> str:
    """A path or a node id (``path::test``), whatever directory pytest is started in."""
    path, separator, rest = target.partition("::")
    return absolute(path) + separator + rest


def _environment(asked: Mapping[str, str]) -> dict[str, str]:
    """``asked``: what the policy sets, which wins over the caller's own variables and over the usual values."""
    search = [GUEST_FOLDER, *filter(None, [asked.get("PYTHONPATH", os.environ.get("PYTHONPATH"))])]
    paths = {name: absolute(os.environ[name]) for name in _COVERAGE if os.environ.get(name)}
    return {
        **_DETERMINISTIC,
        **paths,
        **{name: asked[name] for name in (*_DETERMINISTIC, *_COVERAGE) if name in asked},
        "PYTHONPATH": os.pathsep.join(search),
        "RINGFENCE_CHANNEL": str(CHANNEL_FD),
    }


def _refusal(error: SandboxError) -> str:
    return f"{error}; {error.hint}" if error.hint else str(error)


def _nothing_applied(policy: SandboxPolicy, error: SandboxError) -> dict[str, Enforcement]:
    missing = error.missing if isinstance(error, UnavailableError) else ()
    return {
        name: Enforcement(
            requested=asked,
            applied=False,
            mechanism="none",
            details="missing on this host" if name in missing else "nothing was run",
        )
        for name, asked in policy.requested().items()
    }
