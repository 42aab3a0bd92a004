"""Other names of the same files: what is mounted at two places (``mount --bind``) has two paths.

No link leads from one to the other, so resolving links does not tell. Files that are shared in another way, by a hard
link or a layer of an overlay, are not found. Reads the mount table; mounts nothing.
"""

from __future__ import annotations

import os
import sys

from ringfence.model.memo import lru_cache
from ringfence.model.paths import within

_TABLE = "/proc/self/mountinfo"
_OWN = ("/proc", "/dev")
"""Mounts in these places are not shown: every sandbox has its own."""
_OCTAL_DIGITS = b"01234567"
Mount = tuple[bytes, str, str]
"""(device, directory of that file system, where it is mounted)."""


def every_name(*paths: str) -> tuple[str, ...]:
    """Real paths first, then all other names of the same directories, and where parts of them are mounted."""
    table = _table()
    names = [name for path in paths for name in others((path,), table) if _may_be(name, path)]
    parts = [place for path in paths for place in _mounted_parts(path, table)]
    return tuple(dict.fromkeys((*paths, *names, *parts)))


@lru_cache(maxsize=16)
def others(paths: tuple[str, ...], table: bytes) -> tuple[str, ...]:
    """The other names of these paths, which contain no links; ``table`` is a ``mountinfo`` file."""
    mounts = _mounts(table)
    names = (name for path in paths for name in _others(path, mounts))
    return tuple(dict.fromkeys(name for name in names if not any(within(name, top) for top in _OWN)))


def path_of(written: bytes) -> str:
    """A path as the mount table writes it: blanks, line ends, hashes and backslashes are octal numbers in it."""
    first, *others = written.split(b"\\")
    return os.fsdecode(first + b"".join(map(_plain, others)))


def _plain(rest: bytes) -> bytes:
    """What stands behind a backslash."""
    digits = rest[:3]
    if len(digits) == 3 and not digits.strip(_OCTAL_DIGITS):
        return bytes((int(digits, 8) & 0xFF,)) + rest[3:]
    return b"\\" + rest


def _table() -> bytes:
    if sys.platform != "linux":
        return b""
    try:
        with open(_TABLE, "rb") as file:
            return file.read()
    except OSError:
        return b""  # no /proc


@lru_cache(maxsize=2)
def _mounts(table: bytes) -> tuple[Mount, ...]:
    rows = (line.split(b" ", 5) for line in table.split(b"\n") if line)  # a name may have any other byte in it
    return tuple((row[2], path_of(row[3]), path_of(row[4])) for row in rows)


def _mount_of(path: str, mounts: tuple[Mount, ...]) -> Mount | None:
    """The innermost mount above it; where several stand at the same place, the last one is on top."""
    above = [mount for mount in mounts if within(path, mount[2])]
    return max(reversed(above), key=lambda mount: len(mount[2])) if above else None


def _others(path: str, mounts: tuple[Mount, ...]) -> list[str]:
    own = _mount_of(path, mounts)
    if own is None:
        return []
    inside = _moved(path, own[2], own[1])
    names = [_moved(inside, root, point) for device, root, point in mounts if device == own[0] and within(inside, root)]
    return [name for name in names if name != path]


def _mounted_parts(path: str, table: bytes) -> list[str]:
    """Where parts of the directory are mounted elsewhere."""
    mounts = _mounts(table)
    own = _mount_of(path, mounts)
    if own is None:
        return []
    inside = _moved(path, own[2], own[1])
    return [point for device, root, point in mounts
            if device == own[0] and root != inside and within(root, inside) and not within(point, path)]  # fmt: skip


def _moved(path: str, top: str, to: str) -> str:
    """The same path below another top."""
    rest = path[len(top.rstrip("/")) :].strip("/")
    return f"{to.rstrip('/')}/{rest}" if rest else to


def _may_be(name: str, path: str) -> bool:
    """False if something else is mounted over it. A path that does not exist yet may become the same."""
    try:
        return os.path.samefile(name, path)
    except OSError:
        return not os.path.lexists(path)
