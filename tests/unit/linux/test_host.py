"""What a sandbox is shown of the host on its own account: what the program needs, and nothing around it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ringfence.linux import host

pytestmark = pytest.mark.privileges


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "prefix", "/usr")
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    return tmp_path


def _program(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def _shown(program: str, search_path: str = "") -> set[str]:
    return set(host.interpreter_folders(program, search_path)) - {"/usr"}


def test_a_program_in_a_home_does_not_show_the_home(home: Path) -> None:
    program = _program(home / "bin" / "tool")
    (home / ".ssh").mkdir()
    assert _shown(program) == {program}


def test_a_virtual_environment_is_shown_whole(home: Path) -> None:
    program = _program(home / "venv" / "bin" / "tool")
    (home / "venv" / "pyvenv.cfg").touch()
    assert _shown(program) == {str(home / "venv")}


def test_packages_of_a_user_are_shown_without_the_rest_of_his_folder(home: Path) -> None:
    program = _program(home / ".local" / "bin" / "tool")
    (home / ".local" / "lib" / "python3.11").mkdir(parents=True)
    (home / ".local" / "share" / "keyrings").mkdir(parents=True)
    assert _shown(program) == {str(home / ".local" / "bin"), str(home / ".local" / "lib")}


def test_shims_show_the_root_that_they_start_from(home: Path) -> None:
    program = _program(home / ".pyenv" / "shims" / "python3")
    (home / ".pyenv" / "versions").mkdir()
    assert _shown(program) == {str(home / ".pyenv")}


def test_every_link_on_the_way_to_a_program_is_followed(home: Path) -> None:
    real = _program(home / "real" / "tool")
    (home / "bin").mkdir()
    (home / "bin" / "tool").symlink_to("../real/tool")
    assert {os.path.normpath(path) for path in _shown(str(home / "bin" / "tool"))} == {str(home / "bin" / "tool"), real}


def test_the_jobs_search_path_is_shown_and_the_callers_is_not(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(home), str(home / "lib" / "site-packages")])
    assert _shown("/usr/bin/true", str(home / "mine")) >= {str(home / "lib" / "site-packages"), str(home / "mine")}
    assert str(home) not in _shown("/usr/bin/true")


def _proc(root: Path, settings: dict[str, str]) -> str:
    """A /proc of a host whose kernel has user namespaces, with these files below it."""
    for name, text in {"self/ns/user": "", "self/uid_map": "0 0 4294967295", **settings}.items():
        path = root / "proc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return str(root)


LIMIT, SWITCH, APPARMOR = (f"sys/{name}" for name in (
    "user/max_user_namespaces", "kernel/unprivileged_userns_clone", "kernel/apparmor_restrict_unprivileged_userns"
))  # fmt: skip
LABEL = "self/attr/current"


@pytest.mark.parametrize(
    ("settings", "user", "word"),
    [
        ({LIMIT: "0"}, 1000, "max_user_namespaces"),
        ({LIMIT: "0"}, 0, "max_user_namespaces"),
        ({LIMIT: "9", SWITCH: "0"}, 1000, "unprivileged_userns_clone"),
        ({LIMIT: "9", SWITCH: "0", "self/uid_map": "0 1000 1"}, 0, "unprivileged_userns_clone"),
        ({LIMIT: "9", SWITCH: "1", APPARMOR: "1"}, 1000, "apparmor_restrict_unprivileged_userns"),
        ({LIMIT: "9", APPARMOR: "1", LABEL: "unconfined"}, 1000, "apparmor_restrict_unprivileged_userns"),
    ],
)
def test_what_blocks_user_namespaces_is_named_with_the_command_that_lifts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], user: int, word: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    blocked = host.user_namespaces_blocked(_proc(tmp_path, settings))
    assert blocked is not None
    assert word in blocked[0]
    assert blocked[1].startswith("sudo sysctl -w ")
    assert word in blocked[1]


@pytest.mark.parametrize(
    ("settings", "user"),
    [
        ({}, 1000),
        ({LIMIT: "9", SWITCH: "1", APPARMOR: "0"}, 1000),
        ({LIMIT: "9", SWITCH: "0", APPARMOR: "1"}, 0),
        ({APPARMOR: "1", LABEL: "ringfence (unconfined)"}, 1000),
    ],
)
def test_what_does_not_block_them_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], user: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert host.user_namespaces_blocked(_proc(tmp_path, settings)) is None


def test_a_kernel_without_user_namespaces_is_named(tmp_path: Path) -> None:
    blocked = host.user_namespaces_blocked(str(tmp_path))
    assert blocked is not None
    assert "CONFIG_USER_NS" in blocked[1]


def test_asking_whether_a_filter_closes_them_makes_none() -> None:
    before = os.readlink("/proc/self/ns/user")
    assert host.user_namespaces_blocked() is None
    assert os.readlink("/proc/self/ns/user") == before


def test_packages_and_editable_installs_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages, project = tmp_path / "site-packages", tmp_path / "project"
    packages.mkdir()
    project.mkdir()
    (packages / "editable.pth").write_text(f"import os\n{project}\nrelative\n/nowhere/at/all\n")
    monkeypatch.syspath_prepend(str(packages))
    shown = host.interpreter_folders(sys.executable, "")
    assert {str(packages), str(project)} <= set(shown)
    assert not {"relative", "/nowhere/at/all", "import os"} & set(shown)


def test_a_hidden_path_is_known_by_the_names_that_the_kernel_meets(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to("real")
    (tmp_path / "real" / "link").symlink_to("/etc/hostname")
    real = tmp_path.resolve() / "real"
    assert host.every_name((str(tmp_path / "alias" / "link"),)) == (str(real / "link"), "/etc/hostname")
