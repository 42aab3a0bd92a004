"""What is measured is what real processes did: processor time, memory, writes, operations, network."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.escape.raw_calls import WITHOUT_ITS_FIRST_THREAD
from tests.patience import eventually
from tests.unit.monitor.arena import Actor, acting, is_on_disk, measuring

from ringfence.errors import UnavailableError
from ringfence.kernel.cgroup import group as cgroups
from ringfence.kernel.cgroup import tree as cgroup_tree
from ringfence.kernel.cgroup.limits import CgroupLimits
from ringfence.kernel.proc import procfs
from ringfence.kernel.proc.group_reader import GroupFiles
from ringfence.kernel.proc.open_files import DescriptorBudget, PinnedFile
from ringfence.kernel.proc.tally import Counted
from ringfence.kernel.proc.tree_reader import own_network
from ringfence.model.record import replace
from ringfence.monitor.meter import _AGAIN, Meter, _Led
from ringfence.monitor.source import Source

pytestmark = [pytest.mark.system, pytest.mark.unmeasured]

MIB = 2**20
BURN = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
IDLE = "say(); say(); say()"
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
with_groups = pytest.mark.skipif(cgroups.probe().find("memory") is None, reason="no control group for this user")


def _grouped(group: cgroups.Cgroup, actor: Actor) -> Source:
    for path in group.enter_paths:
        Path(path).write_text(str(actor.pid))
    return replace(actor.source, groups=group.places)


@on_linux
def test_processor_time_is_counted_and_that_of_an_idle_one_is_not() -> None:
    with acting(BURN + IDLE) as busy, measuring(busy.source) as meter:
        assert meter.measure().cpu_s >= 0.29
    with acting(IDLE) as idle, measuring(idle.source) as meter:
        assert meter.measure().cpu_s < 0.29


@on_linux
@pytest.mark.parametrize("heed", ["SIG_DFL", "SIG_IGN"])
def test_processor_time_of_a_child_that_has_ended_stays(heed: str) -> None:
    """Nobody has waited for a child whose parent ignores its end."""
    burning = BURN.replace("\n", "\n    ")
    program = (
        f"import os, signal\nsignal.signal(signal.SIGCHLD, signal.{heed})\n"
        f"if not os.fork():\n    {burning}say()\n    os._exit(0)\n"
        "try: os.wait()\nexcept ChildProcessError: pass\nsay(); say()"
    )
    with acting(program) as actor, measuring(actor.source) as meter:
        before = meter.measure().cpu_s
        actor.go_on()
        actor.await_word()
        assert before >= 0.29
        assert meter.measure().cpu_s >= before


@on_linux
def test_memory_is_counted_and_shared_pages_once_when_it_matters() -> None:
    forked = "import os, time\nmass = b'x' * (40 << 20)\nfor _ in range(4):\n    if not os.fork(): time.sleep(600)\n"
    with acting(forked + IDLE) as actor:
        with measuring(actor.source) as meter:
            counted_five_times = meter.measure()
        with measuring(actor.source, doubt_bytes=0) as meter:
            counted_once = meter.measure()
        assert counted_five_times.processes == counted_once.processes == 5
        assert counted_five_times.memory_bytes > 5 * 40 * MIB
        assert 40 * MIB < counted_once.memory_bytes < 2 * 40 * MIB


@on_linux
def test_writes_and_operations_are_counted_once_also_of_the_ended(tmp_path: Path) -> None:
    program = (
        "import os\n"
        "def write(name):\n"
        "    file = os.open(name, os.O_WRONLY | os.O_CREAT)\n"
        "    for _ in range(50): os.write(file, bytes(1 << 16))\n"
        "    os.close(file)\n"
        "say(); write('own'); say()\n"
        "if not os.fork():\n    write('child'); say(); os._exit(0)\n"
        "os.wait(); say(); say()\n"
    )
    with acting(program, str(tmp_path)) as actor, measuring(actor.source) as meter:
        found = [meter.measure(whole=True)]
        for _ in range(3):
            actor.go_on()
            actor.await_word()
            found.append(meter.measure(whole=True))
    operations = [sample.operations - found[0].operations for sample in found]
    assert 50 <= operations[1] < 60  # beside the fifty there are only the few by which it talks to us
    assert 100 <= operations[2] < 120
    assert 100 <= operations[3] < 130
    if is_on_disk(tmp_path):
        written = [sample.written_bytes - found[0].written_bytes for sample in found]
        assert 50 << 16 <= written[1] < 60 << 16
        assert 100 << 16 <= written[3] < 120 << 16


@on_linux
def test_a_process_whose_counts_may_not_be_read_is_told_of() -> None:
    hide = "import ctypes\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n"
    with acting(hide + IDLE) as actor, measuring(actor.source) as meter:
        assert meter.measure().unreadable == (0 if os.geteuid() == 0 else 1)
    with acting(IDLE) as actor, measuring(actor.source) as meter:
        assert meter.measure().unreadable == 0


@on_linux
def test_a_process_whose_first_thread_has_ended_is_measured_as_any_other(tmp_path: Path) -> None:
    program = (
        "import ctypes, os, time\n" + WITHOUT_ITS_FIRST_THREAD +
        "def work():\n"
        "    mass = b'x' * (40 << 20)\n"
        "    null = os.open(os.devnull, os.O_WRONLY)\n"
        "    for _ in range(500): os.write(null, b'x')\n"
        "    say(); say()\n"
        "go_on_without_first(work)\n"
    )  # fmt: skip
    with acting(program, str(tmp_path)) as actor, measuring(actor.source) as meter:
        seen = meter.measure(whole=True)
    assert seen.memory_bytes > 40 * MIB and seen.operations >= 500 and (seen.processes, seen.unreadable) == (1, 0)


@on_linux
def test_a_sandbox_that_has_ended_keeps_what_it_used() -> None:
    with acting(BURN + IDLE) as actor, measuring(actor.source) as meter:
        alive = meter.measure(whole=True)
        actor.end()
        after = meter.measure(whole=True)
    assert after.cpu_s >= alive.cpu_s and after.operations >= alive.operations > 0
    assert (after.memory_bytes, after.processes) == (0, 0)


@on_linux
@with_groups
def test_a_control_group_is_counted_by_its_files() -> None:
    with cgroups.create(CgroupLimits(), allow_partial=True) as group, acting(
        "say()\nmass = b'x' * (50 << 20)\n" + BURN + IDLE
    ) as actor:
        source = _grouped(group, actor)
        with measuring(source) as meter:
            before = meter.measure()
            actor.go_on()
            actor.await_word()
            after = meter.measure()
        actor.end()
    assert after.cpu_s - before.cpu_s >= 0.29
    assert 50 * MIB < after.memory_bytes - before.memory_bytes < 60 * MIB


@on_linux
@with_groups
def test_the_cache_of_files_is_not_memory_that_a_group_holds(tmp_path: Path) -> None:
    writer = "say()\nopen('big', 'wb').write(bytes(60 << 20))\n"
    with cgroups.create(CgroupLimits(), allow_partial=True) as group, acting(writer + IDLE, str(tmp_path)) as actor:
        files = GroupFiles(_grouped(group, actor).groups, DescriptorBudget(10))
        actor.go_on()
        actor.await_word()
        files_of_it = (f"{group.places['memory']}/{name}" for name in ("memory.current", "memory.usage_in_bytes"))
        used = int(next(filter(None, map(cgroup_tree.read, files_of_it))))
        figures = files.figures(anew=False)
        files.close()
        actor.end()
    assert figures is not None
    if is_on_disk(tmp_path):
        assert used > 60 * MIB > 30 * MIB > figures[1]


@on_linux
@with_groups
def test_a_group_that_is_gone_reads_as_nothing() -> None:
    with cgroups.create(CgroupLimits(), allow_partial=True) as group:
        files = GroupFiles(group.places, DescriptorBudget(10))
        assert files.figures(anew=False) is not None
    assert files.figures(anew=False) is None
    files.close()


@on_linux
def test_the_network_of_its_own_is_counted_and_loopback_apart() -> None:
    """A pair of cables inside the namespaces of the test: nothing leaves them."""
    unshare = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]
    script = (
        "ip link set lo up; ip link add here type veth peer name there; ip addr add 10.9.0.1/24 dev here; "
        "ip link set here up; ip link set there up; echo ready; read -r line; "
        f"{sys.executable} -c \"import socket\n"
        "far = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); far.bind(('there', 0))\n"
        "[far.send(bytes(1000)) for _ in range(100)]\n"
        "near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); near.bind(('127.0.0.1', 0))\n"
        "[near.sendto(bytes(500), near.getsockname()) for _ in range(20)]\"; echo done; read -r line"
    )
    shell = subprocess.Popen([*unshare, "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert shell.stdin is not None and shell.stdout is not None
    try:
        assert shell.stdout.readline() == b"ready\n"
        with measuring(Source(leaders=lambda: (os.getpid(),))) as meter:  # the others here have the host's network
            before = meter.measure(whole=True)
            shell.stdin.write(b"\n")
            shell.stdin.flush()
            assert shell.stdout.readline() == b"done\n"
            after = meter.measure(whole=True)
    finally:
        shell.kill()
        shell.communicate()
    # Each frame leaves at one end and arrives at the other, and both ends are in there.
    assert 2 * 100_000 <= after.network_bytes - before.network_bytes < 2 * 100_000 + 20_000
    assert 20_000 <= after.loopback_bytes - before.loopback_bytes < 40_000


@on_linux
def test_the_hosts_network_is_not_counted_as_the_sandboxs() -> None:
    assert not own_network(os.getpid())
    with acting(IDLE) as actor, measuring(actor.source) as meter:
        sample = meter.measure(whole=True)
    assert (sample.network_bytes, sample.loopback_bytes) == (0, 0)


@on_linux
def test_a_kept_file_never_reads_a_later_process_of_the_same_number() -> None:
    actor = Actor(IDLE)
    actor.await_word()
    room = DescriptorBudget(10)
    file = PinnedFile(f"/proc/{actor.pid}/stat", room)
    assert file.read()
    actor.end()
    eventually(lambda: file.read() == b"")
    file.close()


@on_linux
def test_without_room_files_are_read_all_the_same() -> None:
    room = DescriptorBudget(0)
    file = PinnedFile("/proc/self/stat", room)
    assert file.read().startswith(str(os.getpid()).encode())
    assert file.read() and room.open("/proc/self/stat") == -1


@on_linux
def test_a_long_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"12345 " * 50_000)
    file = PinnedFile(str(tmp_path / "long"), DescriptorBudget(1))
    assert len(file.read()) == 300_000
    file.close()


@on_linux
def test_descriptors_are_given_back() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with acting(IDLE) as actor, measuring(actor.source) as meter:
        meter.measure(whole=True)
        assert len(os.listdir("/proc/self/fd")) > before + 2
    assert len(os.listdir("/proc/self/fd")) == before


LAYOUTS = {
    "v1": {"cpuacct.usage": "1500000000\n", "memory.usage_in_bytes": "9000000\n",
           "memory.stat": "cache 1\ninactive_file 7\ntotal_inactive_file 2000000\ntotal_active_file 1000000\n"},
    "v2": {"cpu.stat": "usage_usec 1500000\nuser_usec 1\nsystem_usec 1\n", "memory.current": "9000000\n",
           "memory.stat": "anon 1\nfile 3000000\ninactive_file 2000000\nactive_file 1000000\n"},
}  # fmt: skip


@pytest.mark.parametrize("version", LAYOUTS)
def test_both_versions_of_control_groups_are_read(tmp_path: Path, version: str) -> None:
    for name, text in LAYOUTS[version].items():
        (tmp_path / name).write_text(text)
    files = GroupFiles({"cpu_usage": str(tmp_path), "memory": str(tmp_path)}, DescriptorBudget(10))
    assert files.figures(anew=True) == (1.5, 6_000_000)
    files.close()


def test_without_proc_the_table_of_processes_has_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfence.monitor.meter.sys", SimpleNamespace(platform="darwin"))
    with acting(BURN + "mass = b'x' * (40 << 20)\n" + IDLE) as actor, measuring(actor.source) as meter:
        sample = meter.measure()
    assert sample.memory_bytes > 40 * MIB and sample.processes == 1
    assert sample.operations == sample.written_bytes == 0


def test_where_nothing_can_be_measured_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfence.monitor.meter.sys", SimpleNamespace(platform="win32"))
    with pytest.raises(UnavailableError), measuring(Source()):
        pass


@on_linux
def test_one_whose_parent_has_ended_is_not_lost_and_counts_once(tmp_path: Path) -> None:
    """The shell adopts nothing: here the program itself adopts, as the leader of a sandbox does."""
    program = (
        "import ctypes, os\nctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
        "if not os.fork():\n"
        "    if not os.fork():\n"
        f"        {BURN.replace(chr(10), chr(10) + '        ')}say(); say(); os._exit(0)\n"
        "    import time; time.sleep(600)\n"
        "import time; time.sleep(600)\n"
    )
    with acting(program) as actor, measuring(actor.source) as meter:
        before = meter.measure()
        (middle,) = procfs.children(actor.pid)
        os.kill(middle, signal.SIGKILL)
        eventually(lambda: len(procfs.children(actor.pid)) == 2)
        after = meter.measure()
    assert before.processes == 3 and after.processes == 2
    assert before.cpu_s <= after.cpu_s < before.cpu_s + 0.25
    assert before.operations <= after.operations < before.operations + 10


def test_what_went_through_the_gateway_is_its_network() -> None:
    with measuring(Source(network=lambda: 4321)) as meter:
        assert meter.measure().network_bytes == 4321
        assert meter.measure(whole=True).network_bytes == 4321


class _Ending:
    """A parent and its child, which ends while they are asked: ``asked_late``: the parent has its count by then."""

    def __init__(self, *, asked_late: bool) -> None:
        self.parents, self.stirred = {10: 1, 11: 10}, {10, 11}
        self._parents_counts = [(0, 150), (0, 151)] if asked_late else [(0, 100), (0, 151)]
        self.is_there = True

    def counts(self, pid: int, *, anew: bool) -> tuple[int, int] | None:
        if pid == 10:
            return self._parents_counts.pop(0) if len(self._parents_counts) > 1 else self._parents_counts[0]
        self.is_there = False
        return None

    def has_ended(self, pid: int) -> bool:
        return pid == 11 and not self.is_there


@pytest.mark.parametrize("asked_late", [False, True])
def test_one_that_ends_in_the_middle_of_a_look_counts_once(asked_late: bool) -> None:
    measured = Meter.__new__(Meter)
    measured._unreadable = 0
    led, rows = _Led(), [SimpleNamespace(pid=pid, start=1, zombie=False) for pid in (10, 11)]
    led.operations.update({10: Counted(1, 1, 100), 11: Counted(1, 10, 50)})
    measured._files = _Ending(asked_late=asked_late)
    measured._count(led, rows, deep=False)
    assert led.operations.total == 151 and measured._unreadable == 0


def test_who_has_some_end_all_the_time_is_counted_all_the_same() -> None:
    """Ten processes with seven calls each; each time that all are asked, the last of them has ended."""
    pids = range(20, 30)
    ending = (place == left - 1 for left in range(10, 0, -1) for place in range(left))
    measured, led = Meter.__new__(Meter), _Led()
    measured._unreadable = 0
    measured._files = SimpleNamespace(
        parents=dict.fromkeys(pids, 1), stirred=set(pids), counts=lambda pid, anew: (0, 7),
        has_ended=lambda pid: next(ending),
    )  # fmt: skip
    measured._count(led, [SimpleNamespace(pid=pid, start=1, zombie=False) for pid in pids], deep=False)
    assert led.operations.total == 7 * (10 - _AGAIN)
