"""A container is closed unless somebody opens it."""

from __future__ import annotations

import json

import pytest

from ringfence.container.hardening import Bind, ContainerSpec, create_arguments
from ringfence.errors import UsageError


def config(**fields: object) -> dict[str, object]:
    found = create_arguments(ContainerSpec(argv=("python3",), **fields))["HostConfig"]  # type: ignore[arg-type]
    assert isinstance(found, dict)
    return found


def test_what_is_not_said_is_closed() -> None:
    found = config()
    assert found["MemorySwap"] == found["Memory"] == 512 << 20 and found["PidsLimit"] == 64
    assert found["ReadonlyRootfs"] is True and found["NetworkMode"] == "none" and found["Privileged"] is False
    assert found["CapDrop"] == ["ALL"] and found["SecurityOpt"] == ["no-new-privileges"]
    assert found["LogConfig"] == {"Type": "none", "Config": {}} and "CapAdd" not in found and "Devices" not in found
    assert "noexec" in found["Tmpfs"]["/tmp"] and "nosuid" in found["Tmpfs"]["/tmp"]  # type: ignore[index]
    whole = create_arguments(ContainerSpec(argv=("a", "b")))
    assert whole["User"] == "65534:65534" and whole["Entrypoint"] == ["a"] and whole["Cmd"] == ["b"]
    json.dumps(whole)


def test_what_is_said_is_passed_on() -> None:
    found = config(cpus=0.5, runtime="runsc", userns="host", seccomp="{}", log_bytes=100, memory_swap_bytes=1 << 30,
                   binds=(Bind(source="/a", target="/b"),), ulimits={"nofile": (64, 64)})  # fmt: skip
    assert found["NanoCpus"] == 500_000_000 and found["Runtime"] == "runsc" and found["UsernsMode"] == "host"
    assert found["SecurityOpt"] == ["no-new-privileges", "seccomp={}"] and found["MemorySwap"] == 1 << 30
    assert found["LogConfig"] == {"Type": "json-file", "Config": {"max-size": "100", "max-file": "1"}}
    assert found["Mounts"][0]["ReadOnly"] is True  # type: ignore[index]
    assert found["Ulimits"] == [{"Name": "nofile", "Soft": 64, "Hard": 64}]


@pytest.mark.parametrize("fields", [
    {"memory_bytes": 1}, {"memory_bytes": 1 << 30, "memory_swap_bytes": 1 << 29}, {"pids": 0}, {"pids": -1},
    {"cpus": 0},
    {"seccomp": "unconfined"}, {"network_mode": "host"}, {"network_mode": "container:other"}, {"image": ""},
    {"binds": (Bind(source="a", target="/b"),)}, {"binds": (Bind(source="/a/../b", target="/b"),)},
    {"tmpfs": {"tmp": ""}}, {"workdir": "x"}, {"environment": {"a": "b\0c"}}, {"user": "a\0"},
], ids=str)  # fmt: skip
def test_what_would_open_it_or_has_no_meaning_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="container"):
        config(**fields)
