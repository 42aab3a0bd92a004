"""The process that clears up after a living box of the process level whose caller was killed.

Such a box is a folder, and between visits nobody else is there to remove it. It waits for one of two things, the word
of a caller that has removed it, or the caller's end; it holds no limit and ends no process (``visit`` does).
"""

from __future__ import annotations

import os
import select
import sys
import time

from ringfence.posix import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Longer than the leaders of its visits need to end them.
_CLEAR_WAIT_S = 15.0


def keep(commands: int, reports: int, owner: int) -> None:
    """Until the caller has no more use for it. ``owner`` becomes readable when the caller ends."""
    try:
        request = wire.read_request(commands)
    except EOFError:
        return
    wire.say(reports, wire.started_frame(os.getpid()))
    if _outlives_caller(commands, owner):
        _clear(request)


def _outlives_caller(commands: int, owner: int) -> bool:
    poller = select.poll()
    poller.register(commands, select.POLLIN)
    if sys.platform == "linux":  # elsewhere there is no such descriptor, and the end of the pipe has to do
        poller.register(owner, select.POLLIN)
    poller.poll()
    return not (wire.is_readable(commands) and os.read(commands, 1))


def _clear(request: dict[str, Any]) -> None:
    from ringfence.posix.removal import remove_tree

    if request["cgroups"]:
        from ringfence.linux import cgroup_tree

        cgroup_tree.remove(request["cgroups"])
    give_up = time.monotonic() + _CLEAR_WAIT_S
    while True:
        try:
            return remove_tree(request["scratch"])
        except OSError:  # what runs in there is being ended at this moment, and may write until then
            if time.monotonic() > give_up:
                raise
