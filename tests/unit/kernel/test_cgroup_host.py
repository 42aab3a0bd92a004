"""What is found on hosts of every kind: made-up mount tables over directories that play the hierarchies."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from tests.unit.kernel.played_writes import play

from ringfence.errors import PolicyError, SetupError
from ringfence.kernel.cgroup import group as cgroups
from ringfence.kernel.cgroup import host as cgroup_host
from ringfence.kernel.cgroup import tree as cgroup_tree
from ringfence.kernel.cgroup.group import CgroupLimits
from ringfence.kernel.cgroup.host import Mount, parse_mounts, parse_own_groups

pytestmark = pytest.mark.privileges

HYBRID_GROUPS = "4:memory:/jobs/a\n3:cpu,cpuacct:/\n2:pids:/\n1:name=systemd:/init.scope\n0::/jobs\n"


class FakeHost:
    """A proc directory and hierarchies below ``root``, on the device that the mount table names or another."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lines: list[str] = []
        (root / "proc/self").mkdir(parents=True)

    def device(self) -> str:
        number = os.stat(self.root).st_dev
        return f"{os.major(number)}:{os.minor(number)}"

    def mount(self, name: str, kind: str, options: str, *, root: str = "/", device: str = "") -> Path:
        place = self.root / name
        place.mkdir(parents=True, exist_ok=True)
        shown = str(place).replace("\\", "\\134").replace(" ", "\\040")
        self.lines.append(f"30 25 {device or self.device()} {root} {shown} rw - {kind} {kind} {options}")
        return place

    def group(self, path: Path, **files: str) -> Path:
        path.mkdir(parents=True, exist_ok=True)
        for name, content in {"cgroup_procs": "", **files}.items():
            (path / name.replace("_", ".", 1)).write_text(content)
        return path

    def probe(self, groups: str, **options: str) -> cgroups.CgroupHost:
        (self.root / "proc/self/cgroup").write_text(groups)
        (self.root / "proc/self/mountinfo").write_text("\n".join(self.lines) + "\n")
        return cgroups.probe(proc=str(self.root / "proc"), **options)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    monkeypatch.delenv(cgroup_host.PARENT_VARIABLE, raising=False)
    return FakeHost(tmp_path)


def _v2_files(controllers: str, subtree: str, procs: str = "") -> dict[str, str]:
    return {"cgroup_controllers": controllers, "cgroup_subtree_control": subtree, "cgroup_procs": procs,
            "cgroup_type": "domain\n"}  # fmt: skip


def test_own_groups_are_read_with_colons_joint_controllers_and_the_deleted_mark() -> None:
    text = "5:cpu,cpuacct:/a:b\n3:name=systemd:/x\n0::/user.slice/run-1.scope (deleted)\n"
    assert parse_own_groups(text) == {
        "cpu": "/a:b", "cpuacct": "/a:b", "name=systemd": "/x", "": "/user.slice/run-1.scope",
    }  # fmt: skip


def test_mounts_are_read_with_escapes_optional_fields_and_without_strangers() -> None:
    table = (
        "1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
        "2 1 0:30 /docker/ab /sys/fs/my\\040cgroup\\134x rw shared:9 master:2 - cgroup cgroup rw,memory\n"
        "3 1 0:31 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
        "4 1 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n"
    )
    v1, v2 = parse_mounts(table, frozenset({"memory", "cpu"}))
    assert v1 == Mount(version=1, mountpoint="/sys/fs/my cgroup\\x", root="/docker/ab", device="0:30",
                       controllers=frozenset({"memory"}))  # fmt: skip
    assert v2 == Mount(version=2, mountpoint="/sys/fs/cgroup/unified", root="/", device="0:32")


@pytest.mark.parametrize(("root", "group", "place"), [
    ("/", "/", "/m"),
    ("/", "/a/b", "/m/a/b"),
    ("/docker/ab", "/docker/ab", "/m"),
    ("/docker/ab", "/docker/ab/c", "/m/c"),
    ("/docker/ab", "/docker/abc", None),
    ("/docker/ab", "/", None),
    ("/", "/../x", None),
    ("/..", "/../x", "/m/x"),
])  # fmt: skip
def test_a_group_is_found_below_the_mount_that_shows_it(root: str, group: str, place: str | None) -> None:
    assert Mount(version=2, mountpoint="/m", root=root, device="0:1").directory_of(group) == place


