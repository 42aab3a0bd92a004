"""Checks that a container shows what we looked at: an engine takes paths, and somebody may replace what lies there.

Each source is opened first, by a path without links, and compared with what is mounted before anything of a guest runs.
The mounts are seen through the container's pid 1, found by its control group. This takes root, and an engine on this
host; elsewhere nothing is checked (ADR 0108).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from ringfence.container import group_files
from ringfence.container.hardening import ContainerSpec
from ringfence.errors import SetupError
from ringfence.kernel.proc import guest_paths

STEP = "show the host's files in the container"
_OURS = "/ringfence/"


class Sources:
    """What the binds of one container lead to, held open until it is compared."""

    def __init__(self, spec: ContainerSpec) -> None:
        self._held: dict[str, int] = {}
        if os.geteuid() != 0:
            return
        try:
            for bind in spec.binds:
                if not bind.target.startswith(_OURS):  # nobody else writes where that lies
                    self._held[bind.target] = _opened(bind.source)
        except BaseException:
            self.close()
            raise

    def compare(self, places: Mapping[str, str]) -> None:
        """SetupError where a mount is another file than what was opened. Nothing of a guest may have run yet."""
        if not self._held:
            return
        pids = group_files.members(places)
        if len(pids) != 1 or not pids[0]:
            raise SetupError(STEP, "its first process can't be found by its control group")
        try:
            root = os.open(f"/proc/{pids[0]}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise SetupError(STEP, f"its root can't be looked at: {error.strerror}", errno=error.errno or 0) from error
        try:
            for target, held in self._held.items():
                if not _is_same(root, target, held):
                    raise SetupError(STEP, f"{target} is not what was there when it was looked at",
                                     hint="show nothing below a directory that others may write")  # fmt: skip
        finally:
            os.close(root)

    def close(self) -> None:
        while self._held:
            os.close(self._held.popitem()[1])


def _opened(path: str) -> int:
    """SetupError where a link has come into the path since it was looked at."""
    try:
        held = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise SetupError(STEP, f"{path}: {error.strerror}", errno=error.errno or 0) from error
    if os.readlink(f"/proc/self/fd/{held}") != path:
        os.close(held)
        raise SetupError(STEP, f"{path} points to another place than a moment ago",
                         hint="show nothing below a directory that others may write")  # fmt: skip
    return held


def _is_same(root: int, target: str, held: int) -> bool:
    found = guest_paths.opened(root, os.fsencode(target))
    if found < 0:
        return False
    try:
        there, here = os.fstat(found), os.fstat(held)
        is_device = stat.S_ISCHR(there.st_mode) and stat.S_ISCHR(here.st_mode)  # the null device over a hidden file
        return os.path.samestat(there, here) or (is_device and there.st_rdev == here.st_rdev)
    finally:
        os.close(found)
