"""The process of a leader as its caller handles it: by a descriptor, by what it reports, and by our own end.

Nothing is known here of visits (``leader_client``).
"""

from __future__ import annotations

import errno
import os
import sys
from _collections_abc import Mapping

from ringfence.backends.facts import Report
from ringfence.transport import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.transport.report import EndedFrame


def report_of(told: EndedFrame, recorder: Mapping[str, object]) -> Report:
    """The end as a leader reports it."""
    status = told["wait_status"]
    exited = status >= 0 and os.WIFEXITED(status)
    return Report(
        exit_code=os.WEXITSTATUS(status) if exited else None,
        signal=None if exited else os.WTERMSIG(status) if status >= 0 else 9,
        cause=wire.CAUSES[told["cause"]], measured=told["measured"], recorder=recorder, wall_ns=told["wall_ns"],
        cpu_user_us=told["cpu_user_us"], cpu_system_us=told["cpu_system_us"], processes=told["processes"],
        peak_memory_bytes=told["peak_memory_bytes"], written_bytes=told["written_bytes"],
        voluntary_switches=told["voluntary_switches"], involuntary_switches=told["involuntary_switches"],
        oom_kills=told["oom_kills"], survivors=told["survivors"], largest_bytes=told["largest_bytes"],
        written_chars=told["written_chars"], refused_bytes=told["refused_bytes"],
        exit_memory_bytes=told["exit_memory_bytes"], exit_address_bytes=told["exit_address_bytes"],
        exit_descriptors=told["exit_descriptors"], exit_slots=told["exit_slots"], operations=told["operations"],
    )  # fmt: skip


EXEC_HINTS = {
    errno.ENOENT: "check the program's name, and that it is on the job's PATH",
    errno.EACCES: "check that the file is executable",
    errno.ENOEXEC: "a script needs a first line such as #!/bin/sh",
    wire.NOT_STARTED: "a sandbox shows only interpreters that it recognizes: name what is missing in readable_paths",
}
"""What helps where a program could not be executed, by errno."""


def owner_watch(commands: int) -> int:
    """Readable when this process ends, even if another process holds copies of its pipes."""
    if sys.platform == "linux":
        return os.pidfd_open(os.getpid())
    return os.dup(commands)  # elsewhere the end of the command pipe has to do; the leader ignores this


def open_pidfd(pid: int) -> int:
    """A descriptor of a process; -1: it is gone, or this system has none."""
    try:
        return os.pidfd_open(pid) if sys.platform == "linux" and pid > 1 else -1
    except OSError:
        return -1


def kill_pidfd(descriptor: int) -> None:
    """End that process, if it is still there."""
    import signal

    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError:
        pass
