"""A visit to a container whose engine misbehaves: it is lost, says nonsense, or does not end what it should."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.patience import eventually

from ringfence.backends import container_visit
from ringfence.backends.container_visit import ContainerVisit
from ringfence.backends.facts import Report
from ringfence.container.api import Attached
from ringfence.container.first_process import WORD
from ringfence.errors import SetupError, UnavailableError
from ringfence.model.policy import SandboxPolicy


class Engine:
    """``end``: set when the container has ended; ``fail``: what is raised for whoever waits."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.fail: Exception | None = None
        self.state: dict[str, object] = {"ExitCode": 0}
        self.killed: list[int] = []
        self.used_ns = 0

    def wait(self, _: str, timeout_s: float) -> int | None:
        ended = self.end.wait(timeout_s)
        if self.fail:
            raise self.fail
        return 0 if ended else None

    def kill(self, _: str, signal: int = 9) -> bool:
        self.killed.append(signal)
        if signal == 9:
            self.state = {"ExitCode": 137}
            self.end.set()
        return True

    def inspect(self, _: str) -> dict[str, object]:
        return {"State": self.state}

    def stats(self, _: str) -> dict[str, object]:
        return {"cpu_stats": {"cpu_usage": {"total_usage": self.used_ns}}, "pids_stats": {"current": 2}}


class Started:
    def __init__(self, has_word: bool = False, **policy: object) -> None:
        self.engine, self.removed = Engine(), 0
        self.theirs, ours = socket.socketpair()
        self.input, self.output, self.errors = os.pipe(), os.pipe(), os.pipe()
        self.visit = ContainerVisit(
            self.engine, "c" * 64, "name", Attached(ours), (self.input[0], self.output[1], self.errors[1]),  # type: ignore[arg-type]
            SandboxPolicy().with_changes(**policy), self._remove, has_word=has_word,
        )  # fmt: skip

    def _remove(self, container: str, name: str) -> None:
        assert (container, name) == ("c" * 64, "name")
        self.removed += 1

    def report(self) -> Report:
        return eventually(self.visit.receive)  # type: ignore[return-value]

    def stop(self) -> None:
        self.engine.end.set()
        self.theirs.close()
        self.visit.close()
        assert self.removed == 1
        for descriptor in (*self.input, *self.output, *self.errors):
            os.close(descriptor)


@pytest.fixture
def start() -> Iterator[Callable[..., Started]]:
    made: list[Started] = []

    def make(has_word: bool = False, **policy: object) -> Started:
        made.append(Started(has_word, **policy))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def test_a_lost_engine_is_a_lost_job(start: Callable[..., Started]) -> None:
    started = start()
    started.engine.fail = UnavailableError("gone")
    started.engine.end.set()
    assert started.report().leader_lost


def test_what_is_no_frame_ends_the_job(start: Callable[..., Started]) -> None:
    started = start()
    started.theirs.send(b"HTTP/1.1 200 nonsense")
    assert started.report().cause == "asked" and started.engine.killed == [9]


@pytest.mark.parametrize(("state", "exit_code", "signal", "ooms"), [
    ({"ExitCode": 3}, 3, None, 0), ({"ExitCode": 139}, None, 11, 0), ({"ExitCode": 137, "OOMKilled": True}, None, 9, 1),
    ({"ExitCode": 255}, 255, None, 0), ({}, 255, None, 0), ({"ExitCode": "0"}, 255, None, 0),
    ({"ExitCode": 0, "OOMKilled": True}, 0, None, 1),
])  # fmt: skip
def test_the_engines_facts_become_the_report(
    start: Callable[..., Started], state: dict[str, object], exit_code: int | None, signal: int | None, ooms: int
) -> None:
    started = start()
    started.engine.state = state
    started.theirs.shutdown(socket.SHUT_RDWR)
    started.engine.end.set()
    report = started.report()
    assert (report.exit_code, report.signal, report.cgroup_oom_kills, report.cause) == (exit_code, signal, ooms, "")


@pytest.mark.parametrize(("said", "code", "exit_code", "signal"), [
    (WORD, 139, 139, None), (b"x" + WORD, 129, 129, None), (WORD, 0, 0, None), (WORD[:-1], 139, None, 11),
    (WORD + b"x", 139, None, 11),
])  # fmt: skip
def test_the_last_word_of_its_first_process_tells_an_exit(
    start: Callable[..., Started], said: bytes, code: int, exit_code: int | None, signal: int | None
) -> None:
    started = start(has_word=True)
    started.engine.state = {"ExitCode": code}
    started.theirs.sendall(b"\2\0\0\0" + len(said).to_bytes(4, "big") + said)
    started.theirs.shutdown(socket.SHUT_RDWR)
    started.engine.end.set()
    report = started.report()
    assert (report.exit_code, report.signal) == (exit_code, signal)


def test_a_deadline_and_processor_time_end_it(start: Callable[..., Started]) -> None:
    late = start(wall_time_s=0.05)
    late.theirs.shutdown(socket.SHUT_RDWR)
    assert late.report().cause == "wall_time"
    busy = start(cpu_time_s=1)
    busy.engine.used_ns = 3 * 10**9
    eventually(lambda: busy.engine.killed)
    busy.theirs.shutdown(socket.SHUT_RDWR)
    report = busy.report()
    assert (report.cause, report.measured) == ("cpu_time", 3000)


def test_an_unread_flood_does_not_hold_the_end(start: Callable[..., Started], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_visit, "_DRAIN_S", 0.3)
    started = start()
    flood = threading.Thread(target=_flood, args=(started.theirs,), daemon=True)
    flood.start()
    assert os.read(started.output[0], 10)
    started.visit.signal(15)
    assert started.engine.killed == [15]
    started.visit.close()
    assert started.visit.filenos() == () and started.removed == 1


def _flood(connection: socket.socket) -> None:
    try:
        while True:  # a pause between: what is held is the end, and not the processor
            connection.sendall(b"\1\0\0\0\0\1\0\0" + bytes(1 << 16))
            time.sleep(0.001)
    except OSError:
        return


def test_a_signal_that_the_engine_refuses_is_no_error(
    start: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = start()

    def refuse(*_: object) -> bool:
        raise SetupError("kill the container", "no")

    monkeypatch.setattr(started.engine, "kill", refuse)
    started.visit.signal(15)
    started.visit.abandon()
    assert started.report().leader_lost
