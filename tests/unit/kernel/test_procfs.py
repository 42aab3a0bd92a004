"""The process tree from /proc: complete, exact, and never the wrong process."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time

import pytest
from tests.escape.raw_calls import WITHOUT_ITS_FIRST_THREAD

from ringfence.kernel import syscalls
from ringfence.kernel.proc import procfs

pytestmark = [
    pytest.mark.system,
    pytest.mark.privileges,
    pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc elsewhere"),
]


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_a_process_is_found_with_what_it_uses(sleeper) -> None:
    row = procfs.stat(sleeper.pid)
    assert row is not None and row.pid == sleeper.pid and row.threads == 1 and not row.zombie
    assert row.rss_bytes >= 0 and row.start > 0
    assert sleeper.pid in procfs.children(os.getpid())
    assert sleeper.pid in {below.pid for below in procfs.descendants(os.getpid())}


@pytest.mark.parametrize("name", [b"VmHWM:\t1", b"VmHWM:\tx", b"\rVmHWM:\tx"])
def test_no_name_of_a_process_says_how_much_memory_it_has(name: bytes) -> None:
    code = f"import ctypes, sys; ctypes.CDLL(None).prctl(15, {name!r}); print(1, flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-I", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline()
    assert procfs.usage(process.pid)[2] > 1 << 20
    process.communicate()


def test_a_process_that_is_not_there_is_none() -> None:
    assert procfs.stat(1 << 22) is None and procfs.children(1 << 22) == [] and procfs.descendants(1 << 22) == []
    assert procfs.written_bytes(1 << 22) == 0


@pytest.mark.parametrize("name", (b") R 1 1", b"a b) Z (c", b"\xff\n"))
def test_a_name_made_to_mislead_does_not_mislead(name: bytes) -> None:
    code = f"open('/proc/self/comm', 'wb').write({name!r}); import time; print(flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline()
    row = procfs.stat(child.pid)
    assert row is not None and row.threads == 1 and not row.zombie and row.rss_bytes > 2**20
    child.kill()
    child.communicate()


def test_more_children_than_fit_into_one_read_are_all_found() -> None:
    """The kernel hands out a page of numbers at a time: about seven hundred children."""
    code = (
        "import os, time\n"
        "for _ in range(1200):\n"
        "    if os.fork() == 0:\n        time.sleep(60); os._exit(0)\n"
        "print(flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-S", "-c", code]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert parent.stdout is not None and parent.stdout.readline()
    found = procfs.descendants(parent.pid)
    os.killpg(parent.pid, signal.SIGKILL)
    parent.communicate()
    assert len({row.pid for row in found}) == 1200


def test_work_done_in_children_that_ended_counts() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    code = f"import subprocess, sys, time; subprocess.run([sys.executable, '-S', '-c', {burn!r}]);"
    code += "print(flush=True); time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None and parent.stdout.readline()
    row = procfs.stat(parent.pid)
    parent.kill()
    parent.communicate()
    assert row is not None and row.cpu_ticks / procfs.TICKS_PER_S >= 0.28


def test_the_dead_that_nobody_waited_for_are_told() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    row = procfs.stat(child.pid)
    assert row is not None and row.zombie and row.rss_bytes == 0
    child.wait()


def test_one_whose_first_thread_has_ended_lives_and_is_asked_by_another(tmp_path) -> None:
    code = (
        "import ctypes, os, sys, time\n" + WITHOUT_ITS_FIRST_THREAD +
        "mass = b'x' * (40 << 20)\n"
        "def work():\n"
        " open('f', 'wb').write(mass); print(flush=True); time.sleep(60)\n"
        "go_on_without_first(work)\n"
    )  # fmt: skip
    child = subprocess.Popen([sys.executable, "-c", code, "named"], stdout=subprocess.PIPE, cwd=tmp_path)
    assert child.stdout is not None and child.stdout.readline()
    row = procfs.stat(child.pid)
    assert row is not None and not row.zombie and row.threads == 2 and row.asked in procfs.threads(child.pid)
    assert row.asked != row.pid and row.rss_bytes > 40 << 20 and procfs.proportional_bytes(row) > 40 << 20
    written = procfs.written_bytes(row.asked)
    assert written is not None and (written >= 40 << 20 or os.stat(tmp_path).st_dev == os.stat("/dev/shm").st_dev)
    assert any(pid == child.pid and line.endswith(" named") for pid, line in procfs.programs_below(os.getpid()))
    procfs.kill(row, signal.SIGKILL)
    child.communicate()


def test_a_signal_reaches_exactly_the_process_that_was_seen(sleeper) -> None:
    row = procfs.stat(sleeper.pid)
    assert row is not None
    row.start -= 1  # as if the pid had been given to another process since
    procfs.kill(row, signal.SIGKILL)
    time.sleep(0.05)
    assert sleeper.poll() is None
    row.start += 1
    procfs.kill(row, signal.SIGKILL)
    assert sleeper.wait(60) == -signal.SIGKILL
    procfs.kill(row, signal.SIGKILL)  # gone: no error


def test_memory_is_shared_out_and_never_taken_for_nothing(sleeper, monkeypatch) -> None:
    own = procfs.stat(os.getpid())
    assert own is not None and 0 < procfs.proportional_bytes(own) <= own.rss_bytes * 1.5

    def unreadable(_: str) -> bytes:
        raise PermissionError

    monkeypatch.setattr(procfs, "_read", unreadable)
    assert procfs.proportional_bytes(own) == own.rss_bytes
    assert (procfs.oom_kills(), procfs.task_count(), procfs.stat(1)) == (0, 0, None)


def test_bytes_written_are_counted_for_oneself_and_others(tmp_path) -> None:
    io = procfs.open_own_io()
    before = procfs.own_written_bytes(io), procfs.written_bytes(os.getpid())
    with open(tmp_path / "f", "wb") as file:
        file.write(os.urandom(2**20))
        os.fsync(file.fileno())
    after = procfs.own_written_bytes(io), procfs.written_bytes(os.getpid())
    os.close(io)
    assert all(later >= earlier for later, earlier in zip(after, before, strict=True)) and after[0] == after[1]
    assert procfs.own_written_bytes(-1) == 0


def test_the_hosts_own_counts_agree_with_the_kernels_text() -> None:
    with open("/proc/vmstat") as file:
        lines = dict(line.split() for line in file)
    assert procfs.oom_kills() >= int(lines["oom_kill"])
    assert procfs.task_count() >= len([name for name in os.listdir("/proc") if name.isdigit()]) // 2
    assert procfs._number_after(b"a 1\nb 2\n", b"\nb ") == 2 and procfs._number_after(b"a", b"z") == 0


def test_reading_leaves_no_descriptor_open(sleeper) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        procfs.descendants(os.getpid())
        row = procfs.stat(sleeper.pid)
        assert row is not None
        procfs.kill(row, 0)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_tree_is_read_no_further_than_it_has_to_be() -> None:
    """One that grows all the time would never be read to its end, and its limit never be seen to be passed."""
    program = "import os, time\nfor _ in range(9): os.fork() or time.sleep(99)\nprint(1, flush=True); time.sleep(99)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True) as tree:
        try:
            assert tree.stdout is not None and tree.stdout.readline() == b"1\n"
            assert len(procfs.descendants(tree.pid)) == 9
            assert [len(procfs.descendants(tree.pid, most)) for most in (0, 3, 8, 9)] == [1, 4, 9, 9]
        finally:
            os.killpg(tree.pid, signal.SIGKILL)


def test_a_process_that_ends_before_it_is_read_is_lost(sleeper, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[int] = []
    assert sleeper.pid in {row.pid for row in procfs.walk(os.getpid(), 1000, lost)} and sleeper.pid not in lost
    monkeypatch.setattr(procfs, "stat", lambda pid: None)
    assert [*procfs.walk(os.getpid(), 1000, lost)] == [] and sleeper.pid in lost


_THREADS = """
import ctypes, threading, time
ready = threading.Barrier(4)
def stay(apart):
    if apart: assert ctypes.CDLL(None).unshare(0x400) == 0
    ready.wait(); time.sleep(99)
