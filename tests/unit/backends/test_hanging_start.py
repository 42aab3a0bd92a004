"""A start that hangs is given up alone: what was forked by the same zygote or spawner goes on, and so does that."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.patience import eventually

import ringfence
from ringfence import SandboxPolicy, SetupError, run
from ringfence.backends import leader_client
from ringfence.backends.leader_client import LeaderClient
from ringfence.backends.leader_sources import SPAWNER, SpawnerSource, ZygoteSource
from ringfence.engine.box import Box
from ringfence.kernel.proc import procfs
from ringfence.roles import fork_server, spawner, zygote_client
from ringfence.transport import passing

pytestmark = [pytest.mark.system, pytest.mark.privileges]

AT_ONCE = 50


class Silent(LeaderClient):
    """Its leader is forked and hears nothing any more, so it waits for its request for ever."""

    def _send(self, data: bytes) -> None:
        pass


@pytest.fixture
def boxes() -> Iterator[list[Box]]:
    """Two from one zygote; where something was mounted on the host meanwhile, the second has another."""
    policy = SandboxPolicy(isolation="strict", wall_time_s=60)
    while True:
        with ringfence.open(policy) as one, ringfence.open(policy) as other:
            if _zygote_of(one) is _zygote_of(other):
                yield [one, other]
                return


def _zygote_of(box: Box) -> zygote_client.ZygoteClient:
    zygote = box._box._supervisor.source._zygote  # type: ignore[attr-defined]
    assert isinstance(zygote, zygote_client.ZygoteClient)
    return zygote


def _hang(by: ZygoteSource | SpawnerSource) -> None:
    visit = Silent({"standby": True}, (), by)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SetupError, match="not ready after"):
        patch.setattr(leader_client, "_START_WAIT_S", 0.2)
        patch.setattr(leader_client, "_LOOK_MS", 50)
        visit.await_ready()
    visit.close()


def test_a_start_that_hangs_takes_no_other_box_along(boxes: list[Box]) -> None:
    zygote, working = _zygote_of(boxes[0]), boxes[1].start(["sleep", "600"])
    assert _zygote_of(boxes[1]) is zygote
    leaders = eventually(lambda: working._visit.leader and set(procfs.children(zygote.pid)))  # type: ignore[union-attr]
    _hang(boxes[0]._box._supervisor.source)  # type: ignore[attr-defined]
    eventually(lambda: set(procfs.children(zygote.pid)) <= leaders)
    assert working._visit.leader in procfs.children(zygote.pid) and not working.done  # type: ignore[union-attr]
    assert [box.run(["echo", "on"]).stdout for box in boxes] == [b"on\n"] * 2
    assert _zygote_of(boxes[0]) is zygote


def test_a_start_that_hangs_does_not_end_the_spawner() -> None:
    run(["true"])
    before = spawner.pid()
    leaders = set(procfs.children(before))
    _hang(SPAWNER)
    eventually(lambda: set(procfs.children(before)) <= leaders)
    assert run(["true"]).ok and spawner.pid() == before


def test_a_zygote_that_is_stopped_is_ended_and_the_start_fails_soon(boxes: list[Box]) -> None:
    zygote = _zygote_of(boxes[0])
    os.kill(zygote.pid, signal.SIGSTOP)
    _hang(boxes[0]._box._supervisor.source)  # type: ignore[attr-defined]
    eventually(lambda: procfs.stat(zygote.pid) is None)
    with ringfence.open(boxes[0].policy) as new:
        assert new.run(["true"]).ok and _zygote_of(new) is not zygote


def _forker_that(begins: Callable[[], None]) -> tuple[int, int]:
    """A forker in a process of its own: the way to it, and its pid."""
    ours, theirs = passing.channel()
    pid = os.fork()
    if pid == 0:
        try:
            begins()
            os.close(ours)
            fork_server.ForkServer(theirs).serve()
        finally:
            os._exit(0)
    os.close(theirs)
    return ours, pid


def test_a_forker_that_is_only_busy_is_waited_for_and_ends_the_one_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawner, "_LOOK_MS", 20)
    gate, opened = os.pipe()
    door, pid = _forker_that(lambda: os.close(opened) or os.read(gate, 1))  # type: ignore[func-returns-value]
    pipes = [(os.pipe(), os.pipe()) for _ in range(2)]  # commands and reports of two leaders
    for commands, reports in pipes:
        passing.send(door, passing.LEADER, [commands[0], reports[1], commands[0], commands[0]])
        os.close(reports[1])
    threading.Timer(0.3, os.close, (opened,)).start()
    assert spawner.end_leader(door, pid, pipes[0][1][0])
    assert os.read(pipes[0][1][0], 1) == b""  # its end
    assert not _readable(pipes[1][1][0]), "the other one goes on"
    os.close(door)
    for commands, reports in pipes:
        for descriptor in (*commands, reports[0]):
            os.close(descriptor)
    os.close(gate)
    assert os.waitpid(pid, 0)[1] == 0


def _readable(descriptor: int) -> bool:
    from ringfence.transport import wire

    return wire.is_readable(descriptor, 0.2)


def test_a_forker_that_does_not_answer_is_told_from_one_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawner, "_ANSWER_WAIT_S", 0.2)
    monkeypatch.setattr(spawner, "_LOOK_MS", 20)
    door, pid = _forker_that(lambda: time.sleep(600))
    assert not spawner.end_leader(door, pid, 0)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert spawner.end_leader(door, pid, 0), "one that is gone has nobody left to end"
    os.close(door)


class Impatient(Silent):
    """Is given up as soon as it is waited for."""

    def may_begin(self) -> bool:
        return False


def _give_up(box: Box) -> None:
    visit = Impatient({"standby": True}, (), box._box._supervisor.source)  # type: ignore[attr-defined]
    with pytest.raises(SetupError):
        visit.await_ready()
    visit.close()


@pytest.mark.usefixtures("unmeasured_spawner")
def test_boxes_that_are_opened_at_once_all_open_while_one_hangs() -> None:
    policy = SandboxPolicy(isolation="strict", wall_time_s=60)
    said: list[bytes] = []

    def visit() -> None:
        with ringfence.open(policy) as box:
            said.append(box.run(["echo", "here"]).stdout)

    with ringfence.open(policy) as first:
        threads = [threading.Thread(target=visit) for _ in range(AT_ONCE)]
        threads.insert(AT_ONCE // 2, threading.Thread(target=_give_up, args=(first,)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert first.run(["true"]).ok
    assert said == [b"here\n"] * AT_ONCE


def test_no_descriptor_of_a_start_that_was_given_up_is_left(boxes: list[Box]) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    _hang(boxes[0]._box._supervisor.source)  # type: ignore[attr-defined]
    assert sorted(os.listdir("/proc/self/fd")) == before
