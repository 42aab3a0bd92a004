"""A config is the specification's, checked when it is made, and survives being written down."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from ringfence.errors import PolicyError, UsageError
from ringfence.manager.config import SandboxConfig, SandboxMode, of_this_system
from ringfence.manager.registry import Registry
from ringfence.model.limits import IsolationLevel
from ringfence.model.state_folder import sandboxes_folder
from ringfence.monitor.limits import ResourceLimits

SPECIFIED = {
    "enable_sandboxing": True,
    "sandbox_mode": SandboxMode.AUTO,
    "isolation_level": IsolationLevel.PROCESS,
    "resource_limits": ResourceLimits(),
    "allowed_paths": [],
    "blocked_paths": [Path("/etc"), Path("/sys"), Path("/boot"), Path("C:\\Windows"), Path("C:\\Program Files")],
    "allow_network": False,
    "allowed_hosts": [],
    "enable_auto_rollback": True,
    "checkpoint_before_execution": True,
    "auto_cleanup": True,
    "cleanup_age_hours": 24,
}


@pytest.mark.parametrize("name", SPECIFIED)
def test_the_defaults_are_the_specifications(name: str) -> None:
    assert getattr(SandboxConfig(), name) == SPECIFIED[name]


def test_the_fields_stand_in_the_specifications_order() -> None:
    names = [each.name for each in dataclasses.fields(SandboxConfig)]
    assert names.pop(4) == "sandbox_root", "whose default is another than the specification's: ADR 0037"
    assert names[: len(SPECIFIED)] == list(SPECIFIED)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("enable_sandboxing", 1), ("sandbox_mode", "sometimes"), ("isolation_level", "vm2"), ("resource_limits", {}),
        ("sandbox_root", 5), ("sandbox_root", "a\0b"), ("allowed_paths", "/a"), ("allowed_paths", [5]),
        ("blocked_paths", None), ("allowed_hosts", "a.example"), ("allowed_hosts", [""]), ("allowed_hosts", ["*"]),
        ("allowed_hosts", ["http://a"]), ("allowed_hosts", {"host": "a"}), ("allowed_hosts", [{"host": "a", "x": 1}]),
        ("allowed_hosts", ["a:0"]), ("allowed_hosts", 5), ("cleanup_age_hours", -1),
        ("cleanup_age_hours", float("nan")), pytest.param("cleanup_age_hours", 10**400, id="hours-of-many-digits"),
        ("cleanup_age_hours", True), ("environment_vars", {"a": 1}),
        ("allowed_imports", "os"), ("max_processes", 0), ("allow_partial", None),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(field: str, value: object) -> None:
    with pytest.raises(PolicyError) as error:
        SandboxConfig(**{field: value})  # type: ignore[arg-type]
    assert error.value.field == field


def test_hosts_without_a_network_contradict() -> None:
    with pytest.raises(PolicyError, match="allow_network is false"):
        SandboxConfig(allowed_hosts=["a.example"])
    assert SandboxConfig(allow_network=True, allowed_hosts=["a.example"]).allowed_hosts == ["a.example"]


def test_a_config_survives_being_written_down() -> None:
    config = SandboxConfig(
        isolation_level=IsolationLevel.STRICT, resource_limits=ResourceLimits(max_memory_mb=64),
        allowed_paths=[Path("/a"), Path("b")], environment_vars={"A": "b"}, allowed_imports=["os"],
        sandbox_mode=SandboxMode.NEVER, allow_network=True,
        allowed_hosts=["A.example:443", {"host": "b.example", "methods": ["GET"]}],
    )  # fmt: skip
    assert SandboxConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_an_unknown_key_is_an_error_that_names_it() -> None:
    with pytest.raises(PolicyError) as error:
        SandboxConfig.from_dict({"isolation": "strict"})
    assert error.value.field == "isolation"
    with pytest.raises(PolicyError) as error:
        SandboxConfig.from_dict({"resource_limits": {"max_memory": 1}})
    assert error.value.field == "resource_limits"


def test_paths_become_absolute_and_stand_once() -> None:
    assert SandboxConfig(allowed_paths=[Path("/a/../b"), Path("/b")]).allowed_paths == [Path("/b")]


def test_paths_of_another_system_mean_nothing_here() -> None:
    assert of_this_system(Path("/etc")) and not of_this_system(Path("C:\\Windows"))


def test_sandboxes_are_kept_in_the_state_folder_and_never_below_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert SandboxConfig().sandbox_root == Path(sandboxes_folder())
    assert SandboxConfig.from_dict(SandboxConfig().to_dict()) == SandboxConfig()


def test_without_a_home_a_root_must_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(UsageError, match="no home"):
        Registry(SandboxConfig().sandbox_root)
    assert Registry(tmp_path).root == str(tmp_path)
