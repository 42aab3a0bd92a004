"""Files and directories of ours: never through a link, for nobody else, whatever the umask."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.errors import UsageError
from ringfence.model import own_files, state_folder


def mode(path: object) -> int:
    return stat.S_IMODE(os.lstat(str(path)).st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o777])
def any_umask(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home/state"))
    return tmp_path / "home/state/ringfence"


def test_a_file_is_written_whole_and_for_us_alone(any_umask: None, tmp_path: Path) -> None:
    own_files.write_whole(str(tmp_path / "file"), b"one")
    own_files.write_whole(str(tmp_path / "file"), b"two")
    assert (tmp_path / "file").read_bytes() == b"two" and mode(tmp_path / "file") == 0o600
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_at_the_place_is_replaced_and_never_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    os.symlink("victim", tmp_path / "file")
    own_files.write_whole(str(tmp_path / "file"), b"new")
    assert (tmp_path / "victim").read_text() == "precious" and (tmp_path / "file").read_bytes() == b"new"
    assert not (tmp_path / "file").is_symlink()


def test_what_can_not_be_put_at_its_place_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    with pytest.raises(OSError):
        own_files.write_whole(str(tmp_path / "place"), b"new")
    assert os.listdir(tmp_path) == ["place"]


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, os.fsdecode(b"\xff" * 255)])
def test_a_name_may_be_as_long_as_names_can_be(name: str, tmp_path: Path) -> None:
    own_files.write_whole(str(tmp_path / name), b"new")
    assert os.listdir(tmp_path) == [name]


def test_only_regular_files_are_read_and_no_fifo_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    os.symlink("fifo", tmp_path / "link")
    with pytest.raises(UsageError):
        own_files.read_regular(str(tmp_path / "fifo"), 10)
    with pytest.raises(OSError):
        own_files.read_regular(str(tmp_path / "link"), 10)


def test_the_state_folder_and_all_that_had_to_be_made_above_it_are_ours_alone(any_umask: None, state: Path) -> None:
    assert state_folder.made("usage") == str(state / "usage")
    assert {mode(path) for path in (state / "usage", state, state.parent, state.parent.parent)} == {0o700}


def test_a_state_folder_that_others_can_read_is_closed(state: Path) -> None:
    state.mkdir(parents=True)
    state.chmod(0o755)
    state_folder.made()
    assert mode(state) == 0o700


@pytest.mark.parametrize("bits", [0o777, 0o770, 0o702])
def test_a_state_folder_that_others_can_write_is_refused_with_the_fix(bits: int, state: Path) -> None:
    state.mkdir(parents=True)
    state.chmod(bits)
    with pytest.raises(UsageError) as error:
        state_folder.made()
    assert "chmod go-w" in error.value.hint


def test_a_state_folder_that_is_a_link_is_refused(state: Path, tmp_path: Path) -> None:
    state.parent.mkdir(parents=True)
    os.symlink(tmp_path, state)
    with pytest.raises(UsageError):
        state_folder.made()


@pytest.mark.root
def test_a_state_folder_of_another_user_is_refused(state: Path) -> None:
    state.mkdir(parents=True)
    state.chmod(0o700)
    os.chown(state, 12345, 12345)
    with pytest.raises(UsageError, match="belongs to another user"):
        state_folder.made()


def test_the_key_is_made_once_and_read_by_nobody_else(any_umask: None, state: Path) -> None:
    first = state_folder.key()
    state_folder._keys.clear()
    assert state_folder.key() == first and len(first) == 32
    assert mode(state / "key") == 0o600 and os.listdir(state) == ["key"]


@pytest.mark.system
def test_processes_that_make_the_key_at_the_same_time_have_the_same(state: Path) -> None:
    code = "from ringfence.model import state_folder; print(state_folder.key().hex())"
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(6)]
    assert len({process.communicate()[0] for process in started}) == 1


@pytest.mark.parametrize("damage", ["short", "long", "open", "link", "fifo"])
def test_a_key_that_may_be_somebody_elses_is_refused(damage: str, state: Path, tmp_path: Path) -> None:
    state_folder.made()
    (tmp_path / "theirs").write_bytes(bytes(32))
    key = state / "key"
    makers = {"short": lambda: key.write_bytes(b"x"), "long": lambda: key.write_bytes(bytes(33)),
              "open": lambda: key.write_bytes(bytes(32)), "fifo": lambda: os.mkfifo(key),
              "link": lambda: os.symlink(tmp_path / "theirs", key)}  # fmt: skip
    makers[damage]()
    if damage in ("short", "long"):
        (state / "key").chmod(0o600)
    with pytest.raises(UsageError):
        state_folder.key()