def test_a_host_without_cgroups_says_how_to_mount_them(fake: FakeHost) -> None:
    host = fake.probe("0::/\n")
    assert host.kind == "none"
    assert host.missing("memory") == cgroup_host.cgroup_fixes.NOT_MOUNTED


def test_a_v1_host_has_one_hierarchy_per_mount_at_its_own_group(fake: FakeHost) -> None:
    fake.group(fake.mount("memory", "cgroup", "rw,memory") / "jobs/a")
    fake.group(fake.mount("cpu,cpuacct", "cgroup", "rw,cpu,cpuacct"))
    host = fake.probe("4:memory:/jobs/a\n3:cpu,cpuacct:/\n")
    assert host.kind == "v1"
    assert host.find("memory") == (host.hierarchies[0], "memory")
    assert host.hierarchies[0].parent == str(fake.root / "memory/jobs/a")
    assert host.find("cpu_share") == (host.hierarchies[1], "cpu")
    assert host.find("cpu_usage") == (host.hierarchies[1], "cpuacct")
    problem, fix = host.missing("pids") or ("", "")
    assert problem == "the cgroup v1 pids controller is not mounted"
    assert "mount -t cgroup -o pids pids" in fix


def test_a_hybrid_host_takes_limits_from_v1_and_the_killing_from_v2(fake: FakeHost) -> None:
    fake.group(fake.mount("memory", "cgroup", "rw,memory") / "jobs/a")
    fake.group(fake.mount("unified", "cgroup2", "rw") / "jobs", **_v2_files("", ""))
    host = fake.probe(HYBRID_GROUPS)
    assert host.kind == "hybrid"
    assert [host.find(name)[0].version for name in ("memory", "freeze", "cpu_usage")] == [1, 2, 2]


def test_a_v2_group_whose_children_have_the_controllers_is_used_as_it_is(fake: FakeHost) -> None:
    everything = "cpu io memory pids"
    fake.group(fake.mount("cg", "cgroup2", "rw") / "mine", **_v2_files(everything, everything))
    host = fake.probe("0::/mine\n")
    assert host.kind == "v2"
    assert host.missing("io") is None
    assert not host.hierarchies[0].moves_callers


def test_a_v2_group_with_only_our_processes_is_used_by_moving_them(fake: FakeHost) -> None:
    files = _v2_files("memory pids", "", procs=f"{os.getpid()}\n")
    fake.group(fake.mount("cg", "cgroup2", "rw") / "mine", **files)
    host = fake.probe("0::/mine\n")
    assert host.hierarchies[0].moves_callers
    assert host.missing("memory") is None
    assert (host.missing("cpu_share") or ("",))[0].startswith("the cpu controller is not enabled in")


def test_a_v2_group_with_others_in_it_is_refused_for_limits_only(fake: FakeHost) -> None:
    files = _v2_files("memory pids", "", procs=f"{os.getpid()}\n{os.getppid()}\n")
    fake.group(fake.mount("cg", "cgroup2", "rw") / "mine", **files)
    host = fake.probe("0::/mine\n")
    assert "ringfence must not move" in (host.missing("memory") or ("",))[0]
    assert host.missing("freeze") is None


def test_processes_of_another_pid_namespace_are_not_ours_to_move(fake: FakeHost) -> None:
    fake.group(fake.mount("cg", "cgroup2", "rw") / "mine", **_v2_files("memory", "", procs="0\n"))
    assert "ringfence must not move" in (fake.probe("0::/mine\n").missing("memory") or ("",))[0]


def test_a_caller_that_has_moved_before_finds_its_place_again(fake: FakeHost) -> None:
    cg = fake.mount("cg", "cgroup2", "rw")
    fake.group(cg / "mine", **_v2_files("memory pids", "memory pids"))
    fake.group(cg / "mine" / cgroup_host.SUPERVISOR, **_v2_files("", ""))
    (hierarchy,) = fake.probe(f"0::/mine/{cgroup_host.SUPERVISOR}\n").hierarchies
    assert hierarchy.parent == str(cg / "mine")


