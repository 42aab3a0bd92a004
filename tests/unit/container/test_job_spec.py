"""A job under a policy as a container: what is shown where, and what is refused."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from ringfence.container import job_spec
from ringfence.container.hardening import Bind, ContainerSpec, create_arguments
from ringfence.errors import PolicyError, UsageError
from ringfence.kernel.mount import submounts
from ringfence.model.job import Job
from ringfence.model.limits import IsolationLevel, SyscallProfile
from ringfence.model.policy import SandboxPolicy
from ringfence.sandbox import host

Mounted = dict[str, str]
"""Where something is mounted, and of which kind."""


@pytest.fixture(autouse=True)
def mounted(monkeypatch: pytest.MonkeyPatch) -> Mounted:
    """What is mounted on the host as these tests have it: nothing, unless one adds to it."""
    points: Mounted = {}

    def table() -> bytes:
        rows = (f"{number} 1 0:{number} / {point} rw - {kind} {kind} rw\n"
                for number, (point, kind) in enumerate(points.items(), 2))  # fmt: skip
        return b"1 0 0:1 / / rw - ext4 /dev/disk rw\n" + "".join(rows).encode()

    monkeypatch.setattr(host, "mount_table", table)
    monkeypatch.setattr(submounts, "_is_reached", lambda point, _: point in points)
    return points


def spec(policy: dict[str, object] | None = None, socket: str = "", **job: object) -> ContainerSpec:
    made = SandboxPolicy(isolation=IsolationLevel.CONTAINER).with_changes(**(policy or {}))
    asked = Job(argv=("true",), **job)  # type: ignore[arg-type]
    return job_spec.spec_of(made, asked, image="i", seccomp="{}", labels={}, files={}, socket=socket)


def test_without_a_workspace_nothing_of_the_host_is_shown() -> None:
    found = spec()
    assert found.binds == () and found.workdir == "/tmp" and list(found.tmpfs) == ["/tmp"]
    assert found.network_mode == "none" and found.read_only and found.init


def test_a_workspace_is_read_only_unless_the_policy_says_more(tmp_path: Path) -> None:
    here = str(tmp_path)
    assert spec(cwd=here).binds == (Bind(source=os.path.realpath(here), target=here, read_only=True),)
    assert not spec({"writable_paths": (here,)}, cwd=here).binds[0].read_only
    (tmp_path / "below").mkdir()
    below = spec({"writable_paths": (here,)}, cwd=f"{here}/below").binds
    assert [bind.read_only for bind in below] == [False, False]
    beside = spec({"writable_paths": (f"{here}/below",)}, cwd=here).binds
    assert {bind.target: bind.read_only for bind in beside} == {here: True, f"{here}/below": False}


def test_a_container_has_a_share_of_what_the_kernel_counts_for_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"sigpending": 1024, "msgqueue": 128 << 10, "memlock": 256 << 10, "core": 1}
    for hard, most in ((resource.RLIM_INFINITY, names), (100, {**dict.fromkeys(names, 100), "core": 1})):
        monkeypatch.setattr(resource, "getrlimit", lambda _, hard=hard: (hard, hard))
        found = spec().ulimits
        assert {name: found[name] for name in names} == {name: (number, number) for name, number in most.items()}


def test_where_the_host_is_shown_no_unix_socket_has_a_name(tmp_path: Path) -> None:
    here = str(tmp_path)
    policy = SandboxPolicy(isolation=IsolationLevel.CONTAINER)
    alone, working = Job(argv=("true",)), Job(argv=("true",), cwd=here)
    named = job_spec.seccomp(policy, alone)
    shown = [job_spec.seccomp(policy.with_changes(**{name: (here,)}), alone)
             for name in ("readable_paths", "writable_paths")]  # fmt: skip
    assert job_spec.seccomp(policy, working, SyscallProfile.DEFAULT) == named, "ours gives each job a filter"
    assert named not in (*shown, job_spec.seccomp(policy, working))


def test_hidden_things_are_covered_where_they_would_be_seen(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    hidden = (*(f"{tmp_path}/{name}" for name in ("file", "folder", "absent")), "/etc/shadow")
    found = spec({"hidden_paths": hidden}, cwd=str(tmp_path))
    assert [bind.target for bind in found.binds if bind.source == "/dev/null"] == [f"{tmp_path}/file"]
    assert [path for path in found.tmpfs if path != "/tmp"] == [f"{tmp_path}/folder"]


@pytest.mark.parametrize("shown", ["", "/deep", "/deep/engine.sock"])
def test_the_engines_socket_is_never_shown(tmp_path: Path, shown: str) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "engine.sock").touch()
    (tmp_path / "link").symlink_to("deep")
    for path in (f"{tmp_path}{shown}", f"{tmp_path}{shown.replace('deep', 'link')}"):
        with pytest.raises(UsageError, match="engine's socket"):
            spec({"readable_paths": (path,)}, socket=f"{tmp_path}/link/engine.sock")


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="no such"):
        spec({"readable_paths": ("/nonexistent",)})
    with pytest.raises(UsageError, match="no such directory"):
        spec(cwd="/nonexistent")
    with pytest.raises(UsageError, match="root of its own"):
        spec(cwd="/")


@pytest.mark.parametrize("folder", ["/usr", "/proc", "/proc/self", "/sys", "/dev"])
def test_the_systems_own_directories_are_no_workspace(folder: str) -> None:
    with pytest.raises(UsageError, match="can't be the working directory"):
        spec(cwd=folder)


def test_a_home_is_a_workspace_only_if_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under strict: whoever starts a job there by accident would show it all keys."""
    home = tmp_path / "homes" / "me"
    (home / "project").mkdir(parents=True)
    (tmp_path / "link").symlink_to(home)
    monkeypatch.setenv("HOME", str(home))
    for folder in (home, tmp_path / "link", home.parent, Path("/etc"), Path("/var"), Path("/home")):
        with pytest.raises(UsageError, match="can read all of it") as refused:
            spec(cwd=str(folder))
        assert "--here-anyway" in refused.value.hint
    assert spec({"readable_paths": (str(home),)}, cwd=str(home)).workdir == str(home)
    assert spec({"writable_paths": (str(home),)}, cwd=str(home)).workdir == str(home)
    assert spec(cwd=str(home / "project")).workdir == str(home / "project")


@pytest.mark.parametrize(("disk", "memory"), [
    (None, 512 << 20), (4 << 20, 512 << 20), (8 << 30, 64 << 20), (100, 8 << 20),
])  # fmt: skip
def test_what_can_be_written_fits_the_limit(disk: int | None, memory: int) -> None:
    policy = SandboxPolicy(isolation=IsolationLevel.CONTAINER, disk_bytes=disk, mem_bytes=memory)
    assert sum(job_spec.rooms(policy)) <= max(min(disk or memory // 2, memory), 8192)


@pytest.mark.parametrize(("shown", "hidden"), [("link", "home/key"), ("home", "link/key"), ("link", "link/key")])
def test_what_is_hidden_is_covered_by_whatever_name_it_is_shown(tmp_path: Path, shown: str, hidden: str) -> None:
    (tmp_path / "home" / "key").mkdir(parents=True)
    (tmp_path / "home" / "file").touch()
    (tmp_path / "link").symlink_to("home")
    hidden_paths = (f"{tmp_path}/{hidden}", f"{tmp_path}/home/file")
    found = spec({"readable_paths": (f"{tmp_path}/{shown}",), "hidden_paths": hidden_paths})
    assert [path for path in found.tmpfs if path != "/tmp"] == [f"{tmp_path}/{shown}/key"]
    assert [bind.target for bind in found.binds if bind.source == "/dev/null"] == [f"{tmp_path}/{shown}/file"]


def test_what_lies_in_a_hidden_folder_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "home" / "public").mkdir(parents=True)
    for field in ("readable_paths", "writable_paths"):
        with pytest.raises(PolicyError, match="is in them"):
            spec({field: (f"{tmp_path}/home/public",), "hidden_paths": (f"{tmp_path}/home",)})
    with pytest.raises(PolicyError, match="is in them"):
        spec({"hidden_paths": (f"{tmp_path}/home",)}, cwd=f"{tmp_path}/home/public")


def test_folders_of_ours_are_for_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "state" / "ringfence"
    own.mkdir(parents=True)
    monkeypatch.setattr(job_spec.state_folder, "own_places", lambda: (str(own),))
    for policy in ({"readable_paths": (str(own),)}, {"writable_paths": (str(tmp_path),)}):
        with pytest.raises(UsageError):
            spec(policy)
    assert str(own) in spec(cwd=str(tmp_path)).tmpfs, "in a workspace it is covered"


def test_a_link_to_the_root_is_the_root(tmp_path: Path) -> None:
    (tmp_path / "all").symlink_to("/")
    with pytest.raises(UsageError, match="root of its own"):
        spec({"readable_paths": (f"{tmp_path}/all",)})


def test_no_link_of_the_workspace_chooses_what_is_bound(tmp_path: Path) -> None:
    (tmp_path / "repo" / "own").mkdir(parents=True)
    (tmp_path / "keys").mkdir()
    for name, target in (("data", "../keys"), ("deep", "own/../../keys"), ("in", "own")):
        (tmp_path / "repo" / name).symlink_to(target)
    for name in ("data", "deep"):
        with pytest.raises(PolicyError, match="through the link"):
            spec({"readable_paths": (f"{tmp_path}/repo/{name}",)}, cwd=f"{tmp_path}/repo")
        assert spec({"readable_paths": (f"{tmp_path}/repo/{name}",)})  # the control: nobody works there
    assert spec({"readable_paths": (f"{tmp_path}/repo/in",)}, cwd=f"{tmp_path}/repo")


def test_what_is_mounted_below_is_shown_by_itself_and_read_only(tmp_path: Path, mounted: Mounted) -> None:
    top = tmp_path / "devices"
    top.mkdir()
    (tmp_path / "link").symlink_to("devices")
    mounted[str(top / "pts")], mounted[str(top / "pts/deep")] = "devpts", "tmpfs"
    mounted[str(top / "kernel")] = "proc"  # can't be shown
    mounted[str(tmp_path / "beside")] = "tmpfs"
    found = spec({"readable_paths": (f"{tmp_path}/link",)}).binds
    assert [(bind.source, bind.target) for bind in found] == [
        (f"{top}{name}", f"{tmp_path}/link{name}") for name in ("", "/pts", "/pts/deep")
    ]
    assert all(bind.read_only for bind in found)
    below = spec({"writable_paths": (f"{tmp_path}/link",)}).binds
    assert [bind.source for bind in below] == [str(top)], "what is written comes with all that is in it"


def test_a_directory_that_is_only_read_comes_without_what_is_mounted_in_it(tmp_path: Path) -> None:
    folder = create_arguments(spec({"readable_paths": (str(tmp_path),)}))["HostConfig"]["Mounts"][0]  # type: ignore[index]
    assert folder["ReadOnly"] and folder["BindOptions"]["NonRecursive"]
