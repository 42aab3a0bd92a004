"""What lies on the host for an attack to reach, and how to see afterwards that it was reached.

Each function prepares a stage and registers its own cleaning up. Nothing here is an attack.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from tests.escape.attack import Stage, close_pools
from tests.no_spawner import end_spawner

SECRET = "the answer is 42"
# PR_SET_PTRACER to anybody: with Yama on, only what asks for it can be traced by a process that is not above it.
_VICTIM = "import ctypes, time\nctypes.CDLL(None).prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)\n"
_VICTIM += "print('ready', flush=True)\ntime.sleep(40)"


def living(tag: str) -> list[int]:
    """Processes of the host, but for this one, that have the tag on their command line."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if tag.encode() in command and int(name) != os.getpid():
            found.append(int(name))
    return found


def _end_all(tag: str) -> None:
    for _ in range(200):
        pids = living(tag)
        for pid in pids:
            _end(pid)
        if not pids:
            return


def _end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def tagged(stage: Stage) -> Mapping[str, object]:
    """The probe's own processes, known by a tag on their command line, must all be gone when it has ended."""
    tag = f"tag-{os.urandom(8).hex()}"
    stage.callback(_end_all, tag)
    stage.escaped = lambda: bool(living(tag))
    return {"tag": tag}


def victim(stage: Stage) -> Mapping[str, object]:
    """A process of the caller's user, which must neither end nor stop."""
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", _VICTIM], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()

    def end() -> None:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]

    stage.callback(end)
    stage.escaped = lambda: process.poll() is not None or _stopped(process.pid)
    return {"pid": process.pid}


def _stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"


def signalled(stage: Stage) -> Mapping[str, object]:
    """This process, the real caller, must not get SIGUSR1."""
    got: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: got.append(number))
    stage.callback(signal.signal, signal.SIGUSR1, before)
    stage.escaped = lambda: bool(got)
    return {"pid": os.getpid()}


def mount_at(stage: Stage, folder: Path, options: str = "mode=777") -> None:
    """Something else is mounted there while the attack runs; only root can mount."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=True)
        stage.callback(subprocess.run, ["umount", "-lq", str(folder)], check=False, capture_output=True)


def secret_file(stage: Stage) -> Path:
    path = stage.folder / "secret.txt"
    path.write_text(SECRET)
    path.chmod(0o644)
    return path


def fresh_spawner(stage: Stage) -> None:
    """A spawner that is started now inherits what the caller has now."""
    close_pools()
    end_spawner()
    stage.callback(end_spawner)
    stage.callback(close_pools)


def inheritable(stage: Stage, descriptor: int, number: int) -> int:
    """The descriptor under a number of our choice, or the next that is free, open for every child of this process that
    does not close it."""
    fresh_spawner(stage)  # first, for a pool may have the number
    # Not dup2(): a thread that waits in accept() holds a number which nothing shows, and dup2() says EBUSY to it.
    number = fcntl.fcntl(descriptor, fcntl.F_DUPFD, number)
    os.close(descriptor)
    stage.callback(os.close, number)
    return number


def giver(stage: Stage, address: str) -> None:
    """A Unix socket of the host that hands a descriptor of the secret to whoever connects."""
    secret = os.open(secret_file(stage), os.O_RDONLY)
    stage.callback(os.close, secret)
    server = stage.enter_context(socket.socket(socket.AF_UNIX))
    server.bind(address)
    server.listen()
    if not address.startswith("\0"):
        os.chmod(address, 0o777)

    def serve() -> None:
        try:
            other, _ = server.accept()
        except OSError:
            return
        with other:
            socket.send_fds(other, [b"x"], [secret])

    thread = threading.Thread(target=serve)
    thread.start()
    stage.callback(thread.join)
    stage.callback(server.shutdown, socket.SHUT_RDWR)