def test_a_process_outside_its_cgroup_namespace_is_told_so(fake: FakeHost) -> None:
    cg = fake.group(fake.mount("cg", "cgroup2", "rw"), **_v2_files("memory", "memory"))
    problem, fix = fake.probe("0::/../other\n").missing("memory") or ("", "")
    assert problem == f"this process is in the group /../other, which is outside of what {cg} shows"
    assert fix.startswith("sudo unshare --cgroup --mount") and str(cg) in fix


def test_a_plain_folder_in_the_place_of_a_cgroup_is_no_cgroup(fake: FakeHost) -> None:
    fake.group(fake.mount("memory", "cgroup", "rw,memory", device="0:9999"))
    host = fake.probe("4:memory:/\n")
    assert host.find("memory") is None
    assert "is a plain directory, not a control group" in (host.missing("memory") or ("",))[0]


def test_a_second_mount_that_shows_the_group_is_preferred_to_one_that_does_not(fake: FakeHost) -> None:
    fake.mount("partial", "cgroup", "rw,memory", root="/elsewhere")
    fake.group(fake.mount("full", "cgroup", "rw,memory") / "mine")
    assert fake.probe("4:memory:/mine\n").hierarchies[0].parent == str(fake.root / "full/mine")


def test_a_given_parent_may_be_a_group_or_its_folder(fake: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    cg = fake.mount("cg", "cgroup2", "rw")
    fake.group(cg, **_v2_files("memory", "memory"))
    fake.group(cg / "given", **_v2_files("memory", "memory"))
    for parent in ("/given", "/given/", str(cg / "given")):
        assert fake.probe("0::/\n", parent=parent).hierarchies[0].parent == str(cg / "given")
    monkeypatch.setenv(cgroup_host.PARENT_VARIABLE, "/given")
    assert fake.probe("0::/\n").hierarchies[0].parent == str(cg / "given")


@pytest.mark.parametrize("parent", ["given", "/a/../b", "../x"])
def test_a_given_parent_that_is_no_absolute_path_is_refused(fake: FakeHost, parent: str) -> None:
    with pytest.raises(PolicyError, match=cgroup_host.PARENT_VARIABLE):
        fake.probe("0::/\n", parent=parent)


def test_a_given_parent_that_does_not_exist_says_how_to_make_it(fake: FakeHost) -> None:
    cg = fake.mount("cg", "cgroup2", "rw")
    fake.group(cg, **_v2_files("memory", "memory"))
    assert fake.probe("0::/\n", parent="/none").missing("memory") == (
        f"there is no control group {cg}/none", f"sudo mkdir -p {cg}/none",
    )  # fmt: skip


def test_writing_a_limit_never_makes_a_plain_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        cgroup_tree.write(str(tmp_path / "memory.max"), "1")
    assert list(tmp_path.iterdir()) == []


def test_a_write_without_effect_is_a_set_up_error(fake: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mechanism that swallows what is written: the value that is read back stays ``max``."""
    cg = fake.mount("cg", "cgroup2", "rw")
    fake.group(cg, **_v2_files("pids", "pids"))
    host = fake.probe("0::/\n")
    play(monkeypatch, lambda path, text: Path(path).write_text("max\n"))
    monkeypatch.setattr(cgroup_tree, "remove", lambda directories, **_: None)
    with pytest.raises(SetupError, match=r"pids.max: wrote '7', but it reads 'max'"):
        cgroups.create(CgroupLimits(pids_max=7), host=host)
    play(monkeypatch, lambda path, text: Path(path).write_text(text))
    assert cgroups.create(CgroupLimits(pids_max=7), host=host).applied["pids"].applied, "the control"


def test_with_allow_partial_the_table_says_what_was_not_applied(fake: FakeHost) -> None:
    cg = fake.mount("cg", "cgroup2", "rw")
    fake.group(cg, **_v2_files("", ""))
    host = fake.probe("0::/\n")
    group = cgroups.create(CgroupLimits(mem_bytes=1 << 20), host=host, allow_partial=True)
    row = group.applied["memory"]
    assert (row.applied, row.mechanism) == (False, "none")
    assert "memory controller" in row.details


def test_sweeping_leaves_alone_what_it_cannot_judge(fake: FakeHost) -> None:
    """Groups of other pid namespaces, of makers that could not tell their start, and with other names."""
    cg = fake.mount("cg", "cgroup2", "rw")
    fake.group(cg, **_v2_files("", ""))
    here = os.stat("/proc/self/ns/pid").st_ino
    dead = 2**22 - 7
    kept = [f"ringfence-{here + 1}-{dead}-5-0", f"ringfence-{here}-{dead}-0-0", "ringfence-x", "other"]
    kept += [f"ringfence-{here}-{2**70}-5-0", f"ringfence-{here}-{dead}-5-0-1", f"ringfence-{here}-{dead}-5-٣"]
    gone = [f"ringfence-{here}-{dead}-5-0", f"ringfence-{here}-{os.getpid()}-5-0"]
    for name in kept + gone:
        (cg / name).mkdir()
    assert sorted(cgroups.sweep(fake.probe("0::/\n"))) == sorted(gone)
    assert sorted(entry.name for entry in cg.iterdir() if entry.is_dir()) == sorted(kept)


def test_a_probe_makes_and_changes_nothing(fake: FakeHost) -> None:
    files = _v2_files("memory pids", "", procs=f"{os.getpid()}\n")
    mine = fake.group(fake.mount("cg", "cgroup2", "rw") / "mine", **files)
    before = {path.name: path.read_text() for path in mine.iterdir()}
    host = fake.probe("0::/mine\n")
    assert dataclasses.asdict(host)["kind"] == "v2"
    assert {path.name: path.read_text() for path in mine.iterdir()} == before


MANY = "cpu io memory pids"


def _remembered(fake: FakeHost) -> tuple[Path, cgroups.CgroupHost]:
    place = fake.mount("v2", "cgroup2", "rw")
    group = fake.group(place / "job", **_v2_files(MANY, MANY))
    return group, fake.probe("0::/job\n")


def test_a_host_that_did_not_change_is_not_looked_at_again(fake: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    _, host = _remembered(fake)
    monkeypatch.setattr(cgroup_host, "_look", None)
    assert fake.probe("0::/job\n") is host
    with pytest.raises(TypeError):
        fake.probe("0::/other\n")


def test_a_group_that_is_gone_is_noticed_by_the_next_probe(fake: FakeHost) -> None:
    group, host = _remembered(fake)
    assert host.missing("memory") is None
    group.rename(group.with_name("elsewhere"))
    assert "there is no control group" in fake.probe("0::/job\n").hierarchies[0].problem


def test_a_controller_that_was_taken_away_is_noticed_by_the_next_probe(fake: FakeHost) -> None:
    group, _ = _remembered(fake)
    (group / "cgroup.controllers").write_text("cpu pids")
    (group / "cgroup.subtree_control").write_text("cpu pids")
    assert "memory controller is not enabled" in (fake.probe("0::/job\n").missing("memory") or "")[0]


def test_another_group_in_its_place_is_noticed_by_the_next_probe(fake: FakeHost) -> None:
    group, host = _remembered(fake)
    group.rename(group.with_name("elsewhere"))
    fake.group(group, **_v2_files("pids", "pids"))
    assert fake.probe("0::/job\n") != host


def test_a_host_without_any_group_is_looked_at_every_time(fake: FakeHost) -> None:
    assert fake.probe("").kind == "none"
    fake.group(fake.mount("v2", "cgroup2", "rw") / "job", **_v2_files(MANY, MANY))
    (fake.root / "proc/self/cgroup").write_text("")
    assert fake.probe("").kind == "v2"


def _shared(fake: FakeHost, own: str = "user.slice/shared.scope", **above: str) -> Path:
    """Our own group, which holds a process of others, below a group that is as ``above`` says."""
    cg = fake.group(fake.mount("cg", "cgroup2", "rw"), cgroup_controllers=MANY, cgroup_subtree_control=MANY)
    for part in Path(own).parents:
        if part != Path():
            fake.group(cg / part, **{**_v2_files(MANY, "memory pids"), **above})
    return fake.group(cg / own, **_v2_files("memory pids", "", procs=f"{os.getpid()}\n{os.getppid()}\n"))


def test_beside_a_group_that_holds_others_there_is_room_in_the_group_above(fake: FakeHost) -> None:
    own = _shared(fake)
    host = fake.probe("0::/user.slice/shared.scope\n")
    (hierarchy,) = host.hierarchies
    twin = own.parent / f"ringfence.jobs-{os.geteuid()}.{own.stat().st_ino}"
    assert (hierarchy.parent, hierarchy.beside, hierarchy.problem) == (str(twin), str(own), "")
    assert [host.missing(name) for name in ("memory", "pids", "cpu_share", "io", "freeze")] == [None] * 5
    assert not twin.exists(), "a probe makes nothing"


def test_the_places_are_told_in_the_order_in_which_they_were_tried(fake: FakeHost) -> None:
    own = _shared(fake)
    (hierarchy,) = fake.probe("0::/user.slice/shared.scope\n").hierarchies
    first, second = hierarchy.tried
    assert (first.what, first.directory) == (cgroup_host.OWN, str(own))
    assert "ringfence must not move" in first.problem
    assert (second.what, second.directory, second.problem) == (cgroup_host.BESIDE, hierarchy.parent, "")


def test_a_group_that_is_given_is_the_only_place(fake: FakeHost) -> None:
    own = _shared(fake)
    (hierarchy,) = fake.probe("0::/\n", parent="/user.slice/shared.scope").hierarchies
    assert [(place.what, place.directory) for place in hierarchy.tried] == [(cgroup_host.GIVEN, str(own))]
    assert "ringfence must not move" in hierarchy.problem


def test_groups_above_that_hold_processes_are_passed_up_to_the_root_of_the_tree(fake: FakeHost) -> None:
    """The real root may hold processes too, and has no cgroup.type."""
    own = _shared(fake, cgroup_procs="1\n")
    (fake.root / "cg/cgroup.procs").write_text("1\n")
    (hierarchy,) = fake.probe("0::/user.slice/shared.scope\n").hierarchies
    assert (hierarchy.beside, os.path.dirname(hierarchy.parent)) == (str(own.parent), str(fake.root / "cg"))


def test_the_root_of_a_cgroup_namespace_is_no_root_of_the_tree(fake: FakeHost) -> None:
    _shared(fake, own="shared.scope")
    fake.group(fake.root / "cg", **_v2_files(MANY, "", procs="1\n"))
    (hierarchy,) = fake.probe("0::/shared.scope\n").hierarchies
    assert hierarchy.tried[1].problem == "no group above it is free of processes"
    assert "ringfence must not move" in hierarchy.problem


def test_a_job_does_not_leave_its_own_group(fake: FakeHost) -> None:
    _shared(fake, own="user.slice/ringfence-1-2-3-4/shared.scope", cgroup_procs="")
    fake.group(fake.root / "cg/user.slice/ringfence-1-2-3-4", **_v2_files(MANY, "", procs="1\n"))
    (hierarchy,) = fake.probe("0::/user.slice/ringfence-1-2-3-4/shared.scope\n").hierarchies
    assert hierarchy.tried[1].problem == "it is the group of a job, which its processes must not leave"
    assert not hierarchy.beside


@pytest.mark.root
@pytest.mark.parametrize("owned", ["cg/user.slice", "cg"])
def test_root_takes_no_place_in_which_a_user_could_move_its_jobs(fake: FakeHost, owned: str) -> None:
    _shared(fake)
    os.chown(fake.root / owned, 12345, -1)
    (hierarchy,) = fake.probe("0::/user.slice/shared.scope\n").hierarchies
    assert "is not this user's alone" in hierarchy.tried[1].problem
    assert not hierarchy.beside


def test_a_place_that_loses_its_controllers_is_looked_at_again(fake: FakeHost) -> None:
    own = _shared(fake)
    host = fake.probe("0::/user.slice/shared.scope\n")
    assert fake.probe("0::/user.slice/shared.scope\n") is host
    (own.parent / "cgroup.subtree_control").write_text("")
    assert fake.probe("0::/user.slice/shared.scope\n") is not host
