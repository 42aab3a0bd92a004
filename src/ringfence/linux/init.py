"""pid 1 of a sandbox once everything is built: forks the job or takes visits, collects the dead, tells the end."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from struct import Struct

from ringfence.linux.building import BUILDING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BLOCK_BYTES = 512
ENDED = Struct("!i5q")
"""How the job ended: status, user and system time in µs, largest memory in bytes, switches of both kinds."""


def run_as_init() -> None:
    """pid 1 stays here: it forks the job, in which the plan goes on, collects the dead, and tells the end."""
    signal.set_wakeup_fd(-1)
    job = os.fork()
    if job == 0:
        return
    os.closerange(0, BUILDING.status)
    try:
        collect(job)
    finally:
        os._exit(0)


def serve_visits() -> None:
    """pid 1 of a box: the plan ends here, and others are carried out below it. Never returns."""
    signal.set_wakeup_fd(-1)
    try:
        BUILDING.serve_visits()
    finally:
        os._exit(0)


def collect(job: int, *, to_the_last: bool = False) -> None:
    """Collect children until the job is among them, and tell how it ended; ``to_the_last``: until none is left."""
    wakeup = BUILDING.wake_on_child()
    poller = select.poll()
    poller.register(wakeup, select.POLLIN)
    # An error on it says that the leader is gone; before the job has ended, nothing must outlive that.
    poller.register(BUILDING.status, 0)
    told = False
    while True:
        pid, status, used = _next_dead()
        count_written(pid, used)
        if pid == job:
            os.write(BUILDING.status, ENDED.pack(status, *_counted(used)))
            poller.unregister(BUILDING.status)
            told = True
        if pid < 0 or (told and not to_the_last):
            return
        if pid > 0:
            continue
        for descriptor, _ in poller.poll():
            if descriptor == BUILDING.status:
                return
            os.read(wakeup, 4096)


def count_written(pid: int, used: Any) -> None:
    """Tell the leader what a dead process wrote, with its own dead: an ordinary user can't read it of this process."""
    if pid > 0 and used.ru_oublock and BUILDING.tally >= 0:
        os.eventfd_write(BUILDING.tally, used.ru_oublock * _BLOCK_BYTES)


def _next_dead() -> tuple[int, int, Any]:
    """(pid, status, usage); pid 0: nobody is dead, -1: nobody is there."""
    try:
        return os.wait4(-1, os.WNOHANG)
    except ChildProcessError:
        return -1, 0, None


def _counted(used: Any) -> tuple[int, ...]:
    return (
        int(used.ru_utime * 1e6), int(used.ru_stime * 1e6), used.ru_maxrss * 1024, used.ru_nvcsw, used.ru_nivcsw,
    )  # fmt: skip


STEPS: dict[str, Callable[..., None]] = {
    "run as init": run_as_init,
    "serve visits": serve_visits,
}
