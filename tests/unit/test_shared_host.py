"""What runs of the tests share: two at once do not disturb each other, and the last puts back what they changed."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests import packages, shared_host


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shared_host, "FOLDER", tmp_path / "shared")
    made = tmp_path / "fuse"
    made.touch()
    made.chmod(0o600)
    return made


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.root
def test_the_last_run_puts_the_mode_back(device: Path) -> None:
    with shared_host.fuse_for_everybody(device):
        with shared_host.fuse_for_everybody(device):
            assert _mode(device) == 0o666
        assert _mode(device) == 0o666
    assert _mode(device) == 0o600


@pytest.mark.root
def test_after_a_run_that_was_killed_the_next_puts_the_first_mode_back(device: Path) -> None:
    (shared_host.folder() / "fuse.mode").write_text("600")  # its lock is gone with it, what it wrote is not
    device.chmod(0o666)
    with shared_host.fuse_for_everybody(device):
        assert _mode(device) == 0o666
    assert _mode(device) == 0o600


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_folder_that_others_can_write_is_not_used(device: Path, mode: int) -> None:
    shared_host.FOLDER.mkdir()
    shared_host.FOLDER.chmod(mode)
    with pytest.raises(SystemExit, match="not the caller's own"):
        shared_host.folder()


def test_a_link_is_not_used(device: Path, tmp_path: Path) -> None:
    shared_host.FOLDER.symlink_to(tmp_path)
    with pytest.raises((SystemExit, FileExistsError)):
        shared_host.folder()


def test_what_is_there_is_not_installed_again(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_install", lambda names: pytest.fail(f"installs {names}"))
    packages.install([packages._need("sh", "dash", "everything")])


def test_all_that_is_missing_is_installed_in_one_call(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shared_host, "folder", lambda: device.parent)
    monkeypatch.setattr(packages, "_install", asked.append)
    monkeypatch.setattr(packages.shutil, "which", lambda name, path=None: name if name == "apt-get" else None)
    packages.install([packages._need("b", "two", ""), packages._need("a", "one", ""), packages._need("c", "one", "")])
    assert asked == [["one", "two"]]


def test_apt_is_tried_three_times_and_its_words_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(packages, "_apt", lambda *words: "the lock is held")
    monkeypatch.setattr(packages.time, "sleep", lambda seconds: None)
    with pytest.raises(SystemExit, match="can't install one: the lock is held"):
        packages._install(["one"])
    assert capsys.readouterr().err.count("the lock is held") == packages.TRIES


_INTERRUPTED = """
import os, sys, tempfile
from tests import run
run.clean_up_when_ended()
with tempfile.TemporaryDirectory(dir=sys.argv[1]):
    os.kill(os.getpid(), int(sys.argv[2]))
"""


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_told_to_end_leaves_nothing(number: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _INTERRUPTED, str(tmp_path), str(int(number))]
    ended = subprocess.run(command, cwd=Path(__file__).parents[2], check=False, timeout=60)
    assert ended.returncode == 128 + number and list(tmp_path.iterdir()) == []
