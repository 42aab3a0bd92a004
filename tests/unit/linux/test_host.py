"""What a sandbox is shown of the host on its own account: what the program needs, and nothing around it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ringfence.linux import host


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


@pytest.mark.parametrize(
    ("files", "word"),
    [
        ({"limit": "0"}, "max_user_namespaces"),
        ({"limit": "9", "switch": "0"}, "unprivileged_userns_clone"),
        ({"limit": "9", "switch": "1", "apparmor": "1"}, "apparmor_restrict_unprivileged_userns"),
    ],
)
def test_what_blocks_user_namespaces_is_named_with_the_command_that_lifts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], word: str
) -> None:
    for name, attribute in (("limit", "_USERNS_LIMIT"), ("switch", "_USERNS_SWITCH"), ("apparmor", "_APPARMOR_SWITCH")):
        (tmp_path / name).write_text(files[name] + "\n") if name in files else None
        monkeypatch.setattr(host, attribute, str(tmp_path / name))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    blocked = host.user_namespaces_blocked()
    assert blocked is not None
    assert word in blocked[0]
    assert blocked[1].startswith("sudo sysctl -w ")
    assert word in blocked[1]


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


def test_mounts_below_a_folder_are_seen() -> None:
    assert host.has_mounts_below("/")
    assert not host.has_mounts_below("/proc/self/fdinfo")
