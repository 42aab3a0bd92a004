"""``cwd``, ``input``, ``timeout`` and ``env`` beside a command, as users of subprocess write it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.engine.pooled import LEVELS, policy_of

import ringfence
from ringfence import Job, Outcome, SandboxPolicy, Status, UsageError, run
from ringfence.engine.box import Box
from ringfence.engine.keywords import deadline_of, job_of
from ringfence.engine.keywords import policy_of as timed

SHOW = ["sh", "-c", 'pwd; echo "$COLOUR|$SECRET|${HOME:+home}"; cat']


def test_they_complete_a_job() -> None:
    bare = Job(argv=("a",), environment={"X": "1", "Y": "1"})
    job = job_of(bare, cwd=Path("/tmp"), input=bytearray(b"in"), env={"Y": "2"})
    assert (job.cwd, job.stdin, dict(job.environment)) == ("/tmp", b"in", {"X": "1", "Y": "2"})
    assert job_of(["a"]) == Job(argv=("a",))


@pytest.mark.parametrize(
    ("given", "problem", "hint"),
    [
        ({"cwd": 3}, "cwd: 3 is not a path", "directory"),
        ({"input": "text"}, "input: str must be bytes", "encode"),
        ({"input": 0}, "input: int must be bytes", "Job"),
        ({"env": ["A=1"]}, "env: list is not a mapping", "env="),
        ({"env": {"A": 1}}, "'A': 1 must be name/value strings", ""),
        ({"env": {"A=B": "1"}}, "must be name/value strings", ""),
        ({"shell": True}, "unknown keyword 'shell'", "'sh', '-c'"),
        ({"check": True}, "unknown keyword 'check'", "outcome.ok"),
        ({"text": True}, "unknown keyword 'text'", "decode"),
        ({"capture_output": True}, "unknown keyword 'capture_output'", "outcome.stdout"),
        ({"colour": 1}, "unknown keyword 'colour'", "cwd, input, timeout and env"),
    ],
)
def test_a_bad_one_is_refused_by_name(given: dict[str, Any], problem: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        job_of(["true"], **given)
    assert problem in str(error.value) and hint in error.value.hint


@pytest.mark.parametrize("given", [{"cwd": "/"}, {"input": b""}])
def test_what_a_job_has_already_is_not_replaced_in_silence(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="in the job and as a keyword"):
        job_of(Job(argv=("a",), cwd="/tmp", stdin=b"x"), **given)


@pytest.mark.parametrize("timeout", [0, -1, "soon", True, float("nan"), float("inf"), b"1", 1e300])
def test_what_is_no_time_is_refused(timeout: Any) -> None:
    for make in (lambda: timed(None, timeout), lambda: deadline_of(SandboxPolicy(), timeout, "box")):
        with pytest.raises(UsageError, match=r"^timeout: "):
            make()


def test_a_timeout_is_a_wall_time() -> None:
    assert timed(None, 2).wall_time_s == 2 and timed(SandboxPolicy(), "2m").wall_time_s == 120
    assert timed(None) == SandboxPolicy()
    assert deadline_of(SandboxPolicy(wall_time_s=5), 5, "box") == 5
    with pytest.raises(UsageError, match="6 s is more than the 5 s that the box allows") as error:
        deadline_of(SandboxPolicy(wall_time_s=5), 6, "box")
    assert "wall_time_s" in error.value.hint


@pytest.mark.parametrize("policy", [{}, "hello", 5])
def test_what_is_no_policy_is_refused(policy: Any) -> None:
    with pytest.raises(UsageError, match="is not a SandboxPolicy"):
        run(["true"], policy)


# ---- in sandboxes

Door = Callable[..., Outcome]


def _by_run(level: str) -> Door:
    return lambda argv, **given: run(argv, policy_of(level), **given)


def _in_a_box(level: str) -> Door:
    def door(argv: list[str], **given: Any) -> Outcome:
        with ringfence.open(policy_of(level)) as box:
            return box.run(argv, **given)

    return door


def _in_the_background(level: str) -> Door:
    def door(argv: list[str], **given: Any) -> Outcome:
        with ringfence.open(policy_of(level)) as box:
            return box.start(argv, **given).wait(60)

    return door


@pytest.fixture(params=[_by_run, _in_a_box, _in_the_background])
def door(request: pytest.FixtureRequest, level: str) -> Door:
    made: Door = request.param(level)
    return made


@pytest.mark.system
@pytest.mark.privileges
def test_a_job_gets_what_was_said_and_the_clean_environment(
    door: Door, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET", "the caller's")
    cwd = tmp_path if door.__qualname__.startswith(_by_run.__name__) else Path("/usr")  # which a box shows
    outcome = door(SHOW, cwd=cwd, input=b"fed", env={"COLOUR": "red"})
    assert (outcome.status, outcome.stdout) == (Status.OK, b"%s\nred||home\nfed" % bytes(cwd))


@pytest.mark.system
@pytest.mark.privileges
@pytest.mark.parametrize("job", ["sleep 600", "while :; do echo on; done", "setsid sleep 600 & sleep 600"])
def test_a_timeout_is_an_outcome(door: Door, job: str) -> None:
    begun = time.monotonic()
    outcome = door(["sh", "-c", job], timeout=0.5)
    assert (outcome.status, outcome.returncode) == (Status.TIMEOUT, 124)
    assert "wall_time" in outcome.limits_hit and "0.5 s" in outcome.reason
    assert outcome.enforced["wall_time"].requested == 0.5 and outcome.enforced["wall_time"].applied
    assert 0.5 <= time.monotonic() - begun < 50  # and not the 60 s of the policy


@pytest.mark.system
@pytest.mark.privileges
def test_who_is_done_in_time_ends_well(door: Door) -> None:
    assert door(["sh", "-c", "echo done"], timeout=50).stdout == b"done\n"


@pytest.mark.system
@pytest.mark.privileges
def test_the_timeout_of_one_visit_leaves_the_others_alone() -> None:
    with ringfence.open(policy_of("strict")) as box:
        other = box.start(["sh", "-c", "read line; echo $line"])
        assert box.run(["sleep", "600"], timeout=0.3).status is Status.TIMEOUT
        assert box.run(["echo", "on"]).stdout == b"on\n"
        other.write(b"still here\n")
        assert other.wait(60).stdout == b"still here\n"


@pytest.mark.system
@pytest.mark.parametrize("level", LEVELS)
def test_a_bad_keyword_starts_nothing_and_leaves_the_box_open(level: str) -> None:
    with ringfence.open(policy_of(level)) as box:
        uses: list[Callable[..., object]] = [box.run, box.start]
        for use in uses:
            for given in ({"shell": True}, {"timeout": 10_000}, {"input": "text"}):
                with pytest.raises(UsageError):
                    use(["true"], **given)
        assert isinstance(box, Box) and box.run(["true"]).ok
    with pytest.raises(UsageError, match="unknown keyword"):
        run(["true"], shell=True)  # type: ignore[arg-type]
