"""By which other names a folder can be reached: what is mounted at two places (``mount --bind``) has two paths.

No link leads from one to the other, so resolving links does not tell. Only reads; knows nothing of what is in a folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ringfence.model.paths import within

_TABLE = "/proc/self/mountinfo"
_OCTAL = re.compile(r"\\([0-7]{3})")
"""The kernel writes blanks, line ends and backslashes so."""
Mount = tuple[str, str, str]
"""(device, folder of that file system, where it is mounted)."""


def every_name(path: str) -> tuple[str, ...]:
    """A real path first, and all others of the same folder, or of what is mounted elsewhere out of it."""
    return tuple(dict.fromkeys((path, *_others(path, _mounts()))))


def _mounts() -> list[Mount]:
    try:
        with open(_TABLE, "rb") as file:
            table = os.fsdecode(file.read())
    except OSError:
        return []  # not Linux
    rows = (line.split(" ", 5) for line in table.split("\n") if line)
    return [(row[2], _plain(row[3]), _plain(row[4])) for row in rows]


def _plain(word: str) -> str:
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), word) if "\\" in word else word


def _others(path: str, mounts: list[Mount]) -> Iterator[str]:
    above = [mount for mount in mounts if within(path, mount[2])]
    if not above:
        return
    device, top, point = max(reversed(above), key=lambda mount: len(mount[2]))  # of equals the latest is on top
    inner = _joined(top, path, point)
    for _, other, place in [mount for mount in mounts if mount[0] == device and mount[2] != point]:
        if within(other, inner):
            yield place
        elif within(inner, other) and _may_be(found := _joined(place, inner, other), path):
            yield found


def _joined(top: str, path: str, above: str) -> str:
    """What ``path`` is to ``above``, below ``top``."""
    return top.rstrip("/") + path[len(above.rstrip("/")) :] or "/"


def _may_be(name: str, path: str) -> bool:
    """Not where something else is mounted over it. What is not there yet may become the same."""
    try:
        return os.path.samefile(name, path)
    except OSError:
        return not os.path.lexists(path)
