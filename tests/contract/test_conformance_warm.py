"""The conformance suite over sandboxes that stood by, as commands and as Python jobs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ringfence import IsolationLevel, Job, Outcome, Pool, SandboxPolicy
from ringfence.backends.conformance import CHECKS, Check, attack
from ringfence.engine.run import isolating_levels, traits_of

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]

LEVELS = [level for level in isolating_levels() if not traits_of(level).python]
"""A container is nobody's before its job."""


def _run_warm(job: Job, policy: SandboxPolicy) -> Outcome:
    with Pool(policy, warm=1) as pool:
        return pool.run(job)


def _run_python(job: Job, policy: SandboxPolicy) -> Outcome:
    """The same probe as a Python job, which is a fork of a process of ours."""
    probe, *arguments = job.argv[job.argv.index("-c") + 1 :]
    with Pool(policy, warm=1) as pool:
        return pool.run_source(probe, arguments=arguments)


@pytest.mark.parametrize("way", [_run_warm, _run_python], ids=["command", "python"])
@pytest.mark.parametrize("level", LEVELS, ids=str)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_the_promise_holds_in_a_sandbox_that_stood_by(
    level: IsolationLevel, check: Check, way: Callable[[Job, SandboxPolicy], Outcome]
) -> None:
    assert attack(way, level, check) == ""
