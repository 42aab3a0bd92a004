"""What runs of the tests share on one machine, and change: held by a lock, and put back by the last run that ends.

Two runs at once must not disturb each other. The ordinary user is made once and stays (CONTRIBUTING.md names it).
/dev/fuse is open to everybody as long as any run needs it, also where one was killed meanwhile: the next puts it back.
"""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path("/var/tmp/tests-of-ringfence")
DEVICE = Path("/dev/fuse")
OPEN = 0o666


def folder() -> Path:
    """Root's own, so that no other user prepares what is found in it."""
    FOLDER.mkdir(mode=0o755, exist_ok=True)
    found = FOLDER.lstat()
    if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022:
        raise SystemExit(f"{FOLDER} is not the caller's own; remove it")
    return FOLDER


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Nobody else does this at the same time."""
    with open(folder() / f"{name}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make_user(name: str) -> None:
    with alone("user"):
        if subprocess.run(["id", name], capture_output=True, check=False).returncode:
            subprocess.run(["useradd", "--create-home", name], check=True)


@contextmanager
def fuse_for_everybody(device: Path = DEVICE) -> Iterator[None]:
    """As ordinary distributions have it; in many containers it is root's alone."""
    if os.geteuid() != 0 or not device.exists():
        yield
        return
    kept = folder() / f"{device.name}.mode"
    with open(folder() / f"{device.name}.users", "a") as users:
        with alone(device.name):
            fcntl.flock(users, fcntl.LOCK_SH)
            if not kept.exists():
                kept.write_text(f"{stat.S_IMODE(device.stat().st_mode):o}")
            device.chmod(OPEN)
        try:
            yield
        finally:
            with alone(device.name):
                fcntl.flock(users, fcntl.LOCK_UN)
                _put_back(device, kept, users.fileno())


def _put_back(device: Path, kept: Path, users: int) -> None:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # another run needs it still
    device.chmod(int(kept.read_text(), 8))
    kept.unlink()
