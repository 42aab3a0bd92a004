"""The spawner: one per process, restarted when it dies, not shared by forked copies, and it leaks nothing."""

from __future__ import annotations

import _socket
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.no_spawner import end_spawner

from ringfence.engine.run import run
from ringfence.errors import SetupError
from ringfence.model.outcome import Status
from ringfence.model.policy import SandboxPolicy
from ringfence.roles import fork_server, spawner
from ringfence.transport import passing

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]


def descriptors() -> list[str]:
    return [os.readlink(f"/dev/fd/{name}") for name in os.listdir("/dev/fd") if os.path.lexists(f"/dev/fd/{name}")]


@pytest.fixture
def fresh():
    end_spawner()
    yield
    end_spawner()


def current() -> spawner.Spawner:
    assert spawner._current is not None
    return spawner._current


def test_one_spawner_serves_all_jobs_of_a_process(fresh) -> None:
    run(["true"])
    first = current().pid
    run(["true"])
    assert current().pid == first


def test_a_spawner_that_was_killed_is_replaced(fresh) -> None:
    run(["true"])
    first = current().pid
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert run(["echo", "again"]).stdout == b"again\n"
    assert current().pid != first


def test_a_spawner_that_dies_under_our_hands_is_replaced(fresh, monkeypatch) -> None:
    """Dead, but not yet seen to be: the first message fails, the second goes to a new one."""
    run(["true"])
    first = current()
    os.kill(first.pid, signal.SIGKILL)
    os.waitpid(first.pid, 0)
    monkeypatch.setattr(first, "usable", lambda: True)
    assert run(["echo", "again"]).stdout == b"again\n"
    assert current() is not first


