"""Who runs when: order, bounds, cancelling, threads, forks, other processes, and the end of a pool."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.patience import eventually
from tests.private_folders import left_in
from tests.unit.engine.pooled import lives, policy_of

from ringfence import CallError, Job, Pool, SetupError, Status, UnavailableError, UsageError, run
from ringfence.engine import pool as module
from ringfence.engine.occupancy import Occupancy
from ringfence.engine.ticket import Ticket
from ringfence.engine.warm_set import WarmSet
from ringfence.kernel.proc import procfs
from ringfence.roles import zygote_client

pytestmark = [pytest.mark.system, pytest.mark.unmeasured]

# ---- the line


def test_map_keeps_the_order_and_raises_the_first_failure(pool: Pool) -> None:
    assert pool.map(lambda n: n * n, range(12)) == [n * n for n in range(12)]
    with pytest.raises(CallError, match="three"):
        pool.map(_no_three, [1, 2, 3, 4])


def _no_three(number: int) -> int:
    if number == 3:
        raise ValueError("three")
    return number


def test_more_than_the_queue_takes_is_refused_and_the_others_go_on(level: str) -> None:
    with Pool(policy_of(level), warm=1, at_once=1, queue_limit=1) as pool:
        running, waiting = pool.submit(["sleep", "30"]), pool.submit(["true"])
        with pytest.raises(UnavailableError, match="full"):
            pool.run(["true"])
        running.cancel()
        assert waiting.result(30).ok and pool.run(["true"]).ok


def test_jobs_begin_in_the_order_in_which_they_came(level: str, tmp_path: Path) -> None:
    with Pool(policy_of(level), warm=1, at_once=1) as pool:
        first = pool.submit(["sleep", "30"])
        tickets = [pool.submit(["true"]) for _ in range(5)]
        first.cancel()
        begun = [ticket.result(60).events[0].time_s for ticket in tickets]
    assert begun == sorted(begun)


def test_a_job_that_is_cancelled_in_the_line_never_runs_and_frees_its_place(level: str) -> None:
    with Pool(policy_of(level), warm=1, at_once=1, queue_limit=1) as pool:
        running, waiting = pool.submit(["sleep", "30"]), pool.submit(["true"])
        waiting.cancel()
        with pytest.raises(UsageError, match="cancelled"):
            waiting.result(30)
        next_one = pool.submit(["true"])  # its place in the line is free although nothing has ended
        assert not running.done
        running.cancel()
        assert running.result(30).status is Status.KILLED_KILL and next_one.result(30).ok
        running.cancel()


def test_a_job_that_is_cancelled_at_any_moment_ends_and_never_holds_a_place(level: str) -> None:
    with Pool(policy_of(level), warm=2, at_once=2) as pool:
        for number in range(12):
            ticket = pool.submit(["sleep", "30"])
            time.sleep(0.002 * number)
            ticket.cancel()
            assert ticket.result(30).status is Status.KILLED_KILL
        eventually(lambda: not pool._occupancy.occupants)
        assert not pool._queue._served


def test_a_ticket_says_when_it_takes_longer_than_asked(pool: Pool) -> None:
    ticket = pool.submit(["sleep", "30"])
    with pytest.raises(TimeoutError):
        ticket.result(0.05)
    with pytest.raises(UsageError, match="number of seconds"):
        ticket.result(float("nan"))
    ticket.cancel()
    ticket.result(float("inf"))
    assert ticket.done


def test_fifty_threads_each_get_their_own_result(pool: Pool) -> None:
    got: dict[int, object] = {}
    threads = [
        threading.Thread(target=lambda n=n: got.update({n: pool.call(lambda value: value + 1, n)})) for n in range(50)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert got == {n: n + 1 for n in range(50)}


def test_it_can_be_used_from_asyncio(pool: Pool) -> None:
    async def all_of_them() -> list[object]:
        return await asyncio.gather(*(asyncio.to_thread(pool.call, abs, -n) for n in range(6)))

    assert asyncio.run(all_of_them()) == list(range(6))


# ---- the end


def test_a_closed_pool_says_so_and_closing_twice_is_harmless(level: str) -> None:
    pool = Pool(policy_of(level), warm=1)
    pool.close()
    pool.close()
    for use in (lambda: pool.run(["true"]), lambda: pool.call(abs, 1), lambda: pool.submit(["true"])):
        with pytest.raises(UsageError, match="closed"):
            use()


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[list[str], int]]:
    """Private directories of sandboxes, and descriptors of this process; zygotes, which would stay, are let go."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    run(["true"])

    def look() -> tuple[list[str], int]:
        zygote_client.close_all()
        return [path.name for path in left_in(tmp_path)], len(os.listdir("/proc/self/fd"))

    return look


