"""What of the host STRICT shows by a policy's paths, and which of them it can't show."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from ringfence.backends.facts import Lack
from ringfence.errors import UsageError
from ringfence.linux import host, rootfs, submounts
from ringfence.linux.rootfs import Shown
from ringfence.model.paths import within
from ringfence.model.policy import SandboxPolicy

_OWN = ("/dev", *(f"/dev/{name}" for name in rootfs.DEVICES))
"""What every sandbox has of its own, beside /proc."""
# Read-only or not, whoever reaches one of these reaches what is behind it.
_NEVER = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
_FIX = "give files and directories only"


def lacks(policy: SandboxPolicy) -> list[Lack]:
    """One for every path of the policy that is neither a file nor a directory."""
    named = [(name, path) for name in ("readable_paths", "writable_paths") for path in getattr(policy, name)]
    kinds = [(name, path, _never(path)) for name, path in named if not _is_own(path)]
    return [Lack(capability=name, missing=f"a way to show {path}, which is {kind}", fix=_FIX)
            for name, path, kind in kinds if kind]  # fmt: skip


def entries(paths: Iterable[str], mode: str, explicit: frozenset[str]) -> list[Shown]:
    """``explicit``: those that the policy names. Of a link it is the link that is shown."""
    return [
        Shown(path=path, mode=mode, folder=os.path.isdir(path) and not os.path.islink(path), own=True,
              explicit=path in explicit)
        for path in paths if not _is_own(path) and not _never(path)
    ]  # fmt: skip


def shared(policy: SandboxPolicy) -> list[str]:
    """The writable paths: they are the host's own, and not shown through anything."""
    return [path for path in policy.writable_paths if not _never(path)]


def _is_own(path: str) -> bool:
    return path in _OWN or within(path, "/proc")


def _never(path: str) -> str:
    """What it is, if that is never shown."""
    try:
        return _NEVER.get(stat.S_IFMT(os.stat(path).st_mode), "")
    except OSError:
        return ""


def refuse_mounts_within(workspace: str) -> None:
    """In a user namespace there is no layer over a directory with something mounted in it."""
    if host.is_the_hosts_root():
        return
    points = submounts.below(workspace, submounts.read(host.mount_table()))
    if points:
        raise UsageError(f"something is mounted at {points[0]}, in the workspace",
                         hint="unmount it, work on a directory without it, or run as root")  # fmt: skip
