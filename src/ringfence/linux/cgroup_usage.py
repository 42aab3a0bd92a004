"""What a group has used and which limits it hit, read from its files; nothing is estimated.

``places`` is capability → folder. A file that this kernel does not have is an absent value, never a zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ringfence.linux.cgroup_tree import as_table, read, table


@dataclass(frozen=True, kw_only=True)
class CgroupUsage:
    """Of all processes that are or were in the group; absent: this kernel or this group does not count it."""

    cpu_user_s: float | None = None
    cpu_system_s: float | None = None
    throttled_s: float | None = None
    memory_bytes: int | None = None
    peak_memory_bytes: int | None = None
    processes: int | None = None
    peak_processes: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class CgroupEvents:
    """How often the kernel had to hold the group back."""

    oom_kills: int = 0
    pids_hits: int = 0
    throttled_periods: int = 0


def usage(places: Mapping[str, str]) -> CgroupUsage:
    user_s, system_s = _cpu(places.get("cpu_usage", ""))
    read_bytes, written_bytes = _io(places.get("io", ""))
    memory, pids = places.get("memory", ""), places.get("pids", "")
    return CgroupUsage(
        cpu_user_s=user_s,
        cpu_system_s=system_s,
        throttled_s=_throttled(places.get("cpu_share", "")),
        memory_bytes=_first(memory, "memory.current", "memory.usage_in_bytes"),
        peak_memory_bytes=_first(memory, "memory.peak", "memory.max_usage_in_bytes"),
        processes=_first(pids, "pids.current"),
        peak_processes=_first(pids, "pids.peak"),
        read_bytes=read_bytes,
        written_bytes=written_bytes,
    )


def peaks(places: Mapping[str, str]) -> tuple[int, int]:
    """The most bytes and the most processes at one time; 0 where they are not counted. Few reads, for every job."""
    memory = _first(places.get("memory", ""), "memory.peak", "memory.max_usage_in_bytes")
    return memory or 0, _first(places.get("pids", ""), "pids.peak") or 0


def events(places: Mapping[str, str]) -> CgroupEvents:
    oom = _table(places.get("memory", ""), "memory.events", "memory.oom_control")
    return CgroupEvents(
        oom_kills=oom.get("oom_kill", 0),
        pids_hits=_table(places.get("pids", ""), "pids.events").get("max", 0),
        throttled_periods=_table(places.get("cpu_share", ""), "cpu.stat").get("nr_throttled", 0),
    )


def _table(directory: str, *names: str) -> dict[str, int]:
    return as_table(_text(directory, names) or "")


def _first(directory: str, *names: str) -> int | None:
    text = _text(directory, names)
    return None if text is None else int(text)


def _text(directory: str, names: tuple[str, ...]) -> str | None:
    """Of the file that has one of these names, by the kernel's version of groups."""
    for name in dict.fromkeys((_last_found.get(names, names[0]), *names)) if directory else ():
        text = read(f"{directory}/{name}")
        if text is not None:
            _last_found[names] = name  # to look for a name that is not there takes longer than to read
            return text
    return None


_last_found: dict[tuple[str, ...], str] = {}


def _cpu(directory: str) -> tuple[float | None, float | None]:
    stat = table(f"{directory}/cpu.stat")
    if "user_usec" in stat:
        return stat["user_usec"] / 1e6, stat["system_usec"] / 1e6
    user_ns, system_ns = _first(directory, "cpuacct.usage_user"), _first(directory, "cpuacct.usage_sys")
    if user_ns is None or system_ns is None:
        return None, None
    return user_ns / 1e9, system_ns / 1e9


def _throttled(directory: str) -> float | None:
    stat = table(f"{directory}/cpu.stat")
    if "throttled_usec" in stat:
        return stat["throttled_usec"] / 1e6
    return stat["throttled_time"] / 1e9 if "throttled_time" in stat else None


def _io(directory: str) -> tuple[int | None, int | None]:
    text = read(f"{directory}/io.stat") if directory else None
    if text is not None:
        words = [word.partition("=") for word in text.split() if "=" in word]
        return _total(words, "rbytes"), _total(words, "wbytes")
    text = read(f"{directory}/blkio.throttle.io_service_bytes") if directory else None
    if text is None:
        return None, None
    rows = [(row[1], "", row[2]) for row in map(str.split, text.splitlines()) if len(row) == 3]
    return _total(rows, "Read"), _total(rows, "Write")


def _total(rows: list[tuple[str, str, str]], key: str) -> int:
    return sum(int(value) for name, _, value in rows if name == key)
