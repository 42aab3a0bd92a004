"""What the supervisor sees of a call that may tell why a job fails, or that its network is used. It looks, remembers
the most, and stops nothing.

Only the process itself hears what its own limit refuses. So a mapping is compared with the limit as the kernel will do
next, and the last numbers of a process that fails are kept. All these numbers are the kernel's.
"""

from __future__ import annotations

import os
from _collections_abc import Callable, Mapping

FIELDS = ("refused_bytes", "exit_memory_bytes", "exit_address_bytes", "exit_descriptors", "exit_slots", "written_chars")
_MAP_FIXED = 0x10


class Witness:
    """Sees why the job of one visit fails. ``limits``: memory of a process in bytes, 0 where a group holds it; open
    descriptors, 0: none."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        self._memory = limits.get("memory", 0)
        self._nofile = limits.get("nofile", 0)
        self.seen = dict.fromkeys(FIELDS, 0)
        self.used_network = False
        """Whether something may be left in the network namespace. Told only where sockets are watched for."""
        self.may_grow: Callable[[], bool] = lambda: True
        """Asked before a call is answered that may make a new thread's stack: whether the job may go on at all."""

    def see(self, call: str, thread: int, args: tuple[int, ...]) -> bool:
        """A call that waits; its thread can't be anybody else's until it is answered. False: leave it waiting, for the
        job is going to be ended."""
        if call == "exit_group":
            self.see_end(thread)
        elif call == "socket":
            self.used_network = True
        elif call not in ("mmap", "mremap") and not self.may_grow():
            return False
        elif self._memory:
            self._see_mapping(call, thread, args)
        return True

    def see_end(self, thread: int) -> None:
        """A process that fails, and is still there."""
        status = _read(f"/proc/{thread}/status")
        self._keep("exit_memory_bytes", _number(status, b"VmData") * 1024)
        self._keep("exit_address_bytes", _number(status, b"VmPeak") * 1024)
        self._keep("written_chars", _number(_read(f"/proc/{thread}/io"), b"wchar"))  # with its children's
        slots = _number(status, b"FDSize")
        self._keep("exit_slots", slots)
        if self._nofile and slots * 2 >= self._nofile:
            self._keep("exit_descriptors", _descriptors(thread))

    def _see_mapping(self, call: str, thread: int, args: tuple[int, ...]) -> None:
        wanted = _grown(call, args)
        held = _number(_read(f"/proc/{thread}/status"), b"VmData") * 1024 if 0 < wanted <= self._memory else 0
        if wanted and held + wanted > self._memory:
            self._keep("refused_bytes", wanted)

    def _keep(self, name: str, value: int) -> None:
        self.seen[name] = max(self.seen[name], min(value, 2**62))


def _grown(call: str, args: tuple[int, ...]) -> int:
    """Bytes of private memory that the call adds. What is put over a reservation replaces it: the kernel refuses that
    only once the limit is passed already."""
    if call == "mremap":
        return max(0, args[2] - args[1])
    return 1 if call == "mmap" and args[3] & _MAP_FIXED else args[1]


def _read(path: str) -> bytes:
    """Empty: it is gone, or closed to us."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, 16384)
    except OSError:
        return b""
    finally:
        os.close(file)


def _number(text: bytes, name: bytes) -> int:
    """The number after the name; 0: it is not there. Splitting the whole file takes ten times as long."""
    place = text.find(b"\n" + name + b":")
    return int(text[place + len(name) + 2 :].split(None, 1)[0]) if place >= 0 else 0


def _descriptors(thread: int) -> int:
    try:
        return len(os.listdir(f"/proc/{thread}/fd"))
    except OSError:
        return 0  # it has made itself unreadable
