"""``ResourceMonitor``: one thread for all, safe when sandboxes end, processes fork and many threads ask."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.patience import eventually
from tests.unit.monitor.arena import acting

from ringfence.errors import SupervisionError, UsageError
from ringfence.monitor.limits import ResourceLimits
from ringfence.monitor.resource_monitor import ResourceMonitor
from ringfence.monitor.source import Source
from ringfence.monitor.violations import Violation

pytestmark = pytest.mark.unmeasured

IDLE = "say(); say(); say()"
BURN = "say()\nwhile True: pass"
ANY_CPU = ResourceLimits(max_cpu_percent=1)
FREE = ResourceLimits(max_file_operations=10**9, max_memory_mb=10**6)
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ringfence-monitor"]


@pytest.mark.system
@on_linux
def test_a_burner_is_ended_and_an_idle_one_is_not() -> None:
    with acting(BURN) as burner, acting(IDLE) as idle:
        with ResourceMonitor(interval_s=0.02, over_for_s={"max_cpu_percent": 0.2}) as monitor:
            monitor.start_monitoring("burner", ANY_CPU, burner.source)
            monitor.start_monitoring("idle", ANY_CPU, idle.source)
            burner.go_on()
            eventually(lambda: monitor.terminate_if_violated("burner"))
            assert burner.process.wait(30) == -9
            assert not monitor.terminate_if_violated("idle")
            assert monitor.get_usage("burner").violations == monitor.check_violations("burner")
            assert monitor.check_violations("burner")[0].startswith("cpu: ")
            assert monitor.check_violations("idle") == []
        assert idle.process.poll() is None


@pytest.mark.system
@on_linux
def test_a_memory_eater_is_seen_before_it_is_asked_for() -> None:
    told: list[tuple[str, Violation]] = []
    monitor = ResourceMonitor(interval_s=0.02, on_violation=lambda *words: told.append(words))
    with acting("say()\nmass = b'x' * (64 << 20)\nsay()\nsay()") as eater, monitor:
        monitor.start_monitoring("eater", ResourceLimits(max_memory_mb=48), eater.source)
        assert monitor.violations("eater") == []
        eater.go_on()
        eventually(lambda: bool(told))
        usage = monitor.get_usage("eater")
    assert (told[0][0], told[0][1].name) == ("eater", "max_memory_mb")
    assert usage.memory_mb > 48 and len(told) == 1


@pytest.mark.system
@on_linux
def test_of_a_fork_storm_nothing_is_lost_and_nothing_counts_twice() -> None:
    storm = """import os
null = os.open(os.devnull, os.O_WRONLY)
say()
for _ in range(300):
    if not os.fork():
        for _ in range(10): os.write(null, b'x')
        os._exit(0)
    os.wait()