def test_closing_ends_what_runs_refuses_what_waits_and_leaves_nothing(level: str, left: Callable[[], object]) -> None:
    before = left()
    pool = Pool(policy_of(level), warm=2, at_once=2)
    running, waiting = [pool.submit(["sleep", "30"]) for _ in range(2)], pool.submit(["true"])
    eventually(lambda: len(pool._occupancy.visits()) == 2)
    pool.close()
    assert left() == before
    assert [ticket.result(30).status for ticket in running] == [Status.KILLED_KILL] * 2
    with pytest.raises(UsageError, match="closed"):
        waiting.result(30)


def test_closing_while_jobs_are_being_started_leaves_nothing(level: str, left: Callable[[], object]) -> None:
    before = left()
    for number in range(6):
        pool = Pool(policy_of(level), warm=1, at_once=4)
        tickets = [pool.submit(["sleep", "30"]) for _ in range(4)]
        time.sleep(0.003 * number)
        pool.close()
        assert left() == before
        assert {_end(ticket) for ticket in tickets} <= {Status.KILLED_KILL, "refused"}


def _end(ticket: Ticket) -> object:
    try:
        return ticket.result(30).status
    except UsageError:
        return "refused"


def test_ctrl_c_in_map_is_raised_at_once_and_closing_ends_the_rest(level: str) -> None:
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), Pool(policy_of(level), warm=1, at_once=2) as pool:
        timer.start()
        pool.map(time.sleep, [50] * 4)
    assert not pool._queue._served


def test_who_finds_a_pool_closing_comes_back_when_it_is_closed(level: str, left: Callable[[], object]) -> None:
    before = left()
    pool = Pool(policy_of(level), warm=2)
    in_it, go_on, close = threading.Event(), threading.Event(), pool._warm.close

    def slow() -> str:
        in_it.set()
        assert go_on.wait(30)
        return close()

    pool._warm.close = slow  # type: ignore[method-assign]
    first, second = (threading.Thread(target=pool.close, daemon=True) for _ in range(2))
    first.start()
    assert in_it.wait(30)
    second.start()
    second.join(0.2)
    assert second.is_alive()
    go_on.set()
    second.join(30)
    assert not second.is_alive() and left() == before
    first.join(30)


