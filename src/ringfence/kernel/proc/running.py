"""Finds the running sandboxes of this user from outside: who leads one, for whom, and where it is counted.

A process may call itself what it likes, so a name proves nothing by itself: whatever runs in a sandbox is below its
leader, or its warden, and nothing below one of them is taken for another one. What a guest says of itself is never
read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from ringfence.kernel.cgroup import host as cgroup_host
from ringfence.kernel.cgroup import tree as cgroup_tree
from ringfence.kernel.cgroup.group import is_name
from ringfence.kernel.proc import procfs
from ringfence.kernel.proc.processes import FORKER, LEADER, WARDEN
from ringfence.model.record import record

_PPID, _START = 1, 19
_WHO_LEAD = (LEADER, WARDEN)
_CAPABILITIES = {"cpu_usage": ("", "cpuacct"), "memory": ("", "memory")}
"""Capability → the controllers under which /proc/<pid>/cgroup may name its group; the v2 group has no name."""
_FILES = {"cpu_usage": ("cpu.stat", "cpuacct.usage"), "memory": ("memory.current", "memory.usage_in_bytes")}


@record
class RunningSandbox:
    """One running sandbox."""

    pid: int
    start: int
    """In ticks since the machine started; with the pid it names a process for good."""
    caller: int
    """The process that it is run for; 0: that is gone already."""
    command: tuple[str, ...]
    """The caller's own command line."""


class _Entry:
    __slots__ = ("name", "parent", "start")

    def __init__(self, line: bytes) -> None:
        head, _, tail = line.rpartition(b")")
        fields = tail.split()
        self.name = head.partition(b"(")[2].decode("utf-8", "replace")
        self.parent, self.start = int(fields[_PPID]), int(fields[_START])


def find() -> list[RunningSandbox]:
    """The sandboxes that this user runs, oldest first."""
    table = _table()
    leaders = [pid for pid, entry in table.items() if entry.name in _WHO_LEAD and _leads(pid, table)]
    mine = [pid for pid in leaders if _uid(pid) == os.geteuid()]
    tops = [top for pid in mine for top in ([pid] if table[pid].name == LEADER else _led_by(pid, table))]
    found = [_leader(pid, table) for pid in tops if procfs.children(pid)]
    return sorted(found, key=lambda leader: (leader.start, leader.pid))


def _table() -> dict[int, _Entry]:
    table = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                table[int(name)] = _Entry(file.read())
        except (OSError, IndexError, ValueError):
            continue  # it ended meanwhile
    return table


def _leads(pid: int, table: Mapping[int, _Entry]) -> bool:
    """It was forked by a fork server, and there is no other leader above it."""
    above = _ancestors(pid, table)
    parent = next(above, 0)
    return bool(parent) and table[parent].name == FORKER and all(table[each].name not in _WHO_LEAD for each in above)


def _led_by(warden: int, table: Mapping[int, _Entry]) -> list[int]:
    """pid 1 of each of its sandboxes; what makes them are its children too."""
    return [pid for pid in procfs.children(warden) if pid in table and table[pid].name != FORKER]


def _ancestors(pid: int, table: Mapping[int, _Entry]) -> Iterator[int]:
    """The nearest first; nobody walks further than needed, for a guest chooses how deep its processes lie."""
    seen: set[int] = set()
    parent = table[pid].parent
    while parent in table and parent not in seen:
        seen.add(parent)
        yield parent
        parent = table[parent].parent


def _leader(pid: int, table: Mapping[int, _Entry]) -> RunningSandbox:
    caller = next((each for each in _ancestors(pid, table) if table[each].name not in (FORKER, WARDEN)), 0)
    caller = 0 if caller == 1 else caller
    return RunningSandbox(pid=pid, start=table[pid].start, caller=caller, command=_command(caller) if caller else ())


def _uid(pid: int) -> int:
    """The owner of /proc/<pid> is root for one that hides its memory, so it is asked for elsewhere."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            line = next(line for line in file if line.startswith(b"Uid:"))
    except (OSError, StopIteration):
        return -1
    return int(line.split()[2])


def _command(pid: int) -> tuple[str, ...]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(65536).split(b"\0")
    except OSError:
        return ()
    return tuple(word.decode("utf-8", "replace") for word in words if word)


def age_s(leader: RunningSandbox) -> float:
    """How long it has been running."""
    try:
        with open("/proc/uptime", "rb") as file:
            uptime_s = float(file.read().split()[0])
    except (OSError, ValueError):
        return 0.0
    return max(0.0, uptime_s - leader.start / procfs.TICKS_PER_S)


def groups(leader: RunningSandbox) -> dict[str, str]:
    """Capability → directory of the group that its sandbox is in; empty: in none of its own, or it is gone."""
    first = min(procfs.children(leader.pid), default=0)
    text = cgroup_tree.read(f"/proc/{first}/cgroup") if first else None
    mountinfo = cgroup_tree.read("/proc/self/mountinfo")
    if not text or not mountinfo:
        return {}
    own = cgroup_host.parse_own_groups(text)
    mounts = cgroup_host.parse_mounts(mountinfo, frozenset(own))
    places = {name: _folder(name, own, mounts) for name in _CAPABILITIES}
    return {name: folder for name, folder in places.items() if folder}


def _folder(capability: str, own: Mapping[str, str], mounts: tuple[cgroup_host.Mount, ...]) -> str:
    for controller in _CAPABILITIES[capability]:
        group = own.get(controller, "/")
        if not is_name(os.path.basename(group)):
            continue
        showing = (mount.directory_of(group) for mount in mounts if _has(mount, controller))
        for folder in filter(None, showing):
            if any(os.path.exists(f"{folder}/{file}") for file in _FILES[capability]):
                return folder
    return ""


def _has(mount: cgroup_host.Mount, controller: str) -> bool:
    return mount.version == 2 if not controller else controller in mount.controllers
