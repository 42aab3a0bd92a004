"""A Python job says that it is done, and nobody waits until its process has been taken apart.

What it says is only about itself: it gains nothing by a lie.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from tests.unit.engine.pooled import policy_of
from tests.unit.python_jobs.forked_python import run_forked

from ringfence import Pool, Status, run
from ringfence.kernel.proc import procfs
from ringfence.model.job import Job
from ringfence.python_jobs.job import source_job

pytestmark = [pytest.mark.system, pytest.mark.privileges]

# What a job that wants to lie can find out.
TOKEN = (
    "import os, sys; f = sys._getframe()\n"
    "while 'token' not in f.f_locals: f = f.f_back\ntoken = f.f_locals['token']\n"
)
FAREWELL = "os.write(3, token + bytes(1))"


def test_the_process_ends_by_itself_when_nobody_has_heard() -> None:
    ended = run_forked(source_job("raise SystemExit(7)"), is_awaited=True)
    assert (ended.status, ended.message) == (7, b"token\x07")


def test_with_threads_still_running_nothing_is_said() -> None:
    source = "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    assert run_forked(source_job(source), is_awaited=True).message == b""


def test_who_says_it_too_early_ends_too_early(pool: Pool) -> None:
    """As if it had exited there, and what it goes on with ends at once."""
    begun = time.monotonic()
    source = f"print('said', flush=True); {FAREWELL}; import time; time.sleep(50); print('unsaid')"
    outcome = pool.run_source(TOKEN + source)
    assert (outcome.status, outcome.rc, outcome.stdout) == (Status.OK, 0, b"said\n")
    assert time.monotonic() - begun < 40
    assert pool.run_source("print('next')").stdout == b"next\n"


def test_who_says_it_and_then_exits_otherwise_has_said_it(pool: Pool) -> None:
    assert pool.run_source(f"{TOKEN}{FAREWELL}; os._exit(5)").rc in (0, 5)


@pytest.mark.parametrize("said", ["bytes(1)", "bytes(17)", "bytes(range(256)) * 100", "token", "token + bytes(2)"])
def test_who_says_anything_else_has_said_nothing(pool: Pool, said: str) -> None:
    assert pool.run_source(f"{TOKEN}os.write(3, {said}); raise SystemExit(4)").rc == 4


@pytest.mark.parametrize("closing", ["os.close(3)", "os.closerange(3, 100)"])
def test_who_closes_the_way_ends_as_every_process(pool: Pool, closing: str) -> None:
    assert pool.run_source(f"import os; {closing}; raise SystemExit(4)").rc == 4


def test_a_program_that_the_job_becomes_ends_by_itself(pool: Pool) -> None:
    assert pool.run_source("import os; os.execv('/bin/sh', ['sh', '-c', 'ls /proc/self/fd; exit 6'])").rc == 6


def test_a_child_that_says_it_ends_the_job(pool: Pool) -> None:
    outcome = pool.run_source(f"{TOKEN}import time\nif not os.fork():\n {FAREWELL}\ntime.sleep(50)")
    assert outcome.status is Status.OK


def test_what_is_left_running_is_ended_before_the_end_is_told(pool: Pool) -> None:
    source = "import os, subprocess; print(subprocess.Popen(['sleep', '3210']).pid)"
    assert pool.run_source(source).status is Status.OK
    assert not [row for row in procfs.descendants(os.getpid()) if _is_sleeping(row.pid)]


def _is_sleeping(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"3210" in file.read()
    except OSError:
        return False


def test_what_the_job_used_is_reported(pool: Pool) -> None:
    source = "import time; x = b'x' * (50 << 20)\nwhile time.process_time() < 0.5: pass"
    used = pool.run_source(source).usage
    assert used.cpu_user_s + used.cpu_system_s > 0.49
    assert used.peak_memory_bytes > 50 << 20


@pytest.mark.parametrize("end", ["", "; subprocess.Popen(['sleep', '3211'])"])
def test_what_it_wrote_to_the_disk_is_counted_once(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when something else is left to end first, and the job has been waited for by then."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    source = f"import os, subprocess; f = open('f', 'wb'); f.write(bytes(8 << 20)); f.flush(); os.fsync(f){end}"
    with Pool(policy_of("process"), warm=1) as pool:
        written = pool.run_source(source).usage.written_bytes
        command = pool.run([sys.executable, "-c", source]).usage.written_bytes
    # Pages that are written back in the middle may be counted again by the kernel; twice as many would be ours.
    assert written == pytest.approx(command, rel=0.5)


@pytest.mark.parametrize("code", [0, 1, 3, 255])
def test_every_status_comes_out(pool: Pool, code: int) -> None:
    assert pool.run_source(f"raise SystemExit({code})").rc == code
    assert pool.run_source(f"import os; os._exit({code})").rc == code


def test_a_job_that_is_killed_has_not_ended_well(pool: Pool) -> None:
    assert pool.run_source("import os, signal; os.kill(os.getpid(), signal.SIGKILL)").status is Status.KILLED_KILL


@pytest.mark.parametrize("level", ["process", "strict"], indirect=False)
def test_bytes_on_the_channel_of_another_program_mean_nothing(level: str) -> None:
    source = "import os, time; os.write(3, bytes(1)); time.sleep(0.2); os._exit(9)"
    outcome = run(Job(argv=(sys.executable, "-c", source), channel=True), policy_of(level))
    assert (outcome.rc, outcome.message) == (9, bytes(1))


def test_the_usage_of_a_living_process_is_what_the_kernel_says_of_it() -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        while time.process_time() < 0.2:
            pass
        os.write(write, b"done")
        time.sleep(60)
    os.read(read, 4)
    user_us, system_us, largest, _, _ = procfs.usage(child)
    os.kill(child, 9)
    _, _, used = os.wait4(child, 0)
    assert user_us + system_us == pytest.approx((used.ru_utime + used.ru_stime) * 1e6, rel=0.2)
    assert 0 < largest <= used.ru_maxrss * 1024 + (1 << 20)
    assert procfs.usage(child) == ()
