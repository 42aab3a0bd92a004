"""Real sandboxes tell where they can be looked at, and the monitor sees and ends what runs in them."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import eventually
from tests.unit.monitor.arena import is_on_disk

import ringfence
from ringfence.engine.box import Box
from ringfence.kernel.cgroup import group as cgroups
from ringfence.model.limits import IsolationLevel
from ringfence.model.policy import SandboxPolicy
from ringfence.monitor.limits import ResourceLimits
from ringfence.monitor.resource_monitor import ResourceMonitor
from ringfence.sandbox import host

FREE = ResourceLimits(max_file_operations=10**9)
# Python's own start takes some: what is looked for must be more.
WRITER = """import os
file = os.open('big', os.O_WRONLY | os.O_CREAT)
for _ in range(2000): os.write(file, bytes(4096))
"""
STAY = "import sys\nprint('.', flush=True)\nsys.stdin.read()\n"
DOUBLE_FORK = "import os\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\nwhile True: pass\n"

pytestmark = [
    pytest.mark.system,
    pytest.mark.unmeasured,
    pytest.mark.skipif(sys.platform != "linux", reason="strict is Linux only"),
]


@pytest.fixture(params=["process", "strict"])
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    level = IsolationLevel(request.param)
    if level is IsolationLevel.STRICT and host.user_namespaces_blocked():
        pytest.skip("no user namespaces here")
    with ringfence.open(SandboxPolicy(isolation=level, output_bytes=1 << 16)) as opened:
        yield opened


@pytest.fixture
def monitor() -> Iterator[ResourceMonitor]:
    with ResourceMonitor(interval_s=0.02, over_for_s={"max_cpu_percent": 0.3}) as made:
        yield made


def test_what_runs_in_a_box_is_measured(box: Box, monitor: ResourceMonitor) -> None:
    monitor.start_monitoring("box", FREE, box.watchable)
    before = monitor.sample("box")
    mass = "mass = b'x' * (50 << 20)\n"
    handle = box.start([sys.executable, "-c", mass + WRITER + STAY])
    eventually(lambda: handle.stdout == b".\n", told=lambda: handle.stderr)
    after = monitor.sample("box")
    assert after.memory_bytes - before.memory_bytes > 50 * 2**20
    assert after.operations - before.operations >= 2000
    assert after.cpu_s > before.cpu_s
    assert after.processes > before.processes
    handle.close_input()
    assert handle.wait(60).ok


def test_a_burner_in_a_box_is_ended_also_when_it_has_left_its_parents(box: Box, monitor: ResourceMonitor) -> None:
    monitor.start_monitoring("box", ResourceLimits(max_cpu_percent=1, max_file_operations=10**9), box.watchable)
    quiet = box.run([sys.executable, "-c", "pass"])
    assert quiet.ok
    handle = box.start(["sh", "-c", f'"{sys.executable}" -c "$1"; read line', "sh", DOUBLE_FORK])
    eventually(lambda: monitor.terminate_if_violated("box"))
    assert not handle.wait(60).ok
    eventually(lambda: monitor.sample("box").processes == 0)


GREEDY = {
    "max_memory_mb": "mass = b'x' * (90 << 20)\n",
    "max_disk_mb": WRITER,
    "max_file_operations": "import os\nnull = os.open(os.devnull, 1)\nfor _ in range(2000): os.write(null, b'x')\n",
}
STRICT_ON_ALL = ResourceLimits(max_cpu_percent=1e6, max_memory_mb=70, max_disk_mb=4, max_file_operations=1500)


@pytest.mark.parametrize("limit", GREEDY)
def test_what_is_over_a_limit_is_ended_and_what_is_not_is_left_alone(
    box: Box, monitor: ResourceMonitor, limit: str
) -> None:
    if limit == "max_disk_mb" and not is_on_disk(Path(tempfile.gettempdir())):
        pytest.skip("the directory of temporary files is in memory: nothing is written to storage")
    monitor.start_monitoring("box", STRICT_ON_ALL, box.watchable)
    modest = box.start([sys.executable, "-c", STAY])
    eventually(lambda: modest.stdout == b".\n", told=lambda: modest.stderr)
    monitor.sample("box")
    assert monitor.check_violations("box") == []
    modest.close_input()
    assert modest.wait(60).ok
    greedy = box.start([sys.executable, "-c", GREEDY[limit] + STAY])
    eventually(lambda: greedy.stdout == b".\n", told=lambda: greedy.stderr)
    eventually(lambda: monitor.terminate_if_violated("box"))
    assert limit in [violation.name for violation in monitor.violations("box")]
    assert not greedy.wait(60).ok


def test_a_box_in_which_nothing_happens_is_within_its_limits(box: Box, monitor: ResourceMonitor) -> None:
    monitor.start_monitoring("box", ResourceLimits(), box.watchable)
    first = monitor.sample("box")
    eventually(lambda: monitor.history("box")[-1].time_s > first.time_s + 0.5)
    assert monitor.check_violations("box") == []
    assert not monitor.terminate_if_violated("box")
    assert box.run(["true"]).ok


def test_a_strict_box_names_its_control_group_where_it_has_one() -> None:
    if host.user_namespaces_blocked():
        pytest.skip("no user namespaces here")
    with ringfence.open(SandboxPolicy(isolation=IsolationLevel.STRICT)) as box:
        assert ("memory" in box.watchable.groups) == (cgroups.probe().find("memory") is not None)
        assert len(box.watchable.leaders()) == 1


def test_a_box_that_is_closed_has_nobody_to_look_at(box: Box) -> None:
    source = box.watchable
    box.run(["true"])
    box.close()
    assert source.leaders() == ()