for apart in (False, {apart}, False): threading.Thread(target=stay, args=(apart,), daemon=True).start()
ready.wait(); print(1, flush=True); time.sleep(99)
"""


@pytest.mark.parametrize(("apart", "fewest", "most"), [(False, 1, 1), (True, 2, 3)])
def test_a_table_of_descriptors_is_named_once(apart: bool, fewest: int, most: int) -> None:
    """Threads share it, unless one parts."""
    command = [sys.executable, "-c", _THREADS.format(apart=apart)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"1\n"
            assert len(procfs.threads(process.pid)) == 4
            assert fewest <= len(procfs.tables_of_descriptors(process.pid)) <= most
        finally:
            process.kill()
    assert procfs.tables_of_descriptors(1 << 22) == []


_TWICE = """
import mmap, os, time
held = os.memfd_create("held"); os.truncate(held, 32 << 20)
maps = [mmap.mmap(held, 32 << 20) for _ in range(2)]
for each in maps: each[:] = bytes(32 << 20)
print(1, flush=True); time.sleep(99)
"""


def test_pages_that_are_mapped_twice_are_counted_twice_or_once() -> None:
    with subprocess.Popen([sys.executable, "-c", _TWICE], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"1\n"
            row = procfs.stat(process.pid)
            assert row is not None
            assert procfs.unshared_bytes(row) >= 64 << 20 > procfs.proportional_bytes(row) >= 32 << 20
        finally:
            process.kill()


def test_a_process_that_has_ended_has_no_memory_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its resident memory, as a look before saw it, would be charged once for each that shared it."""
    row = procfs.stat(os.getpid())
    assert row is not None and procfs.proportional_bytes(row) > 0

    def gone(path: str) -> bytes:
        raise ProcessLookupError(errno.ESRCH, "gone")

    monkeypatch.setattr(procfs, "_read", gone)
    assert procfs.proportional_bytes(row) == 0


@pytest.mark.system
def test_a_child_that_shares_its_parents_memory_is_known() -> None:
    row = procfs.stat(os.getpid())
    assert row is not None and not procfs.has_its_parents_memory(row, {1 << 22})
    row.parent = row.pid
    try:
        syscalls.call("kcmp", row.pid, row.pid, 1, 0, 0)
    except OSError:
        return  # this kernel does not tell
    assert procfs.has_its_parents_memory(row, {row.pid}), "it has its own"
    row.parent = os.getppid()
    assert not procfs.has_its_parents_memory(row, {row.parent})
