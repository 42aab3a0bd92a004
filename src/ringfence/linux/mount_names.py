"""By which other names the same files are reached: a bind mount shows a part of a file system at a second place.

From the mount table alone. What shares files in another way, as a hard link or a layer of somebody's overlay does, is
not found. Decides; mounts nothing.
"""

from __future__ import annotations

from functools import lru_cache

from ringfence.linux.submounts import path_of
from ringfence.model.paths import within
from ringfence.model.record import record

_OWN = ("/proc", "/dev")
"""What is mounted there is not shown: every sandbox has its own."""


@record
class _Mount:
    point: str
    device: bytes
    root: str
    """Which directory of its file system stands there."""


@lru_cache(maxsize=16)
def others(paths: tuple[str, ...], table: bytes) -> tuple[str, ...]:
    """The further names of these paths, on whose way there are no links; ``table`` is a ``mountinfo`` file."""
    mounts = _read(table)
    names = (name for path in paths for name in _others(path, mounts))
    return tuple(dict.fromkeys(name for name in names if not any(within(name, top) for top in _OWN)))


def _read(table: bytes) -> list[_Mount]:
    rows = (line.split(b" ", 5) for line in table.splitlines())
    return [_Mount(point=path_of(row[4]), device=row[2], root=path_of(row[3])) for row in rows]


def _others(path: str, mounts: list[_Mount]) -> list[str]:
    """A path lies on the innermost mount above it, the last one where several stand at the same place."""
    above = [mount for mount in mounts if within(path, mount.point)]
    if not above:
        return []
    own = max(reversed(above), key=lambda mount: len(mount.point))
    inside = _moved(path, own.point, own.root)
    names = [_moved(inside, mount.root, mount.point) for mount in mounts
             if mount.device == own.device and within(inside, mount.root)]  # fmt: skip
    return [name for name in names if name != path]


def _moved(path: str, top: str, to: str) -> str:
    """The same path below another top."""
    rest = path[len(top.rstrip("/")) :].strip("/")
    return f"{to.rstrip('/')}/{rest}" if rest else to
