"""The spawner: the fork server of one caller, from which all else descends.

Runs as: spawner, one for each caller: ``python -I -S`` with an empty environment, or an early fork of the command line.
Parent: caller
Holds: its socket; the descriptors of a job for the moment of one fork; all orphans below it. Its memory is hidden.
Must not have: the caller's memory, environment or other descriptors; any request; a thread.

It is started with an isolated interpreter and an empty environment, so what it forks holds no secret of the caller.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # loads nothing, see ADR 0003
import os
import sys

from ringfence.roles.fork_server import ForkServer, fork_with, keep_only


class SpawnerLoop(ForkServer):
    """Forks zygotes beside leaders. ``for_run``: sandboxes of one job each are to be made here, and no boxes."""

    def __init__(self, door: int, *, for_run: bool = False) -> None:
        super().__init__(door)
        self._boxes = not for_run
        if for_run:
            self._furnish()  # the caller is still busy with its own

    def _furnish(self) -> None:
        from ringfence.roles import zygote

        zygote.furnish(boxes=self._boxes)  # here, so that every later zygote has it too

    def _fork_zygote(self, descriptors: list[int]) -> None:
        self._furnish()
        from ringfence.roles import zygote

        self.leaders[fork_with(descriptors, lambda kept: zygote.main(*kept, for_run=not self._boxes))] = 0


def main(door: int, *, for_run: bool = False) -> None:
    """The spawner process: from here on it only forks."""
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    (door,) = keep_only([door])
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # what the caller has blocked would stay so in all that we fork
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        from ringfence.kernel.proc import processes, procfs  # noqa: F401  (loaded once, used by every fork)

        processes.adopt_orphans()
        processes.set_name(processes.FORKER)
        processes.hide_memory()
    SpawnerLoop(door, for_run=for_run).serve()