def test_ctrl_c_while_it_closes_still_closes_it(
    level: str, left: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Occupancy) -> None:
        raise KeyboardInterrupt

    before = left()
    pool = Pool(policy_of(level), warm=2)
    monkeypatch.setattr(Occupancy, "await_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.close()
    assert left() == before


def test_a_pool_may_be_closed_by_what_is_told_of_a_jobs_output(level: str, left: Callable[[], object]) -> None:
    before = left()
    pool = Pool(policy_of(level), warm=1, at_once=2)
    other = pool.submit(["sleep", "30"])
    outcome = pool.run(["sh", "-c", "echo on; sleep 30"], on_output=lambda *_: pool.close())
    assert outcome.status is Status.KILLED_KILL and _end(other) in (Status.KILLED_KILL, "refused")
    pool.close()
    assert left() == before


def test_a_pool_that_everybody_has_forgotten_leaves_nothing(level: str, left: Callable[[], object]) -> None:
    before = left()
    pool = Pool(policy_of(level), warm=2)
    thread = pool._warm._thread
    assert pool.run(["true"]).ok
    del pool
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()
    eventually(lambda: left() == before)


def test_a_descriptor_that_is_closed_while_its_job_waits_gives_it_nothing_else(level: str) -> None:
    with Pool(policy_of(level), warm=1, at_once=1) as pool:
        running = pool.submit(["sleep", "30"])
        reader, writer = os.pipe()
        waiting = pool.submit(Job(argv=("cat",), stdin=reader))
        secret, teller = os.pipe()
        os.dup2(secret, reader)  # somebody else's file has the number now
        for descriptor, text in ((writer, b"for the job"), (teller, b"a secret")):
            os.write(descriptor, text)
            os.close(descriptor)
        running.cancel()
        assert waiting.result(30).stdout == b"for the job"
        assert os.read(secret, 99) == b"a secret"
        for descriptor in (reader, secret):
            os.close(descriptor)
        with pytest.raises(SetupError, match="streams"):
            pool.submit(Job(argv=("cat",), stdin=10**6))
        assert not pool._occupancy.occupants and not pool._queue._served


def test_a_job_without_a_thread_takes_no_place(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Pool(policy_of(level), warm=1, at_once=1, queue_limit=0) as pool:
        with monkeypatch.context() as patch, pytest.raises(RuntimeError):
            patch.setattr(threading.Thread, "start", none_left)
            pool.submit(["true"])
        assert pool.run(["true"]).ok


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("warm", [-1, None, "4", 1.5, float("nan"), True]),
        ("at_once", [0, -1, "4", 1.5, float("nan")]),
        ("queue_limit", [-1, "4", 1.5, float("nan")]),
        ("idle_s", [0, -1, "4", None, float("nan")]),
        ("preload", ["json", b"json", [3], [b"json"], None, 5]),
    ],
)
def test_a_pool_that_can_not_be_is_refused(name: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(UsageError, match=name):
            Pool(policy_of("process"), **{name: value})  # type: ignore[arg-type]


def test_more_warm_sandboxes_than_there_are_descriptors_for_are_refused() -> None:
    """Else whatever the caller opens next would fail."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        with pytest.raises(UnavailableError, match="1000 sandboxes need 4064 descriptors") as caught:
            Pool(policy_of("process"), warm=1000)
        assert "ulimit -n 4064" in caught.value.hint
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


COUNTING = """
import os, time, ringfence
def count(warm):
    with ringfence.Pool(ringfence.SandboxPolicy(isolation="strict"), warm=warm) as pool:
        while len(pool._warm) != warm:
            time.sleep(0.01)
        return len(os.listdir("/proc/self/fd"))
print((count(4) - count(1)) / 3)
"""


def test_a_standing_sandbox_takes_no_more_descriptors_than_are_counted() -> None:
    done = _python(COUNTING)
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout) <= module._DESCRIPTORS_EACH


def test_a_pool_without_warm_sandboxes_makes_each_when_it_is_needed(level: str) -> None:
    with Pool(policy_of(level), warm=0, at_once=1) as pool:
        assert pool.run_source("print(1)").stdout == b"1\n" and len(pool._warm) == 0


# ---- other processes

AFTER_FORK = """
import os, sys, ringfence
pool = ringfence.Pool(ringfence.SandboxPolicy(isolation={level!r}), warm=1)
child = os.fork()
if child == 0:
    try:
        pool.run(["true"])
    except ringfence.UsageError as error:
        print(error, error.hint, flush=True)
    pool.close()
    own = ringfence.Pool(pool.policy, warm=1)
    print("child", own.call(abs, -1), flush=True)
    own.close()
    os._exit(0)
os.waitpid(child, 0)
print("parent", [pool.call(abs, -n) for n in range(3)])
pool.close()
"""


def test_after_a_fork_the_child_is_told_and_the_parent_goes_on(level: str) -> None:
    done = _python(AFTER_FORK.format(level=level))
    assert "stays with the process that made it" in done.stdout and "make a new one" in done.stdout, done.stderr
    assert "child 1" in done.stdout and "parent [0, 1, 2]" in done.stdout, done.stdout + done.stderr


def test_several_processes_have_pools_at_the_same_time(level: str) -> None:
    script = "import ringfence\nwith ringfence.Pool(ringfence.SandboxPolicy(isolation={!r}), warm=2) as pool:\n"
    script = script.format(level) + " print(pool.map(abs, range(-6, 0)))"
    command = [sys.executable, "-c", script]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=120)[0] for process in processes] == ["[6, 5, 4, 3, 2, 1]\n"] * 3


def test_a_caller_that_is_killed_takes_its_standing_sandboxes_along(level: str) -> None:
    script = "import ringfence, sys, time\npool = ringfence.Pool(ringfence.SandboxPolicy(isolation={!r}), warm=2)\n"
    script = script.format(level) + "pool.run(['true']); print('ready', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    # The spawner, the zygote and what stands by, which is made beside the job.
    rows = eventually(lambda: len(found := procfs.descendants(process.pid)) >= 3 and found)
    below = [row.pid for row in rows]
    process.kill()
    process.wait()
    process.stdout.close()
    eventually(lambda: not any(map(lives, below)))


def test_the_folder_of_a_job_is_gone_also_if_its_caller_never_comes_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For it may be killed between the end of the job, which it hears at once, and the removal."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Pool(policy_of("process"), warm=1) as pool:
        monkeypatch.setattr(WarmSet, "_remove", lambda *_: None)
        said = pool.run_source("import os; open('file', 'w').close(); print(os.getcwd())").stdout
        folder = Path(said.decode().strip())
        assert folder.is_relative_to(tmp_path)
        eventually(lambda: not folder.exists())


def _python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