say()
say()"""
    with acting(storm) as actor, ResourceMonitor(interval_s=0.001) as monitor:
        monitor.start_monitoring("storm", FREE, actor.source)
        before = monitor.sample("storm")
        actor.go_on()
        actor.await_word()
        after = monitor.sample("storm")
    own_look = sys.version_info >= (3, 12)  # from then on os.fork looks whether there are threads
    assert 0 <= after.operations - before.operations - 300 * (10 + own_look) < 10
    assert after.cpu_s >= before.cpu_s
    assert after.processes == 1


@pytest.mark.system
@on_linux
def test_a_sandbox_that_ends_is_no_accident() -> None:
    with acting(IDLE) as actor, ResourceMonitor(interval_s=0.005) as monitor:
        monitor.start_monitoring("short", FREE, actor.source)
        actor.end()
        eventually(lambda: len(monitor.history("short")) > 5)
        assert monitor.get_usage("short").memory_mb == 0
        assert monitor.stop_monitoring("short").file_operations > 0


@pytest.mark.system
@on_linux
def test_the_last_word_is_of_the_whole_time() -> None:
    """The last look may fall into a pause, or find nobody at all."""
    with acting(BURN) as actor, ResourceMonitor(interval_s=0.02) as monitor:
        monitor.start_monitoring("whole", FREE, actor.source)
        actor.go_on()
        eventually(lambda: monitor.sample("whole").cpu_s > 0.3)
        actor.end()
        eventually(lambda: monitor.get_usage("whole").cpu_percent == 0)
        last = monitor.stop_monitoring("whole")
    assert last.cpu_percent * last.execution_time / 100 > 0.2 and last.memory_mb > 1


def test_what_is_not_monitored_is_an_error_that_names_it() -> None:
    monitor = ResourceMonitor()
    for ask in (monitor.get_usage, monitor.check_violations, monitor.terminate_if_violated, monitor.stop_monitoring,
                monitor.history):  # fmt: skip
        with pytest.raises(UsageError, match="nobody"):
            ask("nobody")


def test_the_same_sandbox_twice_is_refused_and_the_first_goes_on() -> None:
    with ResourceMonitor() as monitor:
        monitor.start_monitoring("one", FREE, Source())
        with pytest.raises(UsageError, match="monitored already"):
            monitor.start_monitoring("one", FREE, Source())
        assert monitor.monitored() == ["one"]


def test_as_the_specification_has_it_a_source_is_found_by_the_name() -> None:
    asked: list[str] = []

    def find(name: str) -> Source:
        asked.append(name)
        return Source()

    with ResourceMonitor(find_source=find) as monitor:
        monitor.start_monitoring("box-1", ResourceLimits())
        assert asked == ["box-1"]
    with pytest.raises(UsageError, match="box-2"):
        ResourceMonitor().start_monitoring("box-2", ResourceLimits())


def test_what_are_no_limits_is_refused() -> None:
    with ResourceMonitor() as monitor, pytest.raises(UsageError, match="ResourceLimits"):
        monitor.start_monitoring("none", None, Source())  # type: ignore[arg-type]


def test_a_first_look_that_fails_leaves_nothing_that_is_in_the_way_of_the_next() -> None:
    sources = [Source(leaders=_on_fire), Source()]
    with ResourceMonitor(find_source=lambda _: sources.pop(0)) as monitor:
        with pytest.raises(RuntimeError, match="on fire"):
            monitor.start_monitoring("a", FREE)
        assert monitor.monitored() == []
        monitor.start_monitoring("a", FREE)
        assert monitor.monitored() == ["a"]


def test_a_look_that_fails_is_an_error_of_ours_whoever_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ResourceMonitor, "_ensure_thread", lambda _: None)  # nobody else looks
    leaders = [_on_fire, tuple]
    with ResourceMonitor() as monitor:
        monitor.start_monitoring("a", FREE, Source(leaders=lambda: leaders[-1]()))
        leaders.reverse()
        with pytest.raises(SupervisionError, match="on fire"):
            monitor.sample("a")
        leaders.reverse()
        assert monitor.sample("a").operations == 0


def _on_fire() -> tuple[int, ...]:
    raise RuntimeError("on fire")


def test_a_violation_that_nobody_can_end_says_so() -> None:
    with ResourceMonitor() as monitor:
        monitor.start_monitoring("old", ResourceLimits(max_execution_time=0), Source())
        monitor.sample("old")
        with pytest.raises(UsageError, match="old is over its limits"):
            monitor.terminate_if_violated("old")


def test_the_thread_ends_with_its_work_and_comes_back_with_it() -> None:
    monitor = ResourceMonitor(interval_s=0.001)
    eventually(lambda: not _threads())
    for _ in range(2):
        monitor.start_monitoring("one", FREE, Source())
        monitor.start_monitoring("two", FREE, Source())
        assert len(_threads()) == 1
        monitor.close()
        eventually(lambda: not _threads())


def test_a_monitor_that_nobody_holds_is_gone_with_its_thread() -> None:
    monitor = ResourceMonitor(interval_s=0.001)
    monitor.start_monitoring("one", FREE, Source())
    del monitor
    gc.collect()
    eventually(lambda: not _threads())


@pytest.mark.system
def test_a_program_ends_while_its_monitor_runs() -> None:
    program = (
        "from ringfence.monitor.resource_monitor import *\n"
        "monitor = ResourceMonitor(interval_s=0.001)\n"
        "monitor.start_monitoring('one', ResourceLimits(), Source())\n"
        "print('end', flush=True)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"end\n", b"")


@pytest.mark.system
@on_linux
def test_a_forked_copy_starts_with_nothing_and_can_monitor() -> None:
    with acting(IDLE) as actor, ResourceMonitor(interval_s=0.001) as monitor:
        monitor.start_monitoring("one", FREE, actor.source)
        held = len(os.listdir("/proc/self/fd"))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                fresh = monitor.monitored() == [] and len(os.listdir("/proc/self/fd")) < held
                monitor.start_monitoring("one", FREE, Source())
                works = eventually(lambda: len(monitor.history("one")) > 2)
                code = 0 if fresh and works else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        counted = len(monitor.history("one"))
        eventually(lambda: len(monitor.history("one")) > counted)


def test_fifty_threads_at_once_do_no_harm() -> None:
    with ResourceMonitor(interval_s=0.001) as monitor:

        def come_and_go(number: int) -> int:
            name = f"box-{number}"
            for _ in range(10):
                monitor.start_monitoring(name, FREE, Source(leaders=lambda: (os.getpid(),)))
                monitor.get_usage(name)
                monitor.check_violations(name)
                monitor.terminate_if_violated(name)
                monitor.history(name)
                monitor.stop_monitoring(name)
            return number

        with ThreadPoolExecutor(50) as pool:
            assert list(pool.map(come_and_go, range(50))) == list(range(50))
        assert monitor.monitored() == []
    eventually(lambda: not _threads())


def test_a_source_that_fails_is_told_of_and_stops_no_other() -> None:
    broken = threading.Event()

    def leaders() -> tuple[int, ...]:
        if broken.is_set():
            raise RuntimeError("the box is on fire")
        return ()

    with ResourceMonitor(interval_s=0.001) as monitor:
        monitor.start_monitoring("broken", FREE, Source(leaders=leaders))
        monitor.start_monitoring("whole", FREE, Source())
        broken.set()
        with pytest.raises(SupervisionError, match="on fire"):
            eventually(lambda: monitor.get_usage("broken") is None)
        counted = len(monitor.history("whole"))
        eventually(lambda: len(monitor.history("whole")) > counted)
        broken.clear()


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), 1e9, None, "1"])
def test_an_interval_that_is_none_is_refused(wrong: float) -> None:
    with pytest.raises(UsageError, match="interval"):
        ResourceMonitor(interval_s=wrong)


def test_a_callback_that_exits_ends_no_thread_and_is_told_of() -> None:
    def leave(*_: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise SystemExit(1)

    with ResourceMonitor(interval_s=0.001, on_sample=leave) as monitor:
        monitor.start_monitoring("one", FREE, Source())
        (thread,) = _threads()
        with pytest.raises(SupervisionError, match="could not be looked at: 1"):
            eventually(lambda: monitor.get_usage("one") is None)
        assert _threads() == [thread]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_died_has_a_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    with ResourceMonitor(interval_s=0.001) as monitor:
        with monkeypatch.context() as broken:
            broken.setattr(ResourceMonitor, "_look_at_all", lambda _: _on_fire())
            monitor.start_monitoring("one", FREE, Source())
            eventually(lambda: not _threads())
        counted = len(monitor.history("one"))
        eventually(lambda: len(monitor.history("one")) > counted)


def test_without_a_thread_nothing_is_monitored(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with ResourceMonitor() as monitor:
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", none_left)
            with pytest.raises(SupervisionError, match="monitoring can't start"):
                monitor.start_monitoring("one", FREE, Source())
        assert monitor.monitored() == []
        monitor.start_monitoring("one", FREE, Source())


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf"), None, "1", True, 10**400])
def test_how_often_a_tree_is_walked_is_a_number(wrong: float) -> None:
    with pytest.raises(UsageError, match="deep_every_s"):
        ResourceMonitor(deep_every_s=wrong)


@pytest.mark.parametrize("wrong", [-1, 0, 1, 2.5, float("nan"), None, "9", True, 10**400])
def test_how_many_samples_are_kept_is_a_whole_number(wrong: int) -> None:
    with pytest.raises(UsageError, match="history_samples"):
        ResourceMonitor(history_samples=wrong)
