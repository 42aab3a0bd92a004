"""Nothing a guest does, and nothing that happens to us, hangs either side or loses a record in silence."""

from __future__ import annotations

import os
import resource
import signal
import struct
import tempfile
import time
from collections.abc import Callable
from typing import Any

import pytest
from tripwire_cage import (
    CLONE_NEWNS,
    MS_PRIVATE,
    MS_REC,
    Cage,
    as_caller,
    check,
    leave,
    libc,
    mount,
    outcome,
    why_not,
)
from tripwire_routes import FOLDER, prepare

from ringfence.kernel.proc.requester import Requester, identify
from ringfence.kernel.recorder import BUDGETS, Budget, Recorder
from ringfence.kernel.tripwire import serve as tripwire
from ringfence.kernel.tripwire.layout import FILE_MODE, Entry, Layout, Veil, lay_out

pytestmark = [pytest.mark.system, pytest.mark.unmeasured]

HIDDEN = FOLDER + b"/secret"
VEIL = lay_out(veils=[Veil(folder=FOLDER, hidden=frozenset((b"secret",)))])
GUESTS = 40


@pytest.fixture(params=["root", "user"])
def caller(request: pytest.FixtureRequest) -> str:
    reason = why_not(request.param)
    if reason:
        pytest.skip(reason)
    return str(request.param)


