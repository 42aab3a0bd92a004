"""A pool whose own processes are killed or stopped goes on, or says why a job did not."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from tests.patience import eventually
from tests.unit.engine.pooled import pid_of, policy_of

from ringfence import Outcome, Pool, Status, run
from ringfence.backends import leader_client
from ringfence.engine import supervision
from ringfence.errors import SetupError
from ringfence.kernel.proc import procfs
from ringfence.roles import spawner, zygote_client
from ringfence.transport import passing

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]


@pytest.fixture
def fresh(level: str) -> Iterator[Pool]:
    """A pool whose helpers may be hurt: the next test gets new ones."""
    with Pool(policy_of(level, wall_time_s=2), warm=2, preload=["fractions"]) as pool:
        assert pool.run_source("0").ok
        yield pool
    zygote_client.close_all()


def _goes_on(pool: Pool) -> list[Outcome]:
    return [pool.run_source("print(1)") for _ in range(5)]


def _zygote_pids() -> list[int]:
    return [pid_of(zygote.pidfd) for zygote in list(zygote_client._standing.values())]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_the_pool_goes_on_when_its_zygotes_are(fresh: Pool, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_client, "_END_WAIT_MS", 1000)
    for pid in filter(lambda pid: pid > 0, _zygote_pids()):
        os.kill(pid, number)
    for outcome in _goes_on(fresh):
        assert outcome.stdout == b"1\n" or _lost(outcome), outcome
    eventually(lambda: fresh.run_source("print(1)").ok)


def _lost(outcome: Outcome) -> bool:
    """Its leader was ended with the zygote, a moment after the job had begun; that is said, and never tried again."""
    return outcome.status is Status.KILLED_KILL and "supervising process" in outcome.reason


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_the_pool_goes_on_when_the_spawner_is(fresh: Pool, number: int) -> None:
    os.kill(spawner.pid(), number)
    assert [outcome.stdout for outcome in _goes_on(fresh)] == [b"1\n"] * 5
    os.kill(spawner.pid(), signal.SIGCONT)


def test_a_stopped_spawner_is_replaced_when_a_zygote_is_needed(level: str) -> None:
    run(["true"])
    os.kill(spawner.pid(), signal.SIGSTOP)
    zygote_client.close_all()
    stopped = spawner.pid()
    with Pool(policy_of(level), warm=1) as pool:
        assert pool.run_source("print(1)").ok and spawner.pid() != stopped


def test_a_sandbox_that_is_killed_while_it_stands_by_is_replaced(fresh: Pool) -> None:
    eventually(lambda: len(fresh._warm) == 2)
    for box in list(fresh._warm._boxes):
        visit = box._waiting  # type: ignore[attr-defined]
        visit.await_ready()
        signal.pidfd_send_signal(visit._leader_pidfd, signal.SIGKILL)
        eventually(lambda visit=visit: pid_of(visit._leader_pidfd) < 0)
    assert [outcome.stdout for outcome in _goes_on(fresh)] == [b"1\n"] * 5


def test_a_job_whose_waiting_process_was_killed_a_moment_ago_gets_another_one(fresh: Pool) -> None:
    """The leader has not said so yet when the job comes."""
    eventually(lambda: len(fresh._warm) == 2)
    for box in list(fresh._warm._boxes):
        visit = box._waiting  # type: ignore[attr-defined]
        visit.await_ready()
        os.close(visit._post)  # as if nobody were at the other end
        visit._post = _nobody()
        box.is_ready = lambda: True  # type: ignore[method-assign]
    assert fresh.run_source("print(1)").stdout == b"1\n"


def test_a_job_gets_a_third_sandbox_when_the_second_came_from_a_dying_zygote(
    fresh: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [SetupError("stand by", "the sandbox ended before it had a job")] * 2
    plain = fresh._run_in

    def fails_twice(*given: object) -> Outcome:
        outcome = plain(*given)  # type: ignore[arg-type]
        if failures:
            raise failures.pop()
        return outcome

    monkeypatch.setattr(fresh, "_run_in", fails_twice)
    assert fresh.run_source("print(1)").stdout == b"1\n"
    failures += [SetupError("stand by", "ended")] * 3
    with pytest.raises(SetupError):
        fresh.run_source("print(1)")


def _nobody() -> int:
    ours, theirs = passing.channel()
    os.close(theirs)
    return ours


def test_a_waiting_process_that_is_stopped_holds_nobody_longer_than_its_deadline(
    fresh: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "_NET_S", 0.5)
    eventually(lambda: len(fresh._warm) == 2)
    for box in list(fresh._warm._boxes):
        visit = box._waiting  # type: ignore[attr-defined]
        visit.await_ready()
        deepest = max(procfs.descendants(pid_of(visit._leader_pidfd)), key=lambda row: row.pid)
        os.kill(deepest.pid, signal.SIGSTOP)
    outcomes = _goes_on(fresh)
    assert [outcome.status for outcome in outcomes[:2]] == [Status.TIMEOUT] * 2 and outcomes[0].reason
    assert [outcome.stdout for outcome in outcomes[2:]] == [b"1\n"] * 3
