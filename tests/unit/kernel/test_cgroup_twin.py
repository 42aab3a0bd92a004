"""The group beside the caller's own: over directories that play a v2 tree; the guest has the real one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.kernel.played_writes import play

from ringfence.errors import SetupError
from ringfence.kernel.cgroup import group as cgroups
from ringfence.kernel.cgroup import host as cgroup_host
from ringfence.kernel.cgroup import tree as cgroup_tree
from ringfence.kernel.cgroup import twin as cgroup_twin
from ringfence.kernel.cgroup.group import CgroupLimits
from ringfence.kernel.cgroup.host import CgroupHost, Hierarchy

pytestmark = pytest.mark.privileges

LIMITS = {"memory.max": "max\n", "memory.high": "max\n", "pids.max": "max\n", "cpu.max": "max 100000\n", "io.max": ""}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A group above, with our own in it; the directory plays the kernel, which fills groups with files."""
    (tmp_path / "cgroup.subtree_control").write_text("pids\n")
    make, write = os.mkdir, Path.write_text

    def mkdir(path: str, mode: int = 0o777) -> None:
        make(path, mode)
        if Path(path).name.startswith("ringfence"):
            for name, text in {**LIMITS, "cgroup.subtree_control": ""}.items():
                write(Path(path) / name, text)

    def write_as_the_kernel_does(path: str, text: str) -> None:
        known = Path(path).read_text()
        added = text.replace("+", "") if path.endswith("subtree_control") else text
        Path(path).write_text(f"{known}{added}\n" if path.endswith(("subtree_control", "io.max")) else f"{added}\n")

    (tmp_path / "own").mkdir()
    for name, text in LIMITS.items():
        (tmp_path / "own" / name).write_text(text)
    monkeypatch.setattr(os, "mkdir", mkdir)
    play(monkeypatch, write_as_the_kernel_does)
    return tmp_path


def _twin(place: Path) -> Path:
    return place / f"{cgroup_twin.prefix()}7"


def _make(place: Path, *controllers: str) -> Path:
    group = _twin(place) / "ringfence-1-2-3-4"
    cgroup_twin.make(str(group), str(place / "own"), frozenset(controllers))
    return group


def test_only_the_controllers_that_a_job_needs_are_switched_on(place: Path) -> None:
    _make(place, "pids", "memory")
    assert (place / "cgroup.subtree_control").read_text().split() == ["pids", "memory"]
    assert (_twin(place) / "cgroup.subtree_control").read_text().split() == ["memory", "pids"]


def test_every_limit_of_the_callers_own_group_holds_in_the_twin(place: Path) -> None:
    limits = {"memory.max": "1048576\n", "pids.max": "12\n", "cpu.max": "5000 100000\n"}
    limits["io.max"] = "8:0 rbps=9 wbps=max riops=max wiops=max\n8:16 rbps=max wbps=3 riops=max wiops=max\n"
    for name, text in limits.items():
        (place / "own" / name).write_text(text)
    _make(place, "pids")
    assert {name: (_twin(place) / name).read_text() for name in LIMITS} == {**LIMITS, **limits}


def test_a_limit_that_was_lowered_holds_for_the_next_job(place: Path) -> None:
    group = _make(place, "pids")
    group.rename(group.with_name("ringfence-1-2-3-5"))
    (place / "own/pids.max").write_text("3\n")
    _make(place, "pids")
    assert (_twin(place) / "pids.max").read_text() == "3\n"


def test_a_limit_that_is_not_taken_over_is_an_error(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "own/pids.max").write_text("3\n")
    play(monkeypatch, lambda path, text: None)
    with pytest.raises(SetupError, match=r"pids.max does not take over '3' of"):
        _make(place, "pids")


def test_a_twin_that_another_caller_removes_is_made_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, removed = os.mkdir, []

    def mkdir(path: str, mode: int = 0o777) -> None:
        if not removed and Path(path).name == "ringfence-1-2-3-4":
            removed.append(_twin(place).rename(place / "removed"))
        make(path, mode)

    monkeypatch.setattr(os, "mkdir", mkdir)
    assert _make(place, "pids").is_dir()
    assert removed


def test_a_twin_that_never_stays_is_an_error_not_a_loop(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = os.mkdir

    def mkdir(path: str, mode: int = 0o777) -> None:
        if Path(path).name == "ringfence-1-2-3-4":
            raise FileNotFoundError(path)
        if not Path(path).exists():
            make(path, mode)

    monkeypatch.setattr(os, "mkdir", mkdir)
    with pytest.raises(SetupError, match="again and again"):
        _make(place, "pids")


@pytest.mark.root
def test_a_twin_of_somebody_else_is_not_used(place: Path) -> None:
    _twin(place).mkdir()
    os.chown(_twin(place), 12345, -1)
    with pytest.raises(SetupError, match="is not this user's"):
        _make(place, "pids")


def _host(place: Path) -> CgroupHost:
    usable = frozenset({"pids", cgroup_host.V2_CORE})
    hierarchy = Hierarchy(version=2, parent=str(_twin(place)), beside=str(place / "own"), usable=usable)
    return CgroupHost(kind="v2", hierarchies=(hierarchy,))


def test_the_twin_goes_with_its_last_group(tmp_path: Path) -> None:
    twin = _twin(tmp_path)
    for name in ("a", "b"):
        (twin / name).mkdir(parents=True)
    cgroup_tree.remove([str(twin / "a")])
    assert twin.is_dir()
    cgroup_tree.remove([str(twin / "b")])
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_finds_what_the_dead_left_in_any_twin_of_this_user(tmp_path: Path) -> None:
    name = f"ringfence-{os.stat('/proc/self/ns/pid').st_ino}-{2**22 - 7}-5-0"
    Path(tmp_path / f"{cgroup_twin.prefix()}8" / name).mkdir(parents=True)
    Path(tmp_path / f"{cgroup_twin.prefix()}9").mkdir()
    other = tmp_path / f"{cgroup_tree.TWIN}{os.geteuid() + 1}.8" / name
    other.mkdir(parents=True)
    assert cgroups.sweep(_host(tmp_path)) == (name,)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [other.parent.name]


def test_a_limit_is_written_in_a_group_in_the_twin(place: Path) -> None:
    group = cgroups.create(CgroupLimits(pids_max=3), host=_host(place))
    assert Path(group.directories[0]).parent == _twin(place)
    assert group.applied["pids"].applied
    assert (Path(group.directories[0]) / "pids.max").read_text() == "3\n"
