"""The guardian: a process beside each caller that removes the caller's containers when it is gone or late.

Runs as: guardian, one for each engine that a caller has containers at, until the caller is gone.
Parent: caller
Holds: its input, a pidfd of the caller, the engine's address, the names and deadlines of the caller's containers. It
    ignores SIGINT, SIGTERM, SIGHUP and SIGQUIT.
Must not have: a container's streams or files; the name of a container that its caller has not told.

A killed caller can't remove anything, and the engine does not know whose a container is. The guardian learns the name
and the deadline of each container before it is created. It waits for the end of its input or of the caller, and loads
nothing until there is something to remove.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from ringfence.container import command
from ringfence.container.engine import VARIABLE

_BOOT = ("import sys; sys.path[:] = sys.argv[2:]; from ringfence.container.guardian import main; "
         "main(sys.argv[1], {owner})")  # fmt: skip
_RETRIES, _RETRY_S = 20, 0.5
"""The engine may be about to create it, or be gone for a moment."""
_GRACE_S = 5.0
"""How long after its deadline the owner may still end a container itself."""
_LONGEST_S = 3600.0


class Guardian:
    """The caller's side. One for each engine that it uses; may be used by several threads."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._told: dict[str, float] = {}

    def add(self, name: str, deadline_s: float = 0.0) -> None:
        """From now on this one is removed when we end, or after this many seconds if that is more than 0."""
        until = time.monotonic() + deadline_s + _GRACE_S if deadline_s else 0.0
        with self._lock:
            self._told[name] = until
            self._send(f"+ {name} {until!r}\n")

    def done(self, name: str) -> None:
        """It is removed already."""
        with self._lock:
            if self._told.pop(name, None) is not None:
                self._send(f"- {name}\n")

    def _send(self, line: str) -> None:
        """If somebody killed the guardian, start another and tell it everything."""
        for _ in range(2):
            if self._process is None or self._process.poll() is not None:
                self._start()
                line = "".join(f"+ {name} {until!r}\n" for name, until in self._told.items())
            assert self._process is not None and self._process.stdin is not None
            try:
                self._process.stdin.write(line.encode("ascii"))
                return
            except OSError:
                self._process.kill()
                self._process.wait()

    def _start(self) -> None:
        boot = _BOOT.format(owner=os.getpid())
        environment = {name: value for name, value in command.environment().items() if name != "DOCKER_HOST"}
        if VARIABLE in os.environ:
            environment[VARIABLE] = os.environ[VARIABLE]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", boot, self._url, *sys.path], stdin=subprocess.PIPE, bufsize=0,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, env=environment, cwd="/",
        )  # fmt: skip


_guardians: dict[tuple[int, str], Guardian] = {}
_guardians_lock = threading.Lock()


def guardian_of(url: str) -> Guardian:
    """Return this process' guardian for an engine."""
    with _guardians_lock:
        return _guardians.setdefault((os.getpid(), url), Guardian(url))


# ---- the guardian's side


def main(url: str, owner: int) -> None:
    """Wait, and remove what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    os.set_blocking(0, False)
    told = _Told()
    poller = select.poll()
    poller.register(0, select.POLLIN)
    try:
        end = os.pidfd_open(owner)
    except ProcessLookupError:
        end = -1
    if end >= 0 and os.getppid() == owner:  # in this order it is our owner, not a later one with its number
        poller.register(end, select.POLLIN)
    else:
        told.is_over = True  # it is gone already
    while not told.is_over:
        ready = [descriptor for descriptor, _ in poller.poll(told.wait_s() * 1000)]
        if 0 in ready:
            told.read()
        told.is_over = told.is_over or any(descriptor != 0 for descriptor in ready)
        for name in told.late():
            remove(url, [name], tries=1)
    told.read()  # what was said before the end
    remove(url, [*told.names])


class _Told:
    """What the guardian knows."""

    def __init__(self) -> None:
        self.names: dict[str, float] = {}
        self.is_over = False
        self._rest = b""

    def read(self) -> None:
        while True:
            try:
                data = os.read(0, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self.is_over = True
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._take(line.decode("ascii"))

    def _take(self, line: str) -> None:
        sign, name, *until = line.split(" ")
        if sign == "+":
            self.names[name] = float(until[0])
        else:
            self.names.pop(name, None)

    def wait_s(self) -> float:
        soonest = min((until for until in self.names.values() if until), default=0.0)
        return min(max(0.0, soonest - time.monotonic()), _LONGEST_S) if soonest else _LONGEST_S

    def late(self) -> list[str]:
        """Those whose owner has not ended them in time, each once."""
        found = [name for name, until in self.names.items() if until and time.monotonic() >= until]
        for name in found:
            self.names[name] = 0.0
        return found


def remove(url: str, names: list[str], *, tries: int = _RETRIES, sleep: Callable[[float], object] = time.sleep) -> None:
    """Remove them by name, again and again as long as the engine has one of them or does not answer."""
    left = set(names)
    while left and tries:
        tries -= 1
        try:
            left = _removed(url, left)
        except Exception:  # nobody is there to be told
            pass
        if left and tries:
            sleep(_RETRY_S)


def _removed(url: str, names: set[str]) -> set[str]:
    """Return those that are not known to be gone: one that the engine does not have may be about to be created."""
    from ringfence.container import group_files
    from ringfence.container.api import connect
    from ringfence.errors import SandboxError

    client = connect(url)
    left = set()
    for name in names:
        try:
            group_files.kill(group_files.locate(str(client.inspect(name).get("Id"))))
            client.remove(name, force=True)
        except SandboxError:
            left.add(name)
    return left
