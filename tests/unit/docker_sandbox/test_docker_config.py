"""The configuration: defaults of the specification, file, environment and arguments, every refusal by its key."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ringfence.cli import main
from ringfence.docker_sandbox.config import EMERGENCY, DockerConfig, emergency_stop, seccomp_file
from ringfence.docker_sandbox.config_keys import BY_FIELD, KEYS
from ringfence.errors import PolicyError, UsageError
from ringfence.model.record import field_names

THE_SPECIFICATIONS = """docker:
  enabled: true
  image: "python:3.10-slim"
  memory_limit: "2g"
  memory_swap_limit: "2g"  # Disable swap
  cpu_limit: 0.5
  timeout_seconds: 600
  network_mode: "none"
  read_only: true
  tmpfs:
    path: "/tmp"
    size: "1g"
    options: "rw,noexec,nosuid"
  seccomp_profile: "config/seccomp_profile.json"
  output_dir: "sandbox_output"
  cleanup_on_exit: true
  fallback_to_direct: false  # CRITICAL: Set false for production

monitoring:
  export_container_stats: true
  alert_on_orphaned_containers: 3
  prometheus_port: 8000
"""
GOOD = {
    "enabled": False, "image": "local/image:1", "memory_limit": "64m", "memory_swap_limit": "128m", "cpu_limit": 2,
    "timeout_seconds": 5, "network_mode": "bridge", "read_only": False, "tmpfs_path": "/scratch/x", "tmpfs_size": 4096,
    "tmpfs_options": "rw,mode=1777,uid=3", "seccomp_profile": "x.json", "output_dir": "", "cleanup_on_exit": False,
    "fallback_to_direct": True, "fallback_level": "process", "engine": "unix:///run/x.sock", "runtime": "runsc",
    "user": "1000", "pids_limit": 7, "nofile_limit": 9, "log_size": "10k", "data_limit": "1m", "result_limit": "1m",
    "max_containers": 3, "warm_containers": 0, "pull": False, "validate": False, "validator_rules": "rules.yaml",
    "export_container_stats": False, "alert_on_orphaned_containers": 0, "prometheus_port": 9000,
}  # fmt: skip


def written(folder: Path, text: str) -> Path:
    (folder / "config").mkdir(exist_ok=True)
    path = folder / "config" / "docker_config.yaml"
    path.write_text(text)
    return path


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in KEYS:
        monkeypatch.delenv(key.variable, raising=False)


def test_the_defaults_are_the_specifications() -> None:
    config = DockerConfig()
    assert (config.image, config.memory_limit, config.cpu_limit) == ("python:3.10-slim", "2g", 0.5)
    assert (config.timeout_seconds, config.network_mode, config.read_only) == (600, "none", True)
    assert (config.tmpfs_size, config.seccomp_profile, config.max_containers) == ("1g", "default", 10)
    assert (config.memory_bytes, config.memory_swap_bytes, config.bytes_of("tmpfs_size")) == (2 << 30, 2 << 30, 1 << 30)
    assert not config.fallback_to_direct and config.enabled and config.origin("image") == "default"


def test_values_may_be_given_without_their_names_as_the_specification_has_it() -> None:
    assert DockerConfig("other:1", "1g", 1.0).memory_limit == "1g"


def test_the_specifications_file_means_the_defaults(tmp_path: Path) -> None:
    config = DockerConfig.from_yaml(written(tmp_path, THE_SPECIFICATIONS))
    changed = {"origins", "memory_swap_limit", "seccomp_profile"}
    for name in {*field_names(DockerConfig)} - changed:
        assert getattr(config, name) == getattr(DockerConfig(), name), name
    assert config.memory_swap_bytes == config.memory_bytes


@pytest.mark.parametrize("text", ["", "docker:\n", "docker:\n  tmpfs:\n", "monitoring: {}\n"])
def test_what_a_file_does_not_say_has_its_default(tmp_path: Path, text: str) -> None:
    assert DockerConfig.from_yaml(written(tmp_path, text)) == DockerConfig()


def test_a_missing_file_means_the_defaults_unless_it_has_to_be_there(tmp_path: Path) -> None:
    assert DockerConfig.from_yaml(tmp_path / "none.yaml") == DockerConfig()
    with pytest.raises(UsageError, match=r"none\.yaml"):
        DockerConfig.load(tmp_path / "none.yaml")


def test_every_key_has_a_field_a_value_and_a_variable() -> None:
    assert {*BY_FIELD} == {*field_names(DockerConfig)} - {"origins"} == {*GOOD}
    assert BY_FIELD["memory_limit"].variable == "RINGFENCE_DOCKER__MEMORY_LIMIT"
    assert BY_FIELD["tmpfs_size"].variable == "RINGFENCE_DOCKER__TMPFS__SIZE"
    assert all(key.help for key in KEYS)


@pytest.mark.parametrize("field", GOOD)
def test_a_good_value_is_taken_from_anywhere(field: str) -> None:
    key, value = BY_FIELD[field], GOOD[field]
    rest = {"memory_limit": "64m"} if field == "memory_swap_limit" else {}
    rest |= {"warm_containers": 1} if field == "max_containers" else {}
    told = DockerConfig.load(environment={key.variable: str(value).lower() if value in (True, False) else str(value)},
                             **rest)  # fmt: skip
    assert getattr(told, field) == getattr(DockerConfig(**{**rest, field: value}), field)
    assert told.origin(field) == key.variable
    assert DockerConfig(**{**rest, field: value}).origin(field) == "argument"


def test_arguments_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "docker:\n  memory_limit: 1g\n  image: a:1\n  cpu_limit: 1\n")
    environment = {"RINGFENCE_DOCKER__MEMORY_LIMIT": "512m", "RINGFENCE_DOCKER__IMAGE": "b:2", "OTHER": "x"}
    config = DockerConfig.load(path, environment, memory_limit="256m")
    assert (config.memory_limit, config.image, config.cpu_limit) == ("256m", "b:2", 1.0)
    origins = [config.origin(name) for name in ("memory_limit", "image", "cpu_limit", "pull")]
    assert origins == ["argument", "RINGFENCE_DOCKER__IMAGE", str(path), "default"]


def test_from_yaml_hears_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGFENCE_DOCKER__MEMORY_LIMIT", "1g")
    assert DockerConfig.from_yaml(written(tmp_path, THE_SPECIFICATIONS.replace('swap_limit: "2g"', 'swap_limit: ""')),
                                  cpu_limit=1).memory_limit == "1g"  # fmt: skip


def test_a_value_can_be_changed_by_name() -> None:
    config = DockerConfig.load(environment={"RINGFENCE_DOCKER__IMAGE": "b:2"}).with_arguments(memory_limit="1g")
    assert (config.memory_limit, config.origin("memory_limit")) == ("1g", "argument")
    assert config.origin("image") == "RINGFENCE_DOCKER__IMAGE"


WRONG = [
    *(("memory_limit", value) for value in ("-1g", "abc", "0", 0, -1, "1m", "", True, None, 1.5, "9" * 30, "2 q", [])),
    *(("memory_swap_limit", value) for value in ("-1g", "abc", "1g", 0)),
    *(("tmpfs_size", value) for value in ("-1g", "abc", "0", 0, True)),
    *(("cpu_limit", value) for value in (0, -1, float("nan"), float("inf"), "abc", True, None, 1e9, "0.5")),
    *(("timeout_seconds", value) for value in (0, -1, True, 1.5, "600", None, 10**9)),
    *(("pids_limit", value) for value in (0, True, "x")), *(("max_containers", value) for value in (0, -1, 1)),
    *(("prometheus_port", value) for value in (0, 65536, "x", True)),
    *(("enabled", value) for value in ("true", 1, None)), *(("read_only", value) for value in ("no", 0)),
    *(("image", value) for value in ("", "-x", "a b", "A;b", None, "x\n")), ("user", "root"), ("user", "0:x"),
    *(("network_mode", value) for value in ("host", "container:x", "", None, ["a.example"])),
    *(("tmpfs_path", value) for value in ("tmp", "/", "/tmp/../etc", "/proc/x", "/output", "/a:b", None, "/a\0")),
    *(("tmpfs_options", value) for value in ("suid", "dev", "size=9g", "", None, "mode=9")),
    *(("seccomp_profile", value) for value in ("", "unconfined", None, "a\0b")), ("fallback_level", "none"),
    ("engine", "file:///x"), ("runtime", "a b"), ("warm_containers", 11), ("output_dir", None), ("log_size", "x"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), WRONG, ids=lambda value: repr(value)[:20])
def test_a_wrong_value_is_refused_by_its_key(field: str, value: object) -> None:
    with pytest.raises(PolicyError) as refused:
        DockerConfig(**{field: value})  # type: ignore[arg-type]
    agreed = {"max_containers": "docker.warm_containers"} if value == 1 else {}
    assert refused.value.field == agreed.get(field, BY_FIELD[field].path)


@pytest.mark.parametrize(("text", "line", "key"), [
    ("docker:\n  memory_limit: -1g\n", 2, "docker.memory_limit"),
    ("docker:\n  image: a:1\n  memory_limit: abc\n", 3, "docker.memory_limit"),
    ("docker:\n  memory_limit: 0\n", 2, "docker.memory_limit"),
    ("docker:\n  cpu_limit: .nan\n", 2, "docker.cpu_limit"),
    ("docker:\n  timeout_seconds: true\n", 2, "docker.timeout_seconds"),
    ("docker:\n  tmpfs:\n    size: 0\n", 3, "docker.tmpfs.size"),
    ("docker:\n  tmpfs:\n    sise: 1g\n", 3, "docker.tmpfs.sise"),
    ("docker:\n  memory_limt: 1g\n", 2, "docker.memory_limt"),
    ("docker:\n  tmpfs: 1g\n", 2, "docker.tmpfs"),
    ("monitoring:\n  memory_limit: 1g\n", 2, "monitoring.memory_limit"),
    ("dokcer: {}\n", 1, "dokcer"), ("docker: 5\n", 1, "docker"), ("docker:\n  enabled: no\n", 2, "docker"),
    ("- a\n", 1, ""),
])  # fmt: skip
def test_a_wrong_file_is_refused_by_line_and_key(tmp_path: Path, text: str, line: int, key: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(PolicyError) as refused:
        DockerConfig.from_yaml(path)
    assert refused.value.field == key and refused.value.where.startswith(f"{path}:{line}:")


@pytest.mark.parametrize(("text", "words"), [
    ("dokcer: {}\n", "did you mean docker?"), ("memory_limit: 1g\n", "did you mean docker.memory_limit?"),
    ("docker:\n  image: a:1\nlearning:\n  rate: 1\n", "settings of other programs go into another file"),
])  # fmt: skip
def test_a_section_that_is_not_ours_is_refused_with_what_helps(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(words)):
        DockerConfig.from_yaml(written(tmp_path, text))


def test_all_errors_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as refused:
        DockerConfig.from_yaml(written(tmp_path, "docker:\n  memory_limit: abc\n  cpu_limit: 0\n"))
    assert [each.field for each in (refused.value, *refused.value.more)] == ["docker.memory_limit", "docker.cpu_limit"]


@pytest.mark.parametrize(("name", "value"), [
    ("RINGFENCE_DOCKER__MEMORY_LIMIT", "-1g"), ("RINGFENCE_DOCKER__CPU_LIMIT", "nan"),
    ("RINGFENCE_DOCKER__CPU_LIMIT", "x"),
    ("RINGFENCE_DOCKER__TIMEOUT_SECONDS", "1_0"), ("RINGFENCE_DOCKER__ENABLED", "maybe"),
])  # fmt: skip
def test_a_wrong_variable_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(PolicyError, match=name):
        DockerConfig.load(environment={name: value})


def test_unknown_variables_and_arguments_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(PolicyError, match=r"did you mean RINGFENCE_DOCKER__MEMORY_LIMIT\?"):
        DockerConfig.load(environment={"RINGFENCE_DOCKER__MEMORY_LIMITS": "1g"})
    with pytest.raises(PolicyError, match=r"did you mean memory_limit\?"):
        DockerConfig.load(memory_limits="1g")
    with pytest.raises(PolicyError, match="did you mean"):
        DockerConfig(memory_limits="1g")  # type: ignore[call-arg]
    with pytest.raises(PolicyError, match="there is no such key"):
        DockerConfig().origin("zzz")


@pytest.mark.parametrize(("word", "stopped"), [
    (None, False), ("true", False), ("1", False), ("false", True), ("0", True), ("OFF", True), (" no ", True),
])  # fmt: skip
def test_the_emergency_switch_is_one_variable(word: str | None, stopped: bool) -> None:
    assert emergency_stop({} if word is None else {EMERGENCY: word}) is stopped


def test_a_switch_that_says_neither_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EMERGENCY, "perhaps")
    with pytest.raises(PolicyError, match=EMERGENCY):
        emergency_stop()


def test_a_profile_is_found_from_here_or_beside_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert seccomp_file(DockerConfig()) == ""
    path = written(tmp_path, THE_SPECIFICATIONS)
    with pytest.raises(UsageError, match=r"docker\.seccomp_profile"):
        seccomp_file(DockerConfig.from_yaml(path))
    (tmp_path / "config" / "seccomp_profile.json").write_text("{}")
    assert seccomp_file(DockerConfig.from_yaml(path)) == "config/seccomp_profile.json"
    monkeypatch.chdir("/")
    assert seccomp_file(DockerConfig.from_yaml(path)) == str(tmp_path / "config" / "seccomp_profile.json")


def test_the_shipped_file_is_the_specifications_with_our_defaults() -> None:
    path = Path(__file__).resolve().parents[3] / "config" / "docker_config.yaml"
    config = DockerConfig.load(path, {})
    changed = {"origins", "memory_swap_limit", "seccomp_profile"}
    for name in {*field_names(DockerConfig)} - changed:
        assert getattr(config, name) == getattr(DockerConfig(), name), name
    assert config.seccomp_profile == "config/seccomp_profile.json"


def test_config_show_tells_each_value_and_its_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, "docker:\n  cpu_limit: 1\n")
    monkeypatch.setenv("RINGFENCE_DOCKER__MEMORY_LIMIT", "1g")
    assert main(["config", "show", "--file", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["docker.memory_limit"] == {"value": "1g", "origin": "RINGFENCE_DOCKER__MEMORY_LIMIT"}
    assert told["docker.cpu_limit"] == {"value": 1.0, "origin": str(path)}
    assert main(["config", "show"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["docker.read_only", "true", "default"] in lines and ["docker.runtime", '""', "default"] in lines
    assert len(lines) == len(KEYS)


def test_config_show_names_the_file_that_is_missing_and_the_key_that_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "show", "--file", str(tmp_path / "none.yaml")]) == 2
    assert main(["config", "show", "--file", str(written(tmp_path, "docker:\n  memory_limit: -1g\n"))]) == 2
    told = capsys.readouterr().err
    assert "none.yaml" in told and "docker_config.yaml:2:3: docker.memory_limit" in told
