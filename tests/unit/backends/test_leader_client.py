"""The caller's end of a visit: garbled reports, requests that cannot be sent, and no leak in any case."""

from __future__ import annotations

import os
import threading
import time

import pytest

from ringfence.backends import leader_client, process
from ringfence.backends.leader_client import LeaderClient
from ringfence.backends.leader_sources import SPAWNER
from ringfence.engine.run import refuse, run
from ringfence.errors import SetupError, UnavailableError
from ringfence.model.policy import SandboxPolicy
from ringfence.roles import spawner
from ringfence.transport import wire

pytestmark = [pytest.mark.system, pytest.mark.privileges]


@pytest.fixture
def balanced():
    run(["true"])
    before = sorted(os.listdir("/dev/fd"))
    yield
    assert sorted(os.listdir("/dev/fd")) == before


@pytest.fixture
def leader(balanced, monkeypatch):
    """A visit whose leader is this test: ``say`` plays it."""
    ends: list[int] = []

    def keep(descriptors: list[int], _: bytes) -> None:
        ends.extend(os.dup(place) for place in descriptors[:2])

    monkeypatch.setattr(spawner, "fork_leader", keep)
    monkeypatch.setattr(leader_client, "_END_WAIT_MS", 50)
    monkeypatch.setattr(leader_client, "_KILL_WAIT_MS", 50)
    monkeypatch.setattr(spawner, "give_up", lambda reports: None)
    visit = LeaderClient({"plan": [], "limits": {}, "scratch": ""}, (), SPAWNER)
    yield visit, lambda data: os.write(ends[1], data), lambda: os.close(ends.pop(1))
    visit.close()
    for place in ends:
        os.close(place)


NO_ONE = (1 << 22) + 5
NOTHING = dict.fromkeys(wire.REPORT_FIELDS, 0)


@pytest.mark.parametrize(
    "garbage",
    (
        b"X" * 100,
        wire.ended_frame(NOTHING | {"cause": 99}),
        wire.ended_frame(NOTHING | {"wait_status": 2**40}),
        wire.ended_frame(NOTHING | {"survivors": -5}),
        wire.frame(wire.ENDED, b"short"),
        wire.frame(wire.FAILED, "exec\0²\0x".encode()),
        wire.frame(wire.STARTED, b""),
    ),
)
def test_what_no_honest_leader_says_is_a_lost_leader_never_an_exception(leader, garbage: bytes) -> None:
    visit, say, _ = leader
    say(wire.started_frame(NO_ONE) + garbage)
    report = visit.receive()
    assert report is not None and report.leader_lost and report.exit_code is None


def test_a_leader_that_ends_without_a_word_is_lost_once_it_has_begun(leader) -> None:
    visit, say, end = leader
    assert visit.receive() is None
    say(wire.started_frame(NO_ONE))
    assert visit.receive() is None
    end()
    assert visit.receive().leader_lost


def test_a_leader_that_ends_before_it_has_begun_is_a_set_up_error(leader) -> None:
    visit, _, end = leader
    end()
    with pytest.raises(SetupError, match="before the job began"):
        visit.receive()


@pytest.mark.parametrize(
    ("status", "code", "number"), ((0, 0, None), (3 << 8, 3, None), (9, None, 9), (0x8B, None, 11), (-1, None, 9))
)
def test_a_wait_status_becomes_an_exit_code_or_a_signal(leader, status, code, number) -> None:
    visit, say, _ = leader
    say(wire.started_frame(NO_ONE) + wire.ended_frame(NOTHING | {"wait_status": status, "cause": 1}))
    report = visit.receive()
    assert (report.exit_code, report.signal, report.cause) == (code, number, "wall_time")
    assert visit.receive() == report  # who asks later hears the same, also while the leader is still there


def test_closing_waits_until_the_leader_has_let_go(leader, monkeypatch) -> None:
    """Its tree is gone then, and the directory can be removed."""
    visit, _, end = leader
    monkeypatch.setattr(leader_client, "_END_WAIT_MS", 5000)
    gone: list[float] = []

    def let_go() -> None:
        gone.append(time.monotonic())
        end()

    threading.Timer(0.1, let_go).start()
    visit.close()
    assert gone and time.monotonic() - gone[0] < 2


