"""What the level container says that it can't hold, by name."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import pytest

from ringfence.backends.container import ContainerBackend
from ringfence.backends.in_container import promises
from ringfence.errors import UnavailableError
from ringfence.model.limits import IsolationLevel
from ringfence.model.policy import SandboxPolicy

DOCKER: dict[str, object] = {"CgroupVersion": "1", "CgroupDriver": "cgroupfs", "SecurityOptions": ["name=seccomp"]}


class Engine:
    """All that is asked of a client here."""

    is_local = True


def lacking(monkeypatch: pytest.MonkeyPatch, info: dict[str, object] | None = None, **changes: object) -> set[str]:
    backend = ContainerBackend()
    monkeypatch.setattr(backend, "client", Engine)
    backend._info = info or DOCKER
    policy = SandboxPolicy(isolation=IsolationLevel.CONTAINER).with_changes(**changes)
    return {lack.capability for lack in backend.lacks(policy)}


@pytest.mark.parametrize(("changes", "lacks"), [
    ({}, set()), ({"network": "host"}, {"network"}), ({"network": ("a.example:443",)}, set()),
    ({"io_bytes_per_s": 2**30}, {"io"}), ({"disk_bytes": 2**20}, set()), ({"mem_bytes": 2**20}, {"memory"}),
    ({"disk_bytes": 2**20, "writable_paths": ("/tmp",)}, {"disk"}), ({"cpu_share": 0.5}, set()),
])  # fmt: skip
def test_what_the_level_has_not_is_named(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], lacks: set[str]
) -> None:
    monkeypatch.delenv(promises.RUNTIME_VARIABLE, raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert lacking(monkeypatch, **changes) == lacks


@pytest.mark.parametrize("name", ["readable_paths", "writable_paths"])
def test_no_socket_and_no_fifo_is_shown_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(tmp_path):
        made.bind("socket")
    for kind in ("fifo", "socket"):
        assert lacking(monkeypatch, **{name: (f"{tmp_path}/{kind}",)}) == {name}


def test_a_list_of_hosts_takes_root_and_networks_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(promises.RUNTIME_VARIABLE, raising=False)
    listed = ("a.example:443",)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert lacking(monkeypatch, network=listed) == {"network"}
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert lacking(monkeypatch, DOCKER | {"Rootless": True, "CgroupVersion": "2"}, network=listed) == {"network"}
    monkeypatch.setenv(promises.RUNTIME_VARIABLE, "runsc")
    assert lacking(monkeypatch, network=listed) == {"network", "pids"}
    monkeypatch.delenv(promises.RUNTIME_VARIABLE)
    monkeypatch.setattr(Engine, "is_local", False)
    assert lacking(monkeypatch, network=listed) == {"network"}


def test_a_rootless_engine_lacks_what_groups_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(promises.RUNTIME_VARIABLE, raising=False)
    assert lacking(monkeypatch, DOCKER | {"Rootless": True}, cpu_share=1) == {"memory", "pids", "cpu_share"}


def test_gvisor_can_not_count_tasks_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(promises.RUNTIME_VARIABLE, "runsc")
    assert lacking(monkeypatch) == {"pids"}


def test_without_an_engine_nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_engine() -> None:
        raise UnavailableError("none answers", hint="start one")

    backend = ContainerBackend()
    monkeypatch.setattr(backend, "client", no_engine)
    policy = SandboxPolicy(isolation=IsolationLevel.CONTAINER)
    assert [lack.capability for lack in backend.lacks(policy)] == [promises.ENGINE]
    box = backend.open(policy)
    assert not any(entry.applied for entry in box.enforced.values())
    assert box.close() == ""
