"""The directory with our key and records: behind walls no guest sees it, and what one makes in its place is dropped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringfence import IsolationLevel, Job, SandboxPolicy, UsageError, run
from ringfence.model import state_folder

pytestmark = [pytest.mark.system, pytest.mark.privileges]

STRICT, PROCESS = IsolationLevel.STRICT, IsolationLevel.PROCESS


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a caller whose state directory lies in it, as usual."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home/note").write_text("note")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home/state"))
    return tmp_path / "home"


def outcome(text: str, cwd: Path | None, **policy: object) -> str:
    job = Job(argv=("sh", "-c", text), cwd=str(cwd) if cwd else None)
    return run(job, SandboxPolicy(**policy), commit=True).stdout.decode()  # type: ignore[arg-type]


def test_in_a_workspace_it_is_absent_and_what_a_guest_makes_there_is_dropped(home: Path) -> None:
    key = state_folder.key()
    plant = "cat note; cat state/ringfence/key; mkdir -p state/ringfence; echo mine > state/ringfence/key; echo x > new"
    assert outcome(plant, home, isolation=STRICT) == "note"
    assert (home / "new").read_text() == "x\n" and (home / "state/ringfence/key").read_bytes() == key


@pytest.mark.parametrize("plant", [
    "mkdir -p state/ringfence && printf '%032d' 0 > state/ringfence/key",
    "rm -rf state; mkdir -p decoy/ringfence && printf '%032d' 0 > decoy/ringfence/key && ln -s decoy state",
    "mv state away; mkdir -p state/ringfence && printf '%032d' 0 > state/ringfence/key",
])  # fmt: skip
def test_no_guest_chooses_the_key_before_there_is_one(plant: str, home: Path) -> None:
    outcome(f"{plant}; true", home, isolation=STRICT)
    assert state_folder.key() != b"0" * 32
    assert not (home / "state").is_symlink()


@pytest.mark.parametrize("way", ["chmod 0 state beside", "rm -rf state; mkdir state; chmod 0 state beside"])
def test_no_guest_closes_the_way_to_it(way: str, home: Path) -> None:
    """The control: a directory that leads nowhere gets the mode that the guest gave it."""
    (home / "beside").mkdir()
    (home / "state").mkdir()
    (home / "state").chmod(0o750)
    state_folder.key()
    outcome(f"{way}; touch new", home, isolation=STRICT)
    assert (home / "new").exists()
    assert [(home / name).stat().st_mode & 0o777 for name in ("state", "beside")] == [0o750, 0]


@pytest.mark.parametrize("level", [STRICT, PROCESS])
def test_below_a_readable_folder_it_is_not_read(level: IsolationLevel, home: Path) -> None:
    state_folder.key()
    look = f"cat {home}/note; cat {home}/state/ringfence/key; ls {home}/state/ringfence"
    assert outcome(look, None, isolation=level, readable_paths=(str(home),)) == "note"
    control = f"cat {home}/state/beside"
    (home / "state/beside").write_text("seen")
    assert outcome(control, None, isolation=level, readable_paths=(str(home),)) == "seen"


def test_what_is_hidden_deep_in_a_readable_folder_is_absent_without_tripwires_too(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringfence.sandbox.host.has_fuse", lambda: False)
    (home / "deep/er").mkdir(parents=True)
    (home / "deep/er/secret").write_text("secret")
    paths = {"readable_paths": (str(home),), "hidden_paths": (str(home / "deep/er/secret"),)}
    assert outcome(f"cat {home}/note; cat {home}/deep/er/secret", None, isolation=STRICT, **paths) == "note"


@pytest.mark.parametrize("level", [STRICT, PROCESS])
def test_what_a_guest_may_write_directly_holds_no_folder_of_ours(level: IsolationLevel, home: Path) -> None:
    for name in ("writable_paths", "readable_paths"):
        inside = home / "state/ringfence/usage"
        inside.mkdir(parents=True, exist_ok=True)
        with pytest.raises(UsageError, match="own"):
            outcome("true", None, isolation=level, **{name: (str(inside),)})
    with pytest.raises(UsageError, match="no guest may write") as error:
        outcome("true", None, isolation=level, writable_paths=(str(home),))
    assert "XDG_STATE_HOME" in error.value.hint


def test_at_the_process_level_a_working_folder_behind_walls_holds_none_either(home: Path) -> None:
    with pytest.raises(UsageError, match="no guest may write"):
        outcome("true", home, isolation=PROCESS, readable_paths=("/usr",))
    (home / "project").mkdir()
    assert outcome("echo fine", home / "project", isolation=PROCESS, readable_paths=("/usr",)) == "fine\n"


def test_a_folder_of_ours_is_no_workspace(home: Path) -> None:
    with pytest.raises(UsageError, match="own"):
        outcome("true", Path(state_folder.made()), isolation=STRICT)


def test_without_a_home_only_the_private_place_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    ours = [os.path.basename(place) for place in state_folder.own_places()]
    assert set(ours) == {f"ringfence-{os.geteuid()}"} and outcome("echo fine", tmp_path, isolation=STRICT) == "fine\n"
    assert "~" not in os.listdir(tmp_path)


_BY_ANOTHER_NAME = """
import sys
from ringfence import Job, SandboxPolicy, UsageError, run
from ringfence.model import state_folder
key, alias = state_folder.key(), sys.argv[1]
for level in ("strict", "process"):
    def outcome(text, cwd=None, **paths):
        return run(Job(argv=("sh", "-c", text), cwd=cwd), SandboxPolicy(isolation=level, **paths), commit=True)
    told = outcome(f"cat {alias}/note; cat {alias}/state/ringfence/key", readable_paths=(alias,))
    assert told.stdout == b"note", told
    try:
        plant = "cat note; cat state/ringfence/key; mkdir -p state/ringfence; echo mine > state/ringfence/planted"
        assert outcome(plant, alias, readable_paths=("/usr",)).stdout == b"note" and level == "strict"
    except UsageError:
        assert level == "process"
    try:
        outcome("true", writable_paths=(alias,))
        raise AssertionError("it was given to a guest")
    except UsageError:
        pass
"""


@pytest.mark.root
def test_by_the_name_of_another_mount_it_is_not_reached_either(home: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").mkdir()
    both = f'mount --bind "{home}" "{tmp_path}/alias" && exec "$0" -c "$1" "{tmp_path}/alias"'
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", both, sys.executable, _BY_ANOTHER_NAME]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(home / "state/ringfence")) == ["key"]


@pytest.mark.parametrize("way", ["rm -f .local; ", ""])
def test_no_guest_replaces_a_link_on_the_way_to_it(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (tmp_path / "real/state").mkdir(parents=True)
    home.mkdir()
    (home / ".local").symlink_to("../real")
    monkeypatch.setenv("XDG_STATE_HOME", str(home / ".local/state"))
    key = state_folder.key()
    plant = f"{way}mkdir -p .local/state/ringfence && printf '%032d' 0 > .local/state/ringfence/key; echo x > new"
    outcome(plant, home, isolation=STRICT)
    assert (home / "new").exists() and (home / ".local").is_symlink()
    monkeypatch.setattr(state_folder, "_keys", {})
    assert state_folder.key() == key
    with pytest.raises(UsageError, match="which no guest may write"):
        outcome("true", None, isolation=STRICT, writable_paths=(str(home),))
