"""The process tree where there is no /proc: read through ``ps``, which every POSIX system has.

Part of: caller, leader

The same functions as ``kernel.proc.procfs``, slower and coarser; used on macOS.
"""

from __future__ import annotations

import os
from _collections_abc import Collection, Iterator

from ringfence.kernel.proc import procfs


class Process(procfs.Process):
    """One line of the table."""

    __slots__ = ()

    def __init__(self, pid: int, rss_kib: int, cpu: str, state: str) -> None:
        self.pid = self.asked = pid
        self.start = 0
        self.threads = 1
        self.rss_bytes = rss_kib * 1024
        self.cpu_ticks = self.own_ticks = int(parse_time(cpu) * 100)
        self.system_ticks, self.session, self.parent = 0, -1, 0  # ps does not tell
        self.zombie = state.startswith("Z")


TICKS_PER_S = 100


def parse_time(text: str) -> float:
    """``[[days-]hours:]minutes:seconds[.hundredths]`` as ps prints it, in seconds."""
    days, _, clock = text.rpartition("-")
    seconds = 0.0
    for part in clock.split(":"):
        seconds = seconds * 60 + float(part)
    return seconds + (int(days) * 86400 if days else 0)


def _table() -> list[list[str]]:
    import subprocess

    command = ["ps", "-A", "-o", "pid=,ppid=,rss=,time=,state="]
    environment = {"LC_ALL": "C", "PATH": os.defpath}
    ps = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    rows = [line.split() for line in ps.communicate()[0].splitlines()]
    # ps is a child of the process that asks: if counted, it would be one too many, and be killed when gone.
    return [row for row in rows if len(row) == 5 and row[0] != str(ps.pid)]


def walk(root: int, most: float, lost: list[int]) -> Iterator[Process]:
    """The same, one by one; none is lost on the way."""
    return iter(descendants(root, most))


def descendants(root: int, most: float = float("inf")) -> list[Process]:
    """Every process below ``root``; the whole table of ps is at hand anyway."""
    below: dict[int, list[list[str]]] = {}
    for row in _table():
        below.setdefault(int(row[1]), []).append(row)
    found: list[Process] = []
    waiting = [root]
    while waiting:
        for pid, _, rss, cpu, state in below.get(waiting.pop(), ()):
            found.append(Process(int(pid), int(rss), cpu, state))
            waiting.append(int(pid))
    return found


def stat(pid: int) -> Process | None:
    """The process as it is now, or None when there is none."""
    rows = (Process(int(row[0]), int(row[2]), row[3], row[4]) for row in _table() if row[0] == str(pid))
    return next(rows, None)


def children(pid: int) -> list[int]:
    """Direct children."""
    return [int(row[0]) for row in _table() if row[1] == str(pid)]


def usage(pid: int) -> tuple[int, ...]:
    """ps does not tell: empty, as for a process that is gone."""
    return ()


def unshared_bytes(process: procfs.Process) -> int:
    """What ps tells of its memory, as ever."""
    return process.rss_bytes


def proportional_bytes(process: procfs.Process) -> int:
    """No system but Linux tells; the resident size stands in for it."""
    return process.rss_bytes


def has_its_parents_memory(process: procfs.Process, tree: Collection[int]) -> bool:
    """Not known here."""
    return False


def written_bytes(asked: int) -> int:
    """Not to be had from ps."""
    return 0


def written_chars(pid: int) -> int:
    """Not counted here."""
    return 0


def operations(asked: int) -> None:
    """Not counted here."""


def operations_waited_for(own_io: int, thread_io: int) -> int:
    """Not counted here."""
    return 0


def open_thread_io() -> int:
    """Not counted here."""
    return -1


def own_written_chars(descriptor: int) -> int:
    """Not counted here."""
    return 0


def open_own_io() -> int:
    """Not to be had from ps."""
    return -1


def own_written_bytes(descriptor: int) -> int:
    """Not to be had from ps."""
    return 0


def oom_kills() -> int:
    """Not to be had from ps."""
    return 0


def kill(process: procfs.Process, number: int) -> None:
    """Signal the process if it is still there."""
    try:
        os.kill(process.pid, number)
    except OSError:
        pass
