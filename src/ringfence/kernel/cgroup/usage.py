"""What a group has used at most, and which limits it hit, read from its files; nothing is estimated.

``places`` is capability → directory. A file that this kernel does not have is an absent value, never a zero.
"""

from __future__ import annotations

from _collections_abc import Mapping

from ringfence.kernel.cgroup.tree import as_table, read
from ringfence.model.record import record


@record
class CgroupEvents:
    """How often the kernel had to hold the group back."""

    oom_kills: int = 0
    pids_hits: int = 0


def peaks(places: Mapping[str, str]) -> tuple[int, int]:
    """The most bytes and the most processes at one time; 0 where they are not counted. Few reads, for every job."""
    memory = _first(places.get("memory", ""), "memory.peak", "memory.max_usage_in_bytes")
    return memory or 0, _first(places.get("pids", ""), "pids.peak") or 0


def events(places: Mapping[str, str]) -> CgroupEvents:
    oom = _table(places.get("memory", ""), "memory.events", "memory.oom_control")
    pids_hits = _table(places.get("pids", ""), "pids.events").get("max", 0)
    return CgroupEvents(oom_kills=oom.get("oom_kill", 0), pids_hits=pids_hits)


def _table(directory: str, *names: str) -> dict[str, int]:
    return as_table(_text(directory, names) or "")


def _first(directory: str, *names: str) -> int | None:
    text = _text(directory, names)
    return None if text is None else int(text)


def _text(directory: str, names: tuple[str, ...]) -> str | None:
    """The content of the first of these files that exists; the name depends on the version of cgroups."""
    for name in dict.fromkeys((_last_found.get(names, names[0]), *names)) if directory else ():
        text = read(f"{directory}/{name}", at_once=True)
        if text is not None:
            _last_found[names] = name  # looking for a name that is missing takes longer than reading
            return text
    return None


_last_found: dict[tuple[str, ...], str] = {}