def test_a_failed_step_names_itself_and_what_to_do(leader) -> None:
    visit, say, _ = leader
    say(wire.started_frame(NO_ONE) + wire.failed_frame("exec", 13, "Permission denied: x"))
    with pytest.raises(SetupError, match="exec: Permission denied") as caught:
        visit.receive()
    assert "executable" in caught.value.hint


def test_a_request_that_cannot_be_sent_starts_nothing(balanced, monkeypatch) -> None:
    monkeypatch.setattr(spawner, "fork_leader", lambda *_: pytest.fail("a leader was forked"))
    with pytest.raises(ValueError):
        LeaderClient({"plan": object()}, (), SPAWNER)


@pytest.mark.parametrize("good_calls", (0, 1))
def test_running_out_of_descriptors_leaves_none_open(balanced, monkeypatch, good_calls: int) -> None:
    pipe, calls = os.pipe, []

    def scarce() -> tuple[int, int]:
        calls.append(1)
        if len(calls) > good_calls:
            raise OSError(24, "Too many open files")
        return pipe()

    monkeypatch.setattr(os, "pipe", scarce)
    with pytest.raises(SetupError, match="Too many open files"):
        LeaderClient({}, (), SPAWNER)


def test_what_the_host_cannot_hold_is_named_with_its_fix() -> None:
    policy = SandboxPolicy(enforce_network=True, cpu_share=0.5, allow_partial=True)
    lacks = process.ProcessBackend().lacks(policy)
    assert {lack.capability for lack in lacks} == {"network", "cpu_share"} and all(lack.fix for lack in lacks)
    box = process.ProcessBackend().open(policy)
    assert not box.enforced["network"].applied and box.enforced["memory"].applied
    assert set(box.enforced) == set(policy.requested())
    box.close()


def test_a_refusal_names_the_level_where_that_is_the_reason_and_what_was_asked_for() -> None:
    """The host could do it at another level; and nobody has written the name of a capability."""
    with pytest.raises(UnavailableError) as refused:
        refuse(process.ProcessBackend(), SandboxPolicy(io_bytes_per_s=2**20))
    assert str(refused.value) == (
        "isolation process can't enforce this policy: "
        "io_bytes_per_s (--io) needs io.max of a control group, which this level does not set"
    )
    assert refused.value.fixes[0] == "io_bytes_per_s: use isolation strict" and refused.value.missing == ("io",)


class _Many:
    """Who leads many, and hears nobody any more."""

    led_together = True

    def __init__(self) -> None:
        self.held: list[int] = []
        self.done: list[str] = []

    def fork_leader(self, descriptors: list[int], message: bytes = b"") -> None:
        self.held = [os.dup(descriptor) for descriptor in descriptors]

    def pid(self) -> int:
        return os.getpid()

    def give_up(self, reports: int) -> None:
        self.done.append("is asked whether it answers")

    def kill(self) -> None:
        self.done.append("is killed")


def test_who_leads_many_and_ends_one_not_though_asked_is_looked_at(balanced, monkeypatch) -> None:
    """Else a pool would give it one job after the other."""
    monkeypatch.setattr(leader_client, "_END_WAIT_MS", 1)
    monkeypatch.setattr(leader_client, "_KILL_WAIT_MS", 1)
    source = _Many()
    visit = LeaderClient({"draft": 1, "groups": {"cgroups": []}, "standby": True}, (), source)
    visit.begun = True
    visit.abandon()
    assert os.read(source.held[0], 16) == bytes((9,)) and source.done == []
    visit.abandon()
    assert source.done == ["is asked whether it answers"]
    visit.close()
    for descriptor in source.held:
        os.close(descriptor)


class HeardElsewhere(LeaderClient):
    """Its leader leaves while it is asked, and another thread hears that and hangs up."""

    def __init__(self, *, leaves: bool) -> None:
        self._leaves, self._pages_heard, self.has_left = leaves, 0, False

    def _send(self, message: bytes) -> None:
        pass

    @property
    def is_over(self) -> bool:  # type: ignore[override]
        self.has_left = self._leaves
        return True


@pytest.mark.parametrize("leaves", [True, False])
def test_a_leader_that_left_in_another_threads_hearing_has_said_all(leaves: bool) -> None:
    assert HeardElsewhere(leaves=leaves).ask(1.0) is leaves
