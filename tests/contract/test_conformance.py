"""Every backend passes the conformance suite, and the suite notices a backend that does not."""

from __future__ import annotations

import subprocess

import pytest
from tests.escape.attack import PARTIAL, interpreter_for

from ringfence import IsolationLevel, Job, Outcome, SandboxPolicy, run
from ringfence.backends import conformance
from ringfence.backends.conformance import APART, CHECKS, Check, checks_here, perform_one
from ringfence.engine.run import isolating_levels, traits_of
from ringfence.sandbox import host

pytestmark = pytest.mark.privileges

LEVELS = [level for level in isolating_levels() if not traits_of(level).python]
"""Those whose jobs have this interpreter; tests/doors/test_container_level.py has the others."""


PROMISED = [(level, check) for level in LEVELS for check in checks_here(traits=traits_of(level))]


@pytest.mark.parametrize(("level", "check"), PROMISED, ids=[f"{check.name}-{level}" for level, check in PROMISED])
def test_the_promise_holds_and_its_control_succeeds(level: IsolationLevel, check: Check) -> None:
    finding = perform_one(run, level, check)
    assert finding.held, finding.problem
    assert finding.proven, finding.problem


@pytest.fixture
def no_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of strict; root's job has an id of its own, for which root's interpreter may be out of reach."""
    monkeypatch.setattr(host, "user_namespaces_blocked", lambda: ("user namespaces", "none: this is a test"))
    monkeypatch.setattr(conformance, "_PYTHON", (interpreter_for(PARTIAL), *conformance._PYTHON[1:]))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_what_is_left_without_namespaces_holds_every_promise_too(check: Check, no_namespaces: None) -> None:
    finding = perform_one(run, IsolationLevel.STRICT, check, SandboxPolicy(allow_partial=True))
    assert finding.held, finding.problem
    assert finding.proven, finding.problem


def _run_without_protection(job: Job, policy: SandboxPolicy) -> Outcome:
    plain = {"isolation": "none", "allow_partial": True, "wall_time_s": 30, "output_bytes": 1 << 20,
             "on_output_limit": "truncate"}  # fmt: skip
    return run(job, SandboxPolicy.from_dict(policy.to_dict() | plain))


# What a plain child process gives by itself: it is killed with its tree and inherits nothing.
GIVEN_BY_ANY_LEVEL = {"daemon", "daemon deaf", "pipe holder", "environment", "inherited descriptor",
                      "terminal", "privileges"}  # fmt: skip


@pytest.mark.parametrize(
    "check", [c for c in (*CHECKS, *APART) if c.name not in GIVEN_BY_ANY_LEVEL and "deadline" not in c.name],
    ids=lambda c: c.name,
)
def test_the_suite_notices_a_level_that_does_not_hold_the_promise(check: Check) -> None:
    finding = perform_one(_run_without_protection, IsolationLevel.PROCESS, check)
    assert not finding.held


def _leaves_a_late_daemon(job: Job, policy: SandboxPolicy) -> Outcome:
    """A level that ends nothing, on a host where all takes longer than what outlives a job is given at least."""
    marker = job.argv[-4]
    subprocess.Popen(["sh", "-c", f"sleep 0.2; touch {marker}"], start_new_session=True)
    return run(["true"], SandboxPolicy())


def test_what_outlives_a_job_is_waited_for_as_long_as_the_control_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "_SETTLE_S", 0.0)
    (daemon,) = (check for check in CHECKS if check.name == "daemon")
    finding = perform_one(_leaves_a_late_daemon, IsolationLevel.PROCESS, daemon)
    assert finding.proven and not finding.held and "outlived" in finding.problem