def spawn(action: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            action()
        finally:
            leave(0)
    return pid


def knock() -> str:
    return outcome(lambda: os.stat(HIDDEN))


def kill_in_mid_call() -> tuple[float, str]:
    told, tell = os.pipe()
    pid = spawn(lambda: (os.write(tell, b"x"), knock()))
    os.read(told, 1)
    time.sleep(0.2)
    os.kill(pid, signal.SIGKILL)
    started = time.monotonic()
    os.waitpid(pid, 0)
    return time.monotonic() - started, knock()


def test_a_process_killed_before_its_request_is_read_is_gone_at_once(caller: str) -> None:
    def scenario() -> Any:
        ran = Cage(VEIL, prepare, kill_in_mid_call, answer_late_s=3).serve()
        return ran.result, ran.recorder.health

    (waited_s, error), health = as_caller(caller, scenario)
    assert (error, health.complete) == ("ENOENT", True)
    assert waited_s < 2
    assert health.total == 1  # the kernel withdrew the other: its process got no answer at all


def test_a_process_killed_while_we_hold_its_request_is_named_rightly_and_gone_with_the_answer(
    caller: str,
) -> None:
    def scenario() -> Any:
        def slow(tid: int, proc: int) -> Requester:
            time.sleep(0.8)
            return identify(tid, proc)

        tripwire.identify = slow  # type: ignore[attr-defined]
        ran = Cage(VEIL, prepare, kill_in_mid_call).serve()
        return ran.result, ran.recorder.health, ran.attempts

    (waited_s, error), health, attempts = as_caller(caller, scenario)
    assert (error, health.total, health.complete) == ("ENOENT", 2, True)
    assert 0.2 < waited_s < 2
    assert attempts[0].pid not in (0, attempts[1].pid)
    assert attempts[0].start_ticks >= attempts[1].start_ticks > 0
    assert attempts[0].comm == attempts[1].comm != ""


def test_a_kill_storm_loses_nothing_and_stops_nothing(caller: str) -> None:
    def knock_for_ever() -> None:
        while True:
            knock()

    def probe() -> str:
        for _ in range(3):
            pids = [spawn(knock_for_ever) for _ in range(GUESTS)]
            time.sleep(0.1)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            for pid in pids:
                os.waitpid(pid, 0)
        return knock()

    def scenario() -> Any:
        ran = Cage(VEIL, prepare, probe).serve()
        return ran.result, ran.recorder.health, ran.attempts[-1].path

    error, health, last = as_caller(caller, scenario)
    assert (error, last) == ("ENOENT", os.fsdecode(HIDDEN))
    assert health.complete and health.total > GUESTS


@pytest.mark.long
def test_a_flood_is_counted_to_the_last_attempt_in_bounded_memory(caller: str) -> None:
    count = 10_000

    def probe() -> None:
        for _ in range(count):
            knock()

    def scenario() -> Any:
        cage = Cage(VEIL, prepare, probe)
        cage.recorder = Recorder(budgets=dict.fromkeys(BUDGETS, Budget(names=10, full=100)))
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        ran = cage.serve()
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
        return ran.recorder.health, ran.recorder.summary, grown_kib

    health, summary, grown_kib = as_caller(caller, scenario)
    assert (health.total, health.kept, health.summarised, health.complete) == (count, 100, count - 100, True)
    assert [(row.operation, row.path, row.count) for row in summary] == [
        ("lookup", os.fsdecode(HIDDEN), count - 100)
    ]
    assert grown_kib < 32 * 1024


def test_when_the_supervisor_is_killed_the_guest_gets_an_error_and_does_not_hang(caller: str) -> None:
    def scenario() -> tuple[bytes, float]:
        told, tell = os.pipe()
        asked, ask = os.pipe()

        def probe() -> None:
            os.write(tell, knock().encode())
            os.read(asked, 1)
            started = time.monotonic()
            error = knock()
            os.write(tell, struct.pack("=d", time.monotonic() - started) + error.encode())

        supervisor = spawn(lambda: Cage(VEIL, prepare, probe).serve())
        assert os.read(told, 100) == b"ENOENT"
        os.kill(supervisor, signal.SIGKILL)
        os.waitpid(supervisor, 0)
        os.write(ask, b"x")
        answer = os.read(told, 100)
        return answer[8:], struct.unpack("=d", answer[:8])[0]

    error, waited_s = as_caller(caller, scenario)
    assert error == b"ENOTCONN"
    assert waited_s < 1


def test_a_request_that_waits_when_the_supervisor_dies_is_answered_too(caller: str) -> None:
    def scenario() -> bytes:
        told, tell = os.pipe()
        waits, go = os.pipe()

        def probe() -> None:
            os.write(tell, b"up")
            os.read(waits, 1)
            os.write(tell, knock().encode())

        supervisor = spawn(lambda: Cage(VEIL, prepare, probe).serve())
        assert os.read(told, 2) == b"up"
        os.kill(supervisor, signal.SIGSTOP)
        os.write(go, b"!")
        time.sleep(0.3)
        os.kill(supervisor, signal.SIGKILL)
        os.waitpid(supervisor, 0)
        return os.read(told, 100)

    assert as_caller(caller, scenario) in (b"ECONNABORTED", b"ENOTCONN")


def test_a_guest_that_is_gone_ends_the_file_system(caller: str) -> None:
    def scenario() -> tuple[bool, int]:
        cage = Cage(VEIL, prepare, lambda: None)
        ran = cage.serve()
        return ran.tripwire.finished, ran.tripwire.lost

    assert as_caller(caller, scenario) == (True, 0)


def test_a_wire_that_is_cut_while_the_guest_lives_is_never_clean() -> None:
    if why_not("root"):
        pytest.skip(why_not("root"))

    def scenario() -> Any:
        check(libc().unshare(CLONE_NEWNS), "unshare")
        mount(b"none", b"/", b"", MS_REC | MS_PRIVATE, b"")
        control = b"/sys/fs/fuse/connections"
        mount(b"none", control, b"fusectl", 0, b"")
        asked, ask = os.pipe()
        told, tell = os.pipe()

        def probe() -> str:
            os.write(tell, b"%d" % os.minor(os.stat(FOLDER).st_dev))
            os.read(asked, 1)
            return knock()

        def cut() -> None:
            with open(control + b"/" + os.read(told, 20) + b"/abort", "wb") as abort:
                abort.write(b"1")
            os.write(ask, b"x")

        cutter = spawn(cut)
        ran = Cage(VEIL, prepare, probe).serve()
        os.waitpid(cutter, 0)
        return ran.result, ran.tripwire.finished, ran.recorder.health

    error, finished, health = as_caller("root", scenario)
    assert error in ("ENOTCONN", "ECONNABORTED") and finished
    assert health.lost == 1 and not health.clean


def _replaced_on_the_host(caller: str, make_layout: Callable[[bytes], Layout]) -> str:
    """The hidden file is replaced from outside while the sandbox runs, as ``passwd`` does with its files."""

    def scenario() -> str:
        with tempfile.TemporaryDirectory(dir="/tmp") as name:
            folder = os.fsencode(name)
            for file in (b"/secret", b"/other"):
                with open(folder + file, "wb") as stream:
                    stream.write(b"old")
            asked, ask = os.pipe()
            told, tell = os.pipe()

            def probe() -> str:
                os.write(tell, b"x")
                os.read(asked, 1)
                return outcome(lambda: os.close(os.open(folder + b"/secret", os.O_RDONLY)))

            replacer = spawn(lambda: (os.read(told, 1), os.rename(folder + b"/other", folder + b"/secret"),
                                      os.write(ask, b"x")))  # fmt: skip
            result = Cage(make_layout(folder), lambda: None, probe).serve().result
            os.waitpid(replacer, 0)
            return str(result)

    return str(as_caller(caller, scenario))


def test_a_veil_holds_when_the_host_replaces_the_hidden_file(caller: str) -> None:
    def veil(folder: bytes) -> Layout:
        visible = (Entry(name=b"other", mode=FILE_MODE),)
        return lay_out(veils=[Veil(folder=folder, hidden=frozenset((b"secret",)), visible=visible)])

    assert _replaced_on_the_host(caller, veil) == "ENOENT"
    assert _replaced_on_the_host(caller, lambda _: lay_out()) == "ok", "the control"
