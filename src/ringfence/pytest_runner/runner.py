"""``run_pytests`` and ``run_pytests_v2``: pytest under a policy, in a working folder of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ringfence.engine.run import run
from ringfence.engine.supervision import new_run_id
from ringfence.errors import SandboxError, UnavailableError, UsageError
from ringfence.model.events import OnOutput
from ringfence.model.job import Job
from ringfence.model.outcome import Enforcement
from ringfence.model.policy import SandboxPolicy
from ringfence.posix.plan import CHANNEL_FD
from ringfence.pytest_runner.records import parse_records
from ringfence.pytest_runner.result import SandboxResultV2, from_outcome, from_refusal

_GUEST_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guest")
_DETERMINISTIC = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
_COVERAGE = ("COVERAGE_PROCESS_START", "COVERAGE_FILE")


def run_pytests(paths: list[str], timeout_s: int) -> tuple[int, str]:
    """Run pytest with a wall-clock timeout; (return code, stdout and stderr).

    The processor-time limit is set so high that only the timeout binds, as it always did here.
    """
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
    on_output: OnOutput | None = None,
) -> SandboxResultV2:
    """Run pytest on ``paths`` under ``policy``; never raises for what the host or the tests do.

    The tests run in a fresh private folder, or in the current one with ``here``; ``arguments`` go to
    pytest.
    """
    policy = policy or SandboxPolicy()
    try:
        job = _job(paths, here, arguments)
    except FileNotFoundError as error:
        raise UsageError("the current folder is not there any more", hint="change to one that is") from error
    try:
        outcome = run(job, policy, on_output=on_output)
    except SandboxError as error:
        return from_refusal(_refusal(error), list(job.argv), _nothing_applied(policy, error), new_run_id())
    return from_outcome(outcome, parse_records(outcome.message))


def _job(paths: Sequence[str | os.PathLike[str]], here: bool, arguments: Sequence[str]) -> Job:
    targets = [_absolute(os.fspath(path)) for path in paths]
    # The cache goes into the private folder: nothing of a run may change the next one.
    options = ["-p", "ringfence_reporter", "-o", "cache_dir=$TMPDIR/pytest-cache"]
    return Job(
        argv=(sys.executable, os.path.join(_GUEST_FOLDER, "start.py"), *options, *arguments, *targets),
        cwd=os.getcwd(),
        environment=_environment() | ({} if here else {"RINGFENCE_TEST_FOLDER": "$TMPDIR/work"}),
        channel=True,
    )


def _absolute(target: str) -> str:
    """A path or a node id (``path::test``), whatever folder pytest is started in."""
    path, separator, rest = target.partition("::")
    return os.path.abspath(path) + separator + rest


def _environment() -> dict[str, str]:
    search = [_GUEST_FOLDER, *filter(None, [os.environ.get("PYTHONPATH")])]
    paths = {name: os.path.abspath(os.environ[name]) for name in _COVERAGE if os.environ.get(name)}
    return {
        **_DETERMINISTIC,
        **paths,
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
