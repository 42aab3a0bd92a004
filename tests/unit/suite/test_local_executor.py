"""Workers that crash, hang, are killed or go on for ever: each loses one task, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import suite_samples as s
from tests.patience import eventually

if sys.platform != "linux":
    pytest.skip("workers are forked, and watched by descriptors", allow_module_level=True)

from ringfence.proctor.suite.entry import Entry, Order, Result, State
from ringfence.proctor.suite.executor import private_prefix
from ringfence.proctor.suite.local_executor import LocalExecutor

pytestmark = pytest.mark.system

SECRET = "hunter2-" + "5" * 20


def _work(entry: Entry, order: Order, out: str) -> Result:
    """Do what the id says, after a private directory was made, as real work has one."""
    place = os.path.join(os.path.dirname(out), f"{private_prefix(os.getpid())}x")
    os.mkdir(place)
    try:
        return _WHAT[entry.id.partition("-")[0]](entry, order, out)
    finally:
        os.rmdir(place)


def _good(entry: Entry, order: Order, out: str) -> Result:
    return Result(id=entry.id, state=State.VERDICT, out=out)


def _sleeps(entry: Entry, order: Order, out: str) -> Result:
    Path(out).mkdir()
    (Path(out) / "pid").write_text(str(os.getpid()))
    time.sleep(600)
    raise AssertionError


def _stubborn(entry: Entry, order: Order, out: str) -> Result:
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            _sleeps(entry, order, out)
        out += "x"


def _raises(entry: Entry, order: Order, out: str) -> Result:
    raise RuntimeError("what nobody thought of")


def _tells(entry: Entry, order: Order, out: str) -> Result:
    argv = Path("/proc/self/cmdline").read_bytes().decode()
    return Result(id=entry.id, state=State.VERDICT, error=json.dumps(
        {"seed": order.seed, "argv": argv, "session": os.getsid(0) == os.getpid(), "stdin": os.read(0, 1).decode(),
         "fds": sorted(map(int, os.listdir("/proc/self/fd")))}))  # fmt: skip


_WHAT: dict[str, Callable[[Entry, Order, str], Result]] = {
    "good": _good, "sleeps": _sleeps, "stubborn": _stubborn, "raises": _raises, "tells": _tells,
    "killed": lambda *_: os.kill(os.getpid(), signal.SIGKILL),  # type: ignore[dict-item, return-value]
    "crashes": lambda *_: (faulthandler.disable(), os.abort()),  # type: ignore[dict-item, return-value]
    "exits": lambda *_: os._exit(7),
    "stopped": lambda *_: os.kill(os.getpid(), signal.SIGSTOP),  # type: ignore[dict-item, return-value]
}  # fmt: skip


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[LocalExecutor]:
    made = LocalExecutor(s.order(seed=SECRET), str(tmp_path), 3, work=_work)
    yield made
    made.close()
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []


def _all(executor: LocalExecutor, *names: str) -> dict[str, Result]:
    for name in names:
        executor.submit(s.entry(name))
    return {result.id: result for result in executor.results()}


def test_one_that_crashes_is_killed_or_raises_loses_one_task(executor: LocalExecutor) -> None:
    found = _all(executor, "good-1", "killed", "good-2", "crashes", "raises", "exits", "good-3")
    assert {name: str(each.state) for name, each in found.items()} == {
        "good-1": "verdict", "good-2": "verdict", "good-3": "verdict",
        "killed": "failed", "crashes": "failed", "raises": "refused", "exits": "failed",
    }  # fmt: skip
    assert found["killed"].error == "the worker was killed by SIGKILL"
    assert found["raises"].error == "the worker ended with 70: RuntimeError: what nobody thought of"
    assert "SIGABRT" in found["crashes"].error


def test_one_that_hangs_is_ended_in_order_and_one_that_will_not_end_is_killed(tmp_path: Path) -> None:
    for name in ("sleeps", "stubborn", "stopped"):
        executor = LocalExecutor(s.order(), str(tmp_path), 3, work=_work, hangs_s=0.3, grace_s=0.3)
        found = _all(executor, name)
        assert found[name].state is State.REFUSED and "took longer" in found[name].error
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []


def test_more_can_be_submitted_while_results_come(executor: LocalExecutor) -> None:
    executor.submit(s.entry("killed"))
    seen = []
    for result in executor.results():
        seen.append(result.id)
        if result.id == "killed":
            executor.submit(s.entry("good"))
    assert seen == ["killed", "good"]


def test_one_can_be_cancelled_while_it_runs_and_while_it_waits(tmp_path: Path) -> None:
    executor = LocalExecutor(s.order(), str(tmp_path), 1, work=_work)
    executor.submit(s.entry("sleeps"))
    executor.submit(s.entry("good"))
    executor.submit(s.entry("good-2"))
    found = []
    results = executor.results()
    executor._on_wait = lambda: (executor.cancel("sleeps"), executor.cancel("good"))  # type: ignore[assignment]
    for result in results:
        found.append((result.id, str(result.state)))
    assert sorted(found) == [("good", "cancelled"), ("good-2", "verdict"), ("sleeps", "cancelled")]
    executor.cancel("nobody")
    executor.close()


def test_closing_ends_all_that_runs_and_leaves_nothing(tmp_path: Path) -> None:
    executor = LocalExecutor(s.order(), str(tmp_path), 2, work=_work, grace_s=0.5)
    for name in ("sleeps-1", "stubborn-1", "good"):
        executor.submit(s.entry(name))
    results = executor.results()
    executor._on_wait = lambda: _interrupt_when(tmp_path, "sleeps-1", "stubborn-1")
    with pytest.raises(KeyboardInterrupt):
        next(results)
    executor._on_wait = lambda: None
    pids = [int((tmp_path / name / "pid").read_text()) for name in ("sleeps-1", "stubborn-1")]
    executor.close()
    executor.close()
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []


def _interrupt_when(folder: Path, *names: str) -> None:
    if all((folder / name / "pid").exists() for name in names):
        raise KeyboardInterrupt


def test_what_workers_would_load_is_there_to_be_loaded() -> None:
    code = "from ringfence.proctor.suite import local_executor as l; l.preload(); import sys, threading; "
    code += "assert set(l._LATE) <= set(sys.modules) and threading.active_count() == 1"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_secrets_go_from_memory_to_memory_and_a_worker_is_alone(executor: LocalExecutor, tmp_path: Path) -> None:
    told = json.loads(_all(executor, "tells")["tells"].error)
    assert told["seed"] == SECRET and SECRET not in told["argv"]
    assert told["session"] and told["stdin"] == ""
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and SECRET in path.read_text()]


_DIES = """
import os, signal, sys
sys.path[:0] = {path!r}
import test_local_executor as t
executor = t.LocalExecutor(t.s.order(), {folder!r}, 2, work=t._work)
for name in ("sleeps-1", "sleeps-2"):
    executor.submit(t.s.entry(name))
next(executor.results())
"""


def test_workers_end_in_order_when_their_parent_is_killed(tmp_path: Path) -> None:
    code = _DIES.format(path=[*sys.path, os.path.dirname(__file__)], folder=str(tmp_path))
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        places = [tmp_path / name / "pid" for name in ("sleeps-1", "sleeps-2")]
        pids = eventually(lambda: all(map(Path.exists, places)) and [place.read_text() for place in places], 120)
    finally:
        parent.kill()
        parent.wait()
    eventually(lambda: not [pid for pid in pids or () if os.path.exists(f"/proc/{pid}")], 120)
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []
