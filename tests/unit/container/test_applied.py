"""What was really applied: nothing is believed that the engine or the kernel does not say."""

from __future__ import annotations

import pytest

from ringfence.container.applied import read_back
from ringfence.container.hardening import ContainerSpec, create_arguments
from ringfence.model.record import replace

SPEC = ContainerSpec(argv=("x",), cpus=0.5, seccomp="{}", ulimits={"nofile": (64, 64), "fsize": (9, 9), "cpu": (2, 3)})
INFO: dict[str, object] = {"SecurityOptions": ["name=seccomp,profile=default"], "MemoryLimit": True, "SwapLimit": True,
                           "PidsLimit": True, "CpuCfsQuota": True, "CgroupVersion": "1",
                           "CgroupDriver": "cgroupfs"}  # fmt: skip
V1 = {"memory.limit_in_bytes": str(512 << 20), "memory.memsw.limit_in_bytes": str(512 << 20), "pids.max": "64",
      "cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"}  # fmt: skip
V2 = {"memory.max": str(512 << 20), "memory.swap.max": "0", "pids.max": "64", "cpu.max": "50000 100000"}


def inspected(**changes: object) -> dict[str, object]:
    body = create_arguments(SPEC)
    host = body["HostConfig"]
    assert isinstance(host, dict)
    return {"HostConfig": host | changes, "Config": {"User": body["User"]}}


@pytest.mark.parametrize("files", [{}, V1, V2], ids=["unread", "v1", "v2"])
def test_all_is_applied_where_all_say_so(files: dict[str, str]) -> None:
    table = read_back(SPEC, inspected(), INFO, files)
    assert {name for name, entry in table.items() if not entry.applied} == set()
    assert set(table) == {"memory", "swap", "cpu_share", "pids", "network", "read_only_root", "capabilities",
                          "new_privileges", "syscalls", "user", "nofile", "file_size", "cpu_time"}  # fmt: skip
    assert ("can't be read" in table["memory"].details) is not bool(files)


@pytest.mark.parametrize(("name", "changes"), [
    ("memory", {"Memory": 0}), ("swap", {"MemorySwap": -1}), ("pids", {"PidsLimit": None}),
    ("cpu_share", {"NanoCpus": 0}),
    ("network", {"NetworkMode": "bridge"}), ("read_only_root", {"ReadonlyRootfs": False}),
    ("capabilities", {"CapDrop": []}), ("capabilities", {"CapAdd": ["SYS_ADMIN"]}),
    ("capabilities", {"Privileged": True}),
    ("new_privileges", {"SecurityOpt": ["seccomp={}"]}), ("syscalls", {"SecurityOpt": ["no-new-privileges"]}),
    ("syscalls", {"SecurityOpt": ["seccomp=unconfined"]}), ("nofile", {"Ulimits": []}),
    ("cpu_time", {"Ulimits": [{"Name": "cpu", "Soft": 99, "Hard": 99}]}),
], ids=str)  # fmt: skip
def test_what_the_engine_does_not_say_is_not_applied(name: str, changes: dict[str, object]) -> None:
    assert not read_back(SPEC, inspected(**changes), INFO, {})[name].applied


@pytest.mark.parametrize(("name", "files"), [
    ("memory", {"memory.limit_in_bytes": "9223372036854771712"}), ("memory", {"memory.max": "max"}),
    ("memory", {"memory.limit_in_bytes": "4096"}), ("swap", {"memory.memsw.limit_in_bytes": str(1 << 40)}),
    ("swap", {"memory.swap.max": "max"}), ("pids", {"pids.max": "max"}), ("cpu_share", {"cpu.max": "max 100000"}),
    ("cpu_share", {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}),
], ids=str)  # fmt: skip
def test_the_kernel_has_the_last_word(name: str, files: dict[str, str]) -> None:
    entry = read_back(SPEC, inspected(), INFO, files)[name]
    assert not entry.applied and "control group" in entry.details


@pytest.mark.parametrize("info", [
    INFO | {"SecurityOptions": ["name=seccomp,profile=default", "name=rootless"]},
    INFO | {"Rootless": True}, INFO | {"CgroupDriver": "none"},
], ids=["docker", "podman", "no groups"])  # fmt: skip
def test_a_rootless_engine_with_version_1_holds_no_group_limit_whatever_it_says(info: dict[str, object]) -> None:
    table = read_back(SPEC, inspected(), info, {})
    assert {name for name, entry in table.items() if not entry.applied} == {"memory", "swap", "pids", "cpu_share"}


def test_what_the_engine_says_that_it_cannot_is_not_applied() -> None:
    table = read_back(SPEC, inspected(), INFO | {"SwapLimit": False, "SecurityOptions": []}, {})
    assert {name for name, entry in table.items() if not entry.applied} == {"swap", "syscalls"}


@pytest.mark.parametrize(("user", "said"), [
    ("65534:65534", "an id without rights"), ("0:0", "the id of root"), ("00:7", "the id of root"),
    ("0", "the id of root"),
    ("1000:0", "in the group of root"), ("1000", "in the group of root"),
])  # fmt: skip
def test_the_id_of_root_is_called_that(user: str, said: str) -> None:
    spec = replace(SPEC, user=user)
    entry = read_back(spec, inspected() | {"Config": {"User": user}}, INFO, {})["user"]
    assert entry.applied and said in entry.details and ("root" in said) is ("root" in entry.details)


def test_nonsense_in_place_of_an_inspection_applies_nothing() -> None:
    table = read_back(SPEC, {"HostConfig": 7, "Config": None}, {}, {})
    assert not any(entry.applied for entry in table.values())


def test_gvisor_has_a_filter_only_where_its_runtime_is_told() -> None:
    for arguments, held in ([], False), (["--oci-seccomp"], True):
        info = INFO | {"Runtimes": {"other": {"path": "/usr/bin/runsc", "runtimeArgs": arguments}}}
        table = read_back(SPEC, inspected(Runtime="other"), info, {})
        assert table["syscalls"].applied is held
    assert not read_back(SPEC, inspected(Runtime="runsc"), INFO, {})["syscalls"].applied
    assert read_back(SPEC, inspected(Runtime="runc"), INFO, {})["syscalls"].applied
