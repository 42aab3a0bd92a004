"""The control group of a container, found by the container's id: its limits and usage, from the kernel's own files.

The engine's pid of the first process may belong to another pid namespace, so it is never used for look-ups.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from ringfence.kernel.cgroup import tree

ROOT = "/sys/fs/cgroup"
_HEX = frozenset("0123456789abcdef")
_PLACES = ("docker/{id}", "system.slice/docker-{id}.scope", "libpod_parent/libpod-{id}",
           "machine.slice/libpod-{id}.scope",
           "user.slice/user-{uid}.slice/user@{uid}.service/user.slice/libpod-{id}.scope",
           "user.slice/user-{uid}.slice/user@{uid}.service/user.slice/libpod-{id}.scope/container",
           "user.slice/user-{uid}.slice/user@{uid}.service/user.slice/docker-{id}.scope", "{id}")  # fmt: skip
"""Where engines make groups, with either driver."""
_CONTROLLERS = ("memory", "pids", "cpu", "cpuacct")
LIMITS = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "pids.max", "cpu.cfs_quota_us", "cpu.cfs_period_us",
          "memory.max", "memory.swap.max", "cpu.max")  # fmt: skip
"""Files with its limits; the first five belong to version 1."""
_MOST_BYTES = 1 << 16
_KILL_S, _AGAIN_S = 2.0, 0.005


def locate(container: str, root: str = ROOT) -> dict[str, str]:
    """Controller → directory of its group; ``unified`` of version 2. Empty: not to be seen from here."""
    if len(container) != 64 or set(container) - _HEX:
        return {}
    names = [place.format(id=container, uid=os.getuid()) for place in _PLACES]
    found = {}
    for controller in (*_CONTROLLERS, ""):
        tops = (os.path.join(root, controller),) if controller else (root, os.path.join(root, "unified"))
        for place in (os.path.join(top, name) for top in tops for name in names):
            if os.path.isdir(place):
                found[controller or "unified"] = place
                break
    return found


def limits(places: Mapping[str, str]) -> dict[str, str]:
    """Return what the group's files say of its limits, by the name of the file; without those that are not there."""
    read = {name: _first(places, name) for name in LIMITS}
    return {name: text for name, text in read.items() if text}


def processor_ns(places: Mapping[str, str]) -> int:
    """Processor time of all that are or were in it; 0 where that can't be read."""
    text = _first(places, "cpuacct.usage")
    if text.isdigit():
        return int(text)
    return number_after(_first(places, "cpu.stat"), "usage_usec") * 1000


def peak_bytes(places: Mapping[str, str]) -> int:
    """The most memory that it had; 0 where that can't be read."""
    text = _first(places, "memory.max_usage_in_bytes") or _first(places, "memory.peak")
    return int(text) if text.isdigit() else 0


def tasks(places: Mapping[str, str]) -> int:
    """Processes and threads of now; 0 where that can't be read."""
    text = _first(places, "pids.current")
    return int(text) if text.isdigit() else 0


def members(places: Mapping[str, str]) -> list[int]:
    """The processes in it, by their numbers here; 0 is one that can't be seen from here."""
    return [int(line) for line in _first(places, "cgroup.procs").split() if line.isdigit()]


def kill(places: Mapping[str, str], within_s: float = _KILL_S) -> None:
    """Kill all in it ourselves: an engine kills pid 1 alone, and that has to run once more before the others end. An
    engine on another host or of another user's is not helped."""
    give_up = time.monotonic() + within_s
    while tree.kill_members(places.values()) and time.monotonic() < give_up:
        time.sleep(_AGAIN_S)


def refused_tasks(places: Mapping[str, str]) -> int:
    """How often a task was refused."""
    return number_after(_first(places, "pids.events"), "max")


def killed_for_memory(places: Mapping[str, str]) -> int:
    """How often the kernel killed in it because its memory was used up."""
    return number_after(_first(places, "memory.oom_control") or _first(places, "memory.events"), "oom_kill")


def pids_events(places: Mapping[str, str]) -> str:
    """The path of the file that reports a refused task, and wakes a poll on it; empty: there is none."""
    paths = (os.path.join(place, "pids.events") for place in places.values())
    return next(filter(os.path.exists, paths), "")


def number_after(text: str, name: str) -> int:
    """The number after a name, in a file with one ``name number`` per line."""
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return 0


def _first(places: Mapping[str, str], name: str) -> str:
    for place in places.values():
        try:
            with open(os.path.join(place, name), encoding="ascii", errors="replace") as file:
                return file.read(_MOST_BYTES).strip()
        except OSError:
            continue
    return ""
