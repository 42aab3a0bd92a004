"""Processor time and memory of one control group, read many times a second from files that stay open.

The one-time account of a group that has ended is ``cgroup_usage``; this is the running one, with what is cheap to read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ringfence.kernel.proc.open_files import DescriptorBudget, PinnedFile

_V1_CACHE = (b"\ntotal_inactive_file ", b"\ntotal_active_file ")
_V2_CACHE = (b"\ninactive_file ", b"\nactive_file ")
_V2_CPU = b"usage_usec "
"""The first words of cpu.stat."""
_NOTABLE_BYTES = 2**20


class GroupFiles:
    """``places``: capability → directory, as a ``Cgroup`` has them."""

    def __init__(self, places: Mapping[str, str], room: DescriptorBudget) -> None:
        self._cpu = _first(places["cpu_usage"], ("cpuacct.usage", "cpu.stat"), room)
        self._used = _first(places["memory"], ("memory.usage_in_bytes", "memory.current"), room)
        self._account = PinnedFile(f"{places['memory']}/memory.stat", room)
        self._cpu_text = b""
        self._used_then = self._cache_bytes = 0
        self._figures = (0.0, 0)

    @staticmethod
    def suffices(places: Mapping[str, str]) -> bool:
        return "cpu_usage" in places and "memory" in places

    def figures(self, *, anew: bool) -> tuple[float, int] | None:
        """(seconds of processor time, bytes of memory) of all that are or were in the group; None once it is gone.

        Memory is what the group can't give back: its cache of files is left out, and looked up when asked ``anew`` or
        when the total has changed by much. Where no time was used, nothing else is asked.
        """
        text = self._cpu.read()
        if text == self._cpu_text and text and not anew:
            return self._figures
        used = self._used.read()
        if not text or not used:
            return None
        self._cpu_text = text
        self._figures = _seconds(text), self._held(int(used), anew)
        return self._figures

    def _held(self, used: int, anew: bool) -> int:
        if anew or abs(used - self._used_then) > max(_NOTABLE_BYTES, self._used_then >> 4):
            account = b"\n" + self._account.read()
            names = _V1_CACHE if _V1_CACHE[0] in account else _V2_CACHE
            self._cache_bytes = sum(_number_after(account, name) for name in names)
            self._used_then = used
        return max(0, used - self._cache_bytes)

    def close(self) -> None:
        for file in (self._cpu, self._used, self._account):
            file.close()


def _first(folder: str, names: tuple[str, ...], room: DescriptorBudget) -> PinnedFile:
    """The first of these files that is there."""
    found = (name for name in names if os.path.exists(f"{folder}/{name}"))
    return PinnedFile(f"{folder}/{next(found, names[-1])}", room)


def _seconds(text: bytes) -> float:
    """Read the processor time in cpuacct.usage or cpu.stat."""
    if text.startswith(_V2_CPU):
        return int(text[len(_V2_CPU) : text.index(b"\n")]) / 1e6
    return int(text) / 1e9


def _number_after(text: bytes, name: bytes) -> int:
    place = text.find(name)
    return int(text[place + len(name) :].split(None, 1)[0]) if place >= 0 else 0
