"""Which directory of the host can be a workspace, and which only if the caller names it (ADR 0053).

The whole workspace is shown to the job. Programs are started in a home, or in /etc, by accident more often than on
purpose.
"""

from __future__ import annotations

import os

from ringfence.errors import UsageError
from ringfence.model.paths import within
from ringfence.model.policy import SandboxPolicy
from ringfence.model.ways.walk import real, walk
from ringfence.sandbox import root as rootfs

_CHANGE = "change to a directory of your own first"
_KERNELS = ("/proc", "/sys", "/dev")
_SHARED = ("/var", "/boot", "/run", "/home")


def refuse(path: str, policy: SandboxPolicy) -> None:
    """UsageError if this real path can't be a workspace under STRICT, or shows more than the caller may want."""
    if path not in ("/", rootfs.HOME) and within(rootfs.HOME, path):
        problem = f"{path} can't be the working directory: the sandbox has its own {rootfs.HOME} in it"
        raise UsageError(problem, hint=_CHANGE)
    refuse_everywhere(path, policy)


def refuse_everywhere(path: str, policy: SandboxPolicy) -> None:
    """The same at any level that shows nothing but the workspace: also in a container, which has no such home."""
    if path == "/" or path in rootfs.SYSTEM_FOLDERS:
        raise UsageError(f"{path} can't be the working directory", hint=_CHANGE)
    if any(within(path, top) for top in _KERNELS) and not within(path, "/dev/shm"):
        raise UsageError(f"{path} can't be the working directory: what is there belongs to the kernel", hint=_CHANGE)
    kind = _holds(path)
    if kind and path not in map(real, (*policy.readable_paths, *policy.writable_paths)):
        problem = f"{path} is {kind}, and a job that works there can read all of it"
        hint = "change to a directory that holds what the job needs, or say that you mean this one: " \
               f"ringfence run --here-anyway, in Python readable_paths=({path!r},)"  # fmt: skip
        raise UsageError(problem, hint=hint)


def led_to(path: str, policy: SandboxPolicy) -> str:
    """The real path of a working directory.

    UsageError if a link in a directory that jobs write leads to a place that the policy does not name: an earlier job
    may have made the link, and would choose what a later job works on."""
    way = walk(path)
    top = next((top for top in written(policy) if way.passes(top)), "")
    named = map(real, (*policy.readable_paths, *policy.writable_paths))
    if top and not any(within(way.end, each) for each in named):
        problem = f"{path} points to {way.end} through a link in {top}, which jobs write"
        raise UsageError(problem, hint="give the directory that it points to, if you mean that")
    return way.end


def written(policy: SandboxPolicy) -> list[str]:
    """The host directories that jobs write directly."""
    return list(dict.fromkeys(map(real, policy.writable_paths)))


def around(path: str) -> str:
    """The directory of a file, for what the file needs beside it; the file alone if the directory would show too
    much."""
    folder = os.path.dirname(path)
    return path if os.path.isdir(path) or _holds(real(folder)) else folder


def _holds(path: str) -> str:
    """What a user would not show without thinking; empty: nothing of the kind. User databases are not asked who lives
    here: that may need the network."""
    home = real(os.environ.get("HOME") or "/")
    if path == home or os.path.dirname(path) == "/home" or path == "/root":
        return "a home directory"
    if home != "/" and within(home, path):
        return f"above the home directory {home}"
    if within(path, "/etc"):
        return "the host's configuration"
    if path in _SHARED:
        return "shared by the whole host"
    return ""
