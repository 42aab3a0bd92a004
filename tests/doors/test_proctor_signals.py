"""What is left of a proctored run that was ended from outside: nothing, at the latest after the next one beside it."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ringfence.proctor.place.workplace import MARK, remove_abandoned, workplace
from ringfence.proctor.template import write_task

pytestmark = pytest.mark.system
PATIENCE_S = 120
MAIN = "import sys; from ringfence.cli import proctor_main; sys.exit(proctor_main())"


def _private(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if MARK in path.name or ".new-" in path.name]


def _begun(folder: Path, mark: str) -> subprocess.Popen[str]:
    """A run whose agent is at work: its first line says so, and it has made a file."""
    write_task(str(folder / "task"))
    command = [sys.executable, "-c", MAIN, "run", "--task", str(folder / "task"), "--out"]
    agent = f"sh -c 'echo {mark}; touch begun; sleep 600'"
    started = subprocess.Popen([*command, str(folder / "out"), "--agent", agent], stdout=subprocess.PIPE, text=True)
    end = time.monotonic() + PATIENCE_S
    while not _has(folder, "upper/begun") and time.monotonic() < end and started.poll() is None:
        time.sleep(0.05)
    assert _private(folder) and started.poll() is None
    return started


def _has(folder: Path, name: str) -> bool:
    """Whether it lies anywhere in there; directories come and go meanwhile."""
    return any(os.path.lexists(os.path.join(place, name)) for place, _, _ in os.walk(folder))


def _processes(mark: str) -> list[int]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    mark = f"mark-{tmp_path.name}-{os.getpid()}"
    run = _begun(tmp_path, mark)
    run.send_signal(number)
    assert run.wait(PATIENCE_S) == 128 + number
    assert not _private(tmp_path) and not _processes(mark)
    assert not (tmp_path / "out" / "verdict.json").exists()


def test_what_a_killed_run_left_goes_with_the_next_one(tmp_path: Path) -> None:
    run = _begun(tmp_path, "mark")
    run.kill()
    run.wait(PATIENCE_S)
    left = _private(tmp_path)
    assert left
    with workplace(str(tmp_path / "other")) as place:
        assert _private(tmp_path) == [Path(place)]
    assert not _private(tmp_path)


def test_the_folder_of_a_run_that_goes_on_is_left_alone(tmp_path: Path) -> None:
    with workplace(str(tmp_path / "one")) as place, workplace(str(tmp_path / "two")) as other:
        assert remove_abandoned(str(tmp_path)) == [] and os.path.isdir(place) and os.path.isdir(other)


def test_only_run_folders_that_nobody_holds_are_removed(tmp_path: Path) -> None:
    """Where others may rename what is ours, they can't have it taken for a run's."""
    with workplace(str(tmp_path / "one")) as place:
        sign = next(path for path in Path(place).iterdir() if path.is_file()).name
    folders = ("held", "open", "renamed", "copied", "left")
    names = {name: tmp_path / f".{name}{MARK}x" for name in (*folders, "file", "link")}
    for name in folders:
        names[name].mkdir(0o700)
        status = names[name].stat()
        (names[name] / sign).write_text(f"{status.st_dev}:{status.st_ino}\n")
    names["open"].chmod(0o755)
    (names["renamed"] / sign).unlink()
    (names["copied"] / sign).write_text((names["left"] / sign).read_text())
    names["file"].write_text("")
    names["link"].symlink_to(names["open"])
    held = os.open(names["held"], os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        assert remove_abandoned(str(tmp_path)) == [str(names["left"])]
    finally:
        os.close(held)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for name, path in names.items() if name != "left"}