def test_a_spawner_that_cannot_start_is_a_set_up_error(fresh, monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    before = len(descriptors())
    with pytest.raises(SetupError, match="start the spawner"):
        run(["true"])
    assert len(descriptors()) == before


def test_a_leader_that_ends_before_the_job_began_is_our_failure_not_the_jobs(fresh, monkeypatch) -> None:
    monkeypatch.setattr(spawner, "_BOOT", "import os; os._exit(3)  # {path!r} {door}")
    before = len(descriptors())
    with pytest.raises(SetupError):
        run(["true"])
    spawner.shutdown()
    assert len(descriptors()) <= before


def test_a_forked_copy_of_the_caller_gets_a_spawner_of_its_own(fresh) -> None:
    run(["true"])
    mine = current().pid
    child = os.fork()
    if child == 0:
        try:
            same = spawner._current is not None
            fine = run(["true"]).ok and current().pid != mine
            spawner.shutdown()
            os._exit(0 if fine and not same else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run(["true"]).ok and current().pid == mine


def test_a_copy_forked_while_the_lock_is_held_does_not_wait_for_ever(fresh) -> None:
    with spawner._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            try:
                os._exit(0 if run(["true"]).ok else 1)
            finally:
                os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_fifty_runs_leave_no_descriptor_thread_or_process(fresh) -> None:
    run(["true"])
    before = sorted(descriptors()), threading.active_count()
    for _ in range(50):
        assert run(["true"]).ok
    assert (sorted(descriptors()), threading.active_count()) == before
    below = Path(f"/proc/{current().pid}/task/{current().pid}/children")
    until = time.monotonic() + 30
    while below.read_text() and time.monotonic() < until:
        time.sleep(0.01)
    assert below.read_text() == ""


def test_runs_that_cannot_start_leave_no_descriptor_either(fresh) -> None:
    run(["true"])
    before = sorted(descriptors())
    for _ in range(10):
        with pytest.raises(SetupError, match="exec"):
            run(["/no/such/program"])
    assert sorted(descriptors()) == before


def test_jobs_of_many_threads_do_not_get_mixed_up(fresh) -> None:
    said: dict[int, bytes] = {}

    def one(number: int) -> None:
        said[number] = run(["echo", str(number)]).stdout

    threads = [threading.Thread(target=one, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == {number: b"%d\n" % number for number in range(20)}


def test_the_spawner_knows_nothing_of_the_callers_environment(fresh, monkeypatch) -> None:
    monkeypatch.setenv("CALLERS_SECRET", "hunter2")
    run(["true"])
    pid = current().pid
    own = subprocess.run(["cat", "/proc/self/environ"], capture_output=True, check=True)
    assert b"hunter2" in own.stdout  # the control: a plain child has it
    try:
        assert Path(f"/proc/{pid}/environ").read_bytes().strip(b"\0") == b"LD_BIND_NOW=1"
    except PermissionError:
        assert os.geteuid() != 0  # its memory is hidden from its own user, too
    assert b"hunter2" not in run(["sh", "-c", f"cat /proc/{pid}/environ /proc/$PPID/environ; env"]).stdout


def test_the_spawner_ends_with_its_owner(fresh) -> None:
    code = "import os, signal; from ringfence import run; from ringfence.roles import spawner; run(['true']);"
    code += "print(spawner._current.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    give_up = time.monotonic() + 5
    while is_spawner(pid) and time.monotonic() < give_up:
        time.sleep(0.01)
    assert not is_spawner(pid)


_BLOCKS_ALL = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
import ringfence
from ringfence.roles import spawner
policy = ringfence.SandboxPolicy(isolation={isolation!r}, wall_time_s=10)
with ringfence.open(policy) as box:
    jobs = ringfence.run(["sh", "-c", "sleep 0.1 & echo"], policy), box.run(["true"])
    print(spawner._current.pid, *(job.status for job in jobs))
"""


@pytest.mark.parametrize("isolation", ["process", "strict"])
def test_signals_that_the_owner_has_blocked_are_heard_by_all_that_lead(isolation) -> None:
    """A mask outlives fork and exec. With SIGCHLD blocked visits ended late and the spawner never."""
    command = [sys.executable, "-c", _BLOCKS_ALL.format(isolation=isolation)]
    pid, *statuses = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert statuses == ["OK", "OK"]
    assert _within(10, lambda: not is_spawner(int(pid)))


def is_spawner(pid: int) -> bool:
    try:
        return b"forker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_a_stopped_spawner_is_given_up_and_replaced(fresh, monkeypatch) -> None:
    """A job of the same user can stop it; that must cost the next caller a bounded time, once."""
    from ringfence.engine import supervision

    run(["true"])
    stopped = current()
    os.kill(stopped.pid, signal.SIGSTOP)
    monkeypatch.setattr(supervision, "_NET_S", 0.2)
    with pytest.raises(SetupError, match="before the job began"):
        run(["true"], SandboxPolicy(wall_time_s=0.1))
    assert run(["true"]).status is Status.OK
    assert current() is not stopped
    with pytest.raises(ChildProcessError):
        os.waitpid(stopped.pid, os.WNOHANG)  # it has ended and was collected


@pytest.fixture
def forker_and_door():
    ours, theirs = passing.channel()
    yield fork_server.ForkServer(theirs), ours
    os.close(ours)
    os.close(theirs)


def test_descriptors_that_did_not_all_arrive_start_no_leader(forker_and_door, monkeypatch) -> None:
    loop, door = forker_and_door
    before = len(descriptors())
    link = socket.socket(fileno=os.dup(door))
    socket.send_fds(link, [passing.LEADER + bytes((6,))], [0, 0, 0, 0, 0])
    link.close()
    monkeypatch.setattr(fork_server, "fork_with", lambda *_: pytest.fail("a leader was forked"))
    assert loop._receive() is True and not loop.leaders and len(descriptors()) == before


def test_no_room_for_a_process_does_not_end_the_spawner(forker_and_door, monkeypatch) -> None:
    def full() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    loop, door = forker_and_door
    monkeypatch.setattr(os, "fork", full)
    before = len(descriptors())
    passing.send(door, passing.LEADER, [0, 0, 0, 0])
    assert loop._receive() is True and not loop.leaders and len(descriptors()) == before
    with pytest.raises(SetupError, match="fork the spawner"):
        spawner.Spawner.forked()


def test_a_door_that_closes_ends_the_loop() -> None:
    ours, theirs = passing.channel()
    os.close(ours)
    assert fork_server.ForkServer(theirs)._receive() is False
    os.close(theirs)


def test_sending_waits_for_room_and_not_for_ever(fresh, monkeypatch) -> None:
    class Full(_socket.socket):
        def sendmsg(self, *_: object) -> int:
            tries.append(1)
            raise OSError(errno.ETOOMANYREFS, "Too many references")

    tries: list[int] = []
    monkeypatch.setattr(passing, "_socket", SimpleNamespace(**vars(_socket) | {"socket": Full}))
    monkeypatch.setattr(passing, "_BUSY_WAIT_S", 0.05)
    with pytest.raises(SetupError, match="reach the spawner"):
        run(["true"])
    assert len(tries) > 4


def test_a_spawner_with_a_zygote_can_be_shut_down(fresh):
    """It waits for its children, and a zygote stands until its door is closed."""
    assert run(["true"], SandboxPolicy(isolation="strict")).rc == 0
    ending = threading.Thread(target=spawner.shutdown, daemon=True)
    ending.start()
    ending.join(60)
    assert not ending.is_alive()


def test_no_door_is_ever_a_standard_stream() -> None:
    """A daemon may have closed its own, and give a job «its standard input» all the same."""
    source = "import os; os.close(0); os.close(2); from ringfence.transport import passing; print(*passing.channel())"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert all(int(number) > 2 for number in done.stdout.split())
    assert len(done.stdout.split()) == 2


_BREAKS = """
import os
from ringfence.roles.loop import Loop
def turn(self, whole=Loop.turn):
    whole(self)
    if os.path.exists({began!r}):
        raise OverflowError("of a test")
Loop.turn = turn
"""


@pytest.mark.parametrize("isolation", ["process", "strict"])
def test_a_leader_that_breaks_says_why_and_nothing_of_its_job_lives_on(fresh, isolation, tmp_path, monkeypatch) -> None:
    began, code = tmp_path / "began", tmp_path / "breaks.py"
    code.write_text(_BREAKS.format(began=str(began)))
    boot = spawner._BOOT.replace("from ringfence", f"exec(open({str(code)!r}).read()); from ringfence")
    monkeypatch.setattr(spawner, "_BOOT", boot)
    # The control: until then it leads.
    policy = SandboxPolicy(isolation=isolation, wall_time_s=30, writable_paths=[str(tmp_path)])
    assert run(["sh", "-c", "exit 3"], policy).rc == 3
    seconds = f"4242.{os.getpid()}"
    script = f"touch {began}; sleep {seconds} & sleep {seconds}"
    with pytest.raises(SetupError, match="OverflowError: of a test"):
        run(["sh", "-c", script], policy)
    assert _within(10, lambda: not _sleeping(seconds.encode()))


def _sleeping(seconds: bytes) -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and seconds in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(folder.name)
        except OSError:
            pass
    return found


def _within(seconds: float, condition) -> bool:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return bool(condition())
