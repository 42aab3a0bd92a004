"""The processor time of a job's own control group, which knows of every process that was in it. It counts only."""

from __future__ import annotations

import os
from _collections_abc import Sequence

_V1, _V2, _V2_FIRST = "cpuacct.usage", "cpu.stat", b"usage_usec "


class GroupTime:
    """From now on. ``folders``: those of the group, one for each hierarchy; none of them need count."""

    def __init__(self, folders: Sequence[str]) -> None:
        opened = (_opened(folder, name) for name in (_V1, _V2) for folder in folders)
        self._file = next((file for file in opened if file >= 0), -1)
        self._before_s = self._now_s()

    def used_s(self) -> float:
        return max(0.0, self._now_s() - self._before_s)

    def _now_s(self) -> float:
        try:
            return _seconds(os.pread(self._file, 256, 0)) if self._file >= 0 else 0.0
        except (OSError, ValueError):
            return 0.0  # the group is gone


def _opened(folder: str, name: str) -> int:
    """-1: there is no such count in this hierarchy."""
    try:
        file = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
    if name == _V1 or os.pread(file, 256, 0).startswith(_V2_FIRST):
        return file
    os.close(file)
    return -1


def _seconds(text: bytes) -> float:
    if text.startswith(_V2_FIRST):
        return int(text[len(_V2_FIRST) :].split(None, 1)[0]) / 1e6
    return int(text) / 1e9
