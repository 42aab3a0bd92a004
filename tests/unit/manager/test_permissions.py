"""What a config becomes for the engine: nothing of it is lost, and nothing contradicts itself in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.errors import PolicyError
from ringfence.manager import permissions
from ringfence.manager.config import SandboxConfig
from ringfence.model.limits import IsolationLevel
from ringfence.model.network_rule import NetworkRule
from ringfence.monitor.limits import ResourceLimits

pytestmark = pytest.mark.privileges


def test_limits_become_the_policys() -> None:
    limits = ResourceLimits(max_memory_mb=64, max_disk_mb=32, max_execution_time=7)
    policy = permissions.to_policy(SandboxConfig(resource_limits=limits, max_processes=9))
    assert (policy.mem_bytes, policy.disk_bytes, policy.wall_time_s, policy.pids_max) == (64 << 20, 32 << 20, 7, 9)


@pytest.mark.parametrize("name", ["max_execution_time", "max_memory_mb", "max_disk_mb"])
def test_a_limit_that_leaves_nothing_is_named(name: str) -> None:
    with pytest.raises(PolicyError) as error:
        permissions.to_policy(SandboxConfig(resource_limits=ResourceLimits(**{name: 0})))
    assert error.value.field == name


def test_the_network_is_none_the_hosts_or_some_hosts() -> None:
    assert permissions.to_policy(SandboxConfig()).network == "none"
    assert permissions.to_policy(SandboxConfig(allow_network=True)).network == "host"
    some = SandboxConfig(allow_network=True, allowed_hosts=["A.example.", {"host": "b.example", "max_bytes_in": "1K"}])
    named, bounded = permissions.to_policy(some).network_rule
    assert named == NetworkRule(host="a.example") and bounded == NetworkRule(host="b.example", max_bytes_in=1024)


def test_of_system_folders_only_secrets_are_hidden_and_of_others_the_whole() -> None:
    hidden = permissions.to_policy(SandboxConfig()).hidden_paths
    assert "/etc" not in hidden and "/sys" not in hidden
    assert {"/etc/shadow", "/etc/sudoers", "/etc/pip.conf", "/boot", "/sys/firmware"} <= set(hidden)
    assert not [path for path in hidden if "Windows" in path]
    assert permissions.to_policy(SandboxConfig(blocked_paths=[Path("/srv/x")])).hidden_paths == ("/srv/x",)
    assert permissions.to_policy(SandboxConfig(blocked_paths=[])).hidden_paths == ()


@pytest.mark.parametrize("field", ["allowed_paths", "readable_paths"])
def test_a_path_in_a_blocked_one_is_a_contradiction(field: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    for path in ("/etc/ssl", "/etc", str(tmp_path / "link")):
        with pytest.raises(PolicyError, match="blocked"):
            permissions.to_policy(SandboxConfig(**{field: [Path(path)]}))  # type: ignore[arg-type]


def test_a_blocked_path_in_an_allowed_one_is_hidden(tmp_path: Path) -> None:
    config = SandboxConfig(allowed_paths=[tmp_path], blocked_paths=[tmp_path / ".env"])
    assert permissions.to_policy(config).hidden_paths == (str(tmp_path / ".env"),)


def test_a_blocked_path_is_hidden_by_all_its_names(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "way").symlink_to("real")
    (tmp_path / "real" / "key").symlink_to("real-key")
    config = SandboxConfig(blocked_paths=[tmp_path / "way" / "key"])
    names = (tmp_path / "way" / "key", tmp_path / "real" / "key", tmp_path / "real" / "real-key")
    assert permissions.to_policy(config).hidden_paths == tuple(map(str, names))


def test_a_link_to_a_system_folder_hides_what_the_folder_itself_would(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    hidden = permissions.to_policy(SandboxConfig(blocked_paths=[tmp_path / "link"])).hidden_paths
    assert "/etc/shadow" in hidden and "/etc" not in hidden


@pytest.mark.parametrize("field", ["allowed_paths", "blocked_paths"])
def test_the_whole_system_is_refused(field: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/")
    for path in ("/", "//", str(tmp_path / "link")):
        with pytest.raises(PolicyError, match="the whole system") as error:
            permissions.to_policy(SandboxConfig(**{field: [Path(path)]}))  # type: ignore[arg-type]
        assert error.value.field == field


def test_no_isolation_says_so_in_its_name_and_asks_for_nothing() -> None:
    policy = permissions.to_policy(SandboxConfig(isolation_level=IsolationLevel.NONE))
    assert not policy.allow_partial and not policy.hidden_paths and not policy.readable_paths
    assert not permissions.to_policy(SandboxConfig()).allow_partial
