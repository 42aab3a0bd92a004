"""A real container engine for tests: one Docker daemon for all workers of a session, installed where that may be done.

It has directories, a socket and namespaces of its own (``bench/docker_engine``), and ends when the last worker has
ended, however that came. A keeper starts it: the worker who wanted it first may be the first to go. """

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import packages
from tests.testable import not_testable_here

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ("sh", "bash", "cat", "cmp", "tr", "wc", "sed", "grep", "mkdir", "cp", "ls", "rm", "chmod", "env", "sleep",
            "tac", "dirname", "basename", "true", "ln", "id", "printf", "touch", "stat", "test")  # fmt: skip
"""Of the host: what the images of tests have."""
BASES = ("debian:bookworm", "debian:bookworm-slim", "ubuntu:24.04",
         "ghcr.io/laude-institute/t-bench/ubuntu-24-04:20250624")  # fmt: skip
"""Names that the tasks of tests begin from. The daemon is ours alone, so they are nobody else's."""
_PATIENCE_S = 600
_SOCKET, _PROBLEM, _USERS, _START = "engine-socket", "engine-problem", "engine-users", "engine-start"


@contextmanager
def shared(folder: Path) -> Iterator[str]:
    """The address of the daemon that all who name the same directory have; ``DOCKER_HOST`` names it meanwhile."""
    if os.geteuid() != 0:
        not_testable_here("to start a Docker daemon takes root")
    with open(folder / _USERS, "a") as users, open(folder / _START, "a") as start:
        fcntl.flock(users, fcntl.LOCK_SH)  # as long as somebody has it, the keeper waits
        fcntl.flock(start, fcntl.LOCK_EX)
        address = _started(folder)
        fcntl.flock(start, fcntl.LOCK_UN)
        before = os.environ.get("DOCKER_HOST")
        os.environ["DOCKER_HOST"] = address
        try:
            yield address
        finally:
            os.environ.pop("DOCKER_HOST")
            if before is not None:
                os.environ["DOCKER_HOST"] = before


def _started(folder: Path) -> str:
    """By whoever came first; a problem is the same for all."""
    if not (folder / _SOCKET).exists() and not (folder / _PROBLEM).exists():
        command = [sys.executable, "-m", "tests.container_engine", str(folder)]
        subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdin=subprocess.DEVNULL,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    give_up = time.monotonic() + _PATIENCE_S
    while not (folder / _SOCKET).exists():
        if (folder / _PROBLEM).exists():
            not_testable_here((folder / _PROBLEM).read_text())
        assert time.monotonic() < give_up, "the keeper of the engine says nothing"
        time.sleep(0.05)
    return (folder / _SOCKET).read_text()


def keep(folder: Path) -> None:
    """Install and start it, say where it is, and end with the last who uses it."""
    from bench import docker_engine
    from bench.harness import NotHere

    try:
        packages.program("dockerd")
        path = shutil.which("docker") or "docker"
        docker_engine.start(path)
        import_bases(path, folder)
    except (NotHere, subprocess.CalledProcessError) as error:
        _say(folder / _PROBLEM, f"no Docker daemon: {error}")
        return
    _say(folder / _SOCKET, os.environ["DOCKER_HOST"])
    with open(folder / _USERS, "a") as users:
        fcntl.flock(users, fcntl.LOCK_EX)


def _say(path: Path, text: str) -> None:
    beside = path.with_suffix(".part")
    beside.write_text(text)
    beside.rename(path)


def import_bases(docker: str, folder: Path) -> None:
    """An image of a few programs of the host, by all names that tasks begin from: there is no registry."""
    root = folder / "engine-root"
    _lay(root)
    packed = subprocess.Popen(["tar", "-C", str(root), "-cf", "-", "."], stdout=subprocess.PIPE)
    subprocess.run([docker, "import", "-", BASES[0]], stdin=packed.stdout, check=True, capture_output=True)
    assert packed.wait() == 0
    for name in BASES[1:]:
        subprocess.run([docker, "tag", BASES[0], name], check=True, capture_output=True)
    shutil.rmtree(root)


def _lay(root: Path) -> None:
    wanted: set[str] = set()
    for name in PROGRAMS:
        found = shutil.which(name)
        if found:
            _copy(os.path.realpath(found), root / "bin" / name)
            wanted.update(_libraries(found))
    for path in wanted:
        _copy(os.path.realpath(path), root / path.lstrip("/"))
    for folder in ("etc", "tmp", "root", "usr/bin", "var/lib/apt/lists", "proc", "dev"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000::/:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nagent:x:1000:\n")
    (root / "usr/bin/apt-get").write_text("#!/bin/sh\nexit 0\n")
    (root / "usr/bin/apt-get").chmod(0o755)


def _libraries(program: str) -> list[str]:
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return [word for word in said.split() if word.startswith("/")]


def _copy(source: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
