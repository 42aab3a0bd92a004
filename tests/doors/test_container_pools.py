"""Pools of the level container on a real Docker engine: warm containers, each for one job, bounded in number."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.patience import eventually

import ringfence
from ringfence import Job, Outcome, Pool, SandboxPolicy
from ringfence.backends import conformance, container
from ringfence.backends.in_container import standby
from ringfence.backends.in_container.hidden_watch import HiddenWatch
from ringfence.container import orphans
from ringfence.container.api import Client, connect
from ringfence.engine.run import traits_of
from ringfence.errors import CallError, UnavailableError, UsageError
from ringfence.model.limits import IsolationLevel
from ringfence.model.outcome import Status

pytestmark = [pytest.mark.system, pytest.mark.root]

POLICY = SandboxPolicy(isolation=IsolationLevel.CONTAINER, wall_time_s=120)


@pytest.fixture(autouse=True)
def engine(docker_address: str, python_image: str) -> Iterator[Client]:
    client = connect(docker_address)
    yield client
    assert ours(client) == [], "a container was left behind"
    client.close()


def ours(client: Client) -> list[str]:
    return [each.id for each in client.list(orphans.OWNER) if each.labels[orphans.OWNER] == orphans.owner()]


def test_results_are_those_of_other_pools(engine: Client) -> None:
    with Pool(POLICY, warm=2, preload=["json"]) as pool:
        done = pool.run(["sh", "-c", "cat; echo $MINE >&2; exit 137"], input=b"in", env={"MINE": "me"})
        assert (done.rc, done.status, done.stdout, done.stderr) == (137, Status.FAILED, b"in", b"me\n")
        found = pool.run_source("import sys; print(sys.argv, sys.stdin.read(), open('a/b').read())\n"
                                "print('json' in sys.modules)\nsys.exit(3)",
                                arguments=["x"], stdin=b"given", files={"a/b": b"file"})  # fmt: skip
        assert (found.rc, found.stdout) == (3, b"['<job>', 'x'] given file\nTrue\n"), found
        offset = 40
        assert pool.call(lambda a, b: {"sum": a + b + offset}, 1, b=1) == {"sum": 42}
        with pytest.raises(CallError, match="division"):
            pool.call(lambda: 1 // 0)
        assert pool.map(lambda n: n * n, range(5)) == [0, 1, 4, 9, 16]
        assert pool.submit_call(max, 3, 4).result() == 4
        assert pool.run(["sleep", "60"], timeout=1).status is Status.TIMEOUT
        assert pool.run(["python3", "-c", "import os; os.kill(os.getpid(), 11)"]).status is Status.CRASHED
        with pytest.raises(UsageError, match="its own directory"):
            pool.run(["true"], cwd="/")


def test_no_job_meets_another_and_nothing_outlives_one(engine: Client) -> None:
    leave = "import os, time\nopen('/tmp/left', 'w').close(); open('/dev/shm/left', 'w').close()\n" \
            "if os.fork() == 0:\n os.setsid(); time.sleep(600)\n"  # fmt: skip
    look = "import os\nprint([p for p in ('/tmp/left', '/dev/shm/left') if os.path.exists(p)])\n" \
           "print(sorted(int(p) for p in os.listdir('/proc') if p.isdigit()))"  # fmt: skip
    with Pool(POLICY, warm=1, at_once=1) as pool:
        first = set(ours(engine))
        assert pool.run_source(leave + look).stdout.startswith(b"['/tmp/left', '/dev/shm/left']"), "the control"
        seen = pool.run_source(look).stdout.splitlines()
        assert seen[0] == b"[]" and len(eval(seen[1])) <= 4
        eventually(lambda: not first & set(ours(engine)))


def test_there_are_never_more_than_the_bound(engine: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="at most 10"):
        Pool(POLICY, warm=11)
    monkeypatch.setattr(container, "MOST_CONTAINERS", 3)
    most, over = [0], threading.Event()

    def count() -> None:
        while not over.wait(0.02):
            most[0] = max(most[0], len(ours(engine)))

    counter = threading.Thread(target=count)
    counter.start()
    try:
        with Pool(POLICY, warm=2, at_once=8) as pool:
            done = [future.result() for future in pool.submit_many([["sh", "-c", "sleep 0.2"]] * 12)]
    finally:
        over.set()
        counter.join()
    assert all(outcome.ok for outcome in done) and 2 <= most[0] <= 3


def test_one_that_died_while_it_waited_is_replaced(engine: Client) -> None:
    with Pool(POLICY, warm=1) as pool:
        eventually(lambda: len(ours(engine)) == 1)
        engine.kill(ours(engine)[0])
        time.sleep(0.2)
        assert pool.run(["true"]).ok


def test_what_the_images_python_can_not_do_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    version = [(3, 10)]
    monkeypatch.setattr(standby.Standby, "_asked_version", lambda self: version[0])
    with Pool(POLICY, warm=0) as pool:
        assert pool.run(["true"]).ok
        with pytest.raises(UnavailableError, match="or newer in the image"):
            pool.run_source("1")
    version[0] = (3, 99)
    with Pool(POLICY, warm=0) as pool:
        with pytest.raises(UnavailableError, match="the caller's Python"):
            pool.call(len, "abc")
        assert pool.run_source("print(1)").stdout == b"1\n"


def test_limits_are_told_as_of_a_run() -> None:
    policy = POLICY.with_changes(mem_bytes=256 << 20, pids_max=16, cpu_time_s=3)
    with Pool(policy, warm=1, at_once=1) as pool:
        assert pool.run_source("x = bytearray(1 << 29)").status is Status.MEM_LIMIT
        assert pool.run_source("import os\nfor _ in range(40): os.fork()").status is Status.PIDS_LIMIT
        assert pool.run_source("import os\nfor _ in range(3): os.fork()\nwhile 1: pass").status is Status.CPU_LIMIT


def in_pool(job: Job, policy: SandboxPolicy) -> Outcome:
    with Pool(policy, warm=0) as pool:
        return pool.run(job)


def in_box(job: Job, policy: SandboxPolicy) -> Outcome:
    with ringfence.open(policy) as box:
        return box.run(job)


UNTOLD = "memory tree"
"""Whose process a box has lost to its memory is not known, at any level: it is told beside the job's own end."""
WAYS = [(check, way) for check in conformance.CHECKS for way in (in_pool, in_box)
        if (check.name, way) != (UNTOLD, in_box)]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("check", "way"), WAYS, ids=lambda each: getattr(each, "name", None))
def test_the_promise_holds_in_a_container_that_takes_visits(
    check: conformance.Check, way: Callable[[Job, SandboxPolicy], Outcome]
) -> None:
    level = IsolationLevel.CONTAINER
    finding = conformance.perform_one(way, level, check, traits=traits_of(level))
    assert finding.held and finding.proven, finding.problem


def test_one_that_stood_by_while_a_hidden_path_came_gets_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "shown" / "key"
    key.parent.mkdir()
    policy = POLICY.with_changes(readable_paths=(str(key.parent),), hidden_paths=(str(key),))
    with Pool(policy, warm=1) as pool, Pool(policy, warm=1) as unwatched:
        key.write_text("ESCAPED")
        done = pool.run(["cat", str(key)])
        assert done.ok and done.stdout == b""
        monkeypatch.setattr(HiddenWatch, "exposed", lambda self: "")
        assert unwatched.run(["cat", str(key)]).stdout == b"ESCAPED", "the attack proves nothing"
