"""The rules around control groups that need no kernel: texts of the fixes, moving aside, judging values, disks."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.unit.kernel.played_writes import play

from ringfence.errors import SetupError, SupervisionError
from ringfence.kernel.cgroup import fixes as cgroup_fixes
from ringfence.kernel.cgroup import group as cgroups
from ringfence.kernel.cgroup import host as cgroup_host
from ringfence.kernel.cgroup import limits as cgroup_limits
from ringfence.kernel.cgroup import tree as cgroup_tree
from ringfence.kernel.cgroup import usage as cgroup_usage
from ringfence.kernel.cgroup.host import CgroupHost, Hierarchy
from ringfence.kernel.cgroup.limits import CgroupLimits, disk_of, settings
from ringfence.model.record import replace

pytestmark = pytest.mark.privileges


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """A directory that plays a v2 group with this process in it."""
    (tmp_path / "cgroup.procs").write_text(f"{os.getpid()}\n")
    (tmp_path / "cgroup.subtree_control").write_text("")
    (tmp_path / "cgroup.type").write_text("domain")
    return tmp_path


def _host(parent: Path) -> CgroupHost:
    usable = frozenset({"pids", cgroup_host.V2_CORE})
    hierarchy = Hierarchy(version=2, parent=str(parent), offered=usable, usable=usable, moves_callers=True)
    return CgroupHost(kind="v2", hierarchies=(hierarchy,))


def _write_as_the_kernel_does(path: str, text: str) -> None:
    """A process that is moved leaves the group above, and other files just take the text."""
    place = Path(path)
    if place.parent.name == cgroup_host.SUPERVISOR:
        above = place.parent.parent / "cgroup.procs"
        above.write_text(above.read_text().replace(f"{text}\n", ""))
    place.write_text(text.replace("+", ""))


def test_the_caller_moves_aside_before_the_controllers_are_enabled(parent: Path, monkeypatch) -> None:
    order: list[str] = []

    def write(path: str, text: str) -> None:
        order.append(os.path.relpath(path, parent))
        _write_as_the_kernel_does(path, text)

    play(monkeypatch, write)
    group = cgroups.create(CgroupLimits(pids_max=3), host=_host(parent))
    assert order == [f"{cgroup_host.SUPERVISOR}/cgroup.procs", "cgroup.subtree_control", f"{group.name}/pids.max"]
    assert (parent / "cgroup.subtree_control").read_text() == "pids"


def test_a_stranger_that_came_in_meanwhile_stops_the_move(parent: Path, monkeypatch) -> None:
    (parent / "cgroup.procs").write_text(f"{os.getpid()}\n{os.getppid()}\n")
    play(monkeypatch, _write_as_the_kernel_does)
    with pytest.raises(SetupError, match="ringfence must not move"):
        cgroups.create(CgroupLimits(pids_max=3), host=_host(parent))


def test_a_group_that_never_empties_is_an_error_not_a_loop(parent: Path, monkeypatch) -> None:
    play(monkeypatch, lambda path, text: None)
    with pytest.raises(SetupError, match="does not become empty"):
        cgroups.create(CgroupLimits(pids_max=3), host=_host(parent))


def test_a_parent_that_refuses_the_group_is_a_set_up_error(tmp_path: Path) -> None:
    host = CgroupHost(kind="v1", hierarchies=(Hierarchy(version=1, parent=str(tmp_path / "file"),
                                                        usable=frozenset({"pids"})),))  # fmt: skip
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="create cgroup"):
        cgroups.create(CgroupLimits(pids_max=3), host=host)


def test_a_kernel_without_a_file_that_must_be_there_is_a_set_up_error_with_a_hint(parent: Path, monkeypatch) -> None:
    monkeypatch.setattr(cgroup_limits, "swap_is_on", lambda: True)
    swap = settings("memory", 2, CgroupLimits(mem_bytes=1 << 20))[1]
    with pytest.raises(SetupError, match=r"this kernel has no memory.swap.max") as caught:
        cgroups._apply(str(parent), swap)
    assert "swapoff" in caught.value.hint
    monkeypatch.setattr(cgroup_limits, "swap_is_on", lambda: False)
    assert cgroups._apply(str(parent), settings("memory", 2, CgroupLimits(mem_bytes=1 << 20))[1]) is None


def test_a_v1_kernel_that_does_not_count_buffers_of_sockets_is_said_to(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(cgroup_limits, "swap_is_on", lambda: False)
    limits = CgroupLimits(mem_bytes=1 << 20)
    (tmp_path / "memory.limit_in_bytes").write_text("")
    assert "not counted" in cgroups._enforce(str(tmp_path), cgroups._wanted("memory", 1, limits)).details
    (tmp_path / "memory.kmem.tcp.limit_in_bytes").write_text("")
    held = cgroups._enforce(str(tmp_path), cgroups._wanted("memory", 1, limits)).details
    assert held == "memory.limit_in_bytes=1048576; memory.kmem.tcp.limit_in_bytes=131072"


def test_groups_in_a_row_have_their_own_limits_and_a_new_look_after_a_while(parent: Path, monkeypatch) -> None:
    """What they have in common is worked out once, but not for another host or other limits."""
    clock, looks = [0.0], []
    monkeypatch.setattr(cgroups.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(cgroup_limits, "swap_is_on", lambda: bool(looks.append(clock[0])))
    play(monkeypatch, _write_as_the_kernel_does)
    usable = replace(_host(parent).hierarchies[0], usable=frozenset({"memory", "pids"}), moves_callers=False)
    host = CgroupHost(kind="v2", hierarchies=(usable,))
    monkeypatch.setattr(cgroups, "_prepare", lambda hierarchy: None)

    def held(size: int) -> str:
        return cgroups.create(CgroupLimits(mem_bytes=size), host=host).applied["memory"].details

    assert [held(4096), held(4096), held(8192), held(8192)] == [f"memory.max={n}" for n in (4096, 4096, 8192, 8192)]
    assert len(looks) == 2
    clock[0] += cgroups.RECIPE_GOOD_FOR_S
    assert held(8192) == "memory.max=8192" and len(looks) == 3
    host = CgroupHost(kind="v2", hierarchies=(usable,))
    assert held(8192) == "memory.max=8192" and len(looks) == 4


@pytest.mark.parametrize(("capability", "version", "limits", "reads", "holds"), [
    ("memory", 2, {"mem_bytes": 5000}, "4096", True),
    ("memory", 2, {"mem_bytes": 5000}, "max", False),
    ("memory", 1, {"mem_bytes": 5000}, "9223372036854771712", False),
    ("cpu_share", 2, {"cpu_share": 0.5}, "50000 100000", True),
    ("cpu_share", 2, {"cpu_share": 0.5}, "max 100000", False),
    ("cpu_share", 2, {"cpu_share": 0.0001}, "1000 100000", True),
    ("pids", 1, {"pids_max": 7}, "8", False),
])  # fmt: skip
def test_what_is_read_back_is_judged(capability, version, limits, reads, holds) -> None:
    assert settings(capability, version, CgroupLimits(**limits))[0].holds(reads) is holds


def test_the_limit_of_a_disk_must_be_in_the_line_of_that_disk(monkeypatch) -> None:
    monkeypatch.setattr(cgroup_limits, "disk_of", lambda path: "8:0")
    (limit,) = settings("io", 2, CgroupLimits(read_bytes_per_s=10, write_bytes_per_s=20))
    assert limit.text == "8:0 rbps=10 wbps=20"
    assert limit.holds("7:0 rbps=max wbps=max\n8:0 rbps=10 wbps=20 riops=max wiops=max\n")
    assert not limit.holds("8:16 rbps=10 wbps=20 riops=max wiops=max\n8:0 rbps=10 wbps=max\n")


def test_a_file_system_without_a_disk_has_none() -> None:
    assert disk_of("/proc") == ""


def test_without_systemd_every_step_of_the_hand_over_is_told(monkeypatch) -> None:
    monkeypatch.setattr(cgroup_fixes, "_systemd", lambda: False)
    v2 = cgroup_fixes.delegate(2, "/cg")
    assert "sudo mkdir -p /cg/ringfence/shell" in v2 and v2.endswith("export RINGFENCE_CGROUP=/ringfence")
    assert "/cg/memory/ringfence/cgroup.procs" in cgroup_fixes.delegate(1, "/cg/memory")
    assert cgroup_fixes.no_controller("v2", "io", "/cg/a")[1] == "echo +io | sudo tee /cg/cgroup.subtree_control"


@pytest.mark.parametrize(("uid", "command"), [(0, "systemd-run --scope"), (1000, "systemd-run --user --scope")])
def test_with_systemd_a_delegated_scope_is_told(monkeypatch, uid: int, command: str) -> None:
    monkeypatch.setattr(cgroup_fixes, "_systemd", lambda: True)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    for _, fix in (cgroup_fixes.shared("/cg/a", [1]), cgroup_fixes.cannot_migrate("/cg/a", "", "/cg"),
                   cgroup_fixes.not_delegated("/", 2, "/cg")):  # fmt: skip
        assert fix == f"{command} -p Delegate=yes ringfence …"


def test_with_systemd_a_user_without_a_controller_is_told_how_to_get_it_delegated(monkeypatch) -> None:
    monkeypatch.setattr(cgroup_fixes, "_systemd", lambda: True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "Delegate=cpu io memory pids" in cgroup_fixes.no_controller("v2", "io", "/cg/a")[1]


def test_a_read_only_mount_is_named_as_such(monkeypatch) -> None:
    """In a container, where it is the usual case, nobody inside can mount it anew."""
    monkeypatch.setattr(cgroup_fixes, "_read_only", lambda directory: True)
    problem, fix = cgroup_fixes.not_delegated("/cg", 2, "/cg")
    assert problem == "/cg is mounted read-only" and fix.startswith("sudo mount -o remount,rw /cg; in a container ")
    assert "--memory" in fix and "--pids-limit" in fix


def test_one_orphan_that_cannot_be_removed_does_not_keep_the_others(tmp_path: Path, monkeypatch) -> None:
    here = os.stat("/proc/self/ns/pid").st_ino
    names = [f"ringfence-{here}-{2**22 - 7}-5-{number}" for number in range(3)]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / names[1] / "stuck").write_text("")
    with pytest.raises(SupervisionError, match="can't remove"):
        cgroups.sweep(_host(tmp_path))
    assert os.listdir(tmp_path) == [names[1]]


def test_peaks_and_events_are_read_from_v1_and_from_v2_files(tmp_path: Path) -> None:
    v1, v2 = tmp_path / "v1", tmp_path / "v2"
    for place, files in (
        (v1, {"memory.max_usage_in_bytes": "7", "memory.oom_control": "oom_kill_disable 0\noom_kill 2\n"}),
        (v2, {"memory.peak": "7", "memory.events": "low 0\noom_kill 2\n", "pids.events": "max 3\n"}),
    ):
        place.mkdir()
        for name, text in files.items():
            (place / name).write_text(text)
        everywhere = dict.fromkeys(("memory", "pids"), str(place))
        assert cgroup_usage.peaks(everywhere) == (7, 0)
        told = cgroup_usage.events(everywhere)
        assert (told.oom_kills, told.pids_hits) == (2, 3 if place is v2 else 0)


@pytest.mark.system
def test_a_copy_forked_while_the_lock_is_held_does_not_wait_for_ever() -> None:
    with cgroups._preparing:
        child = os.fork()
        if child == 0:
            os._exit(0 if cgroups._preparing.acquire(timeout=60) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_process_that_ends_while_its_groups_are_read_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*_: object) -> bytes:
        raise ProcessLookupError(errno.ESRCH, "No such process")

    assert cgroup_tree.read("/proc/self/cgroup")
    monkeypatch.setattr(cgroup_tree.os, "read", ended)
    assert cgroup_tree.read("/proc/self/cgroup") is None
