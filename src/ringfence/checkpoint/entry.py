"""What is at one path of a tree, as plain data, and manifests: many entries by path.

A manifest is either a whole tree or a layer over one: in a layer ``DELETED`` hides what lies below, and an
opaque directory hides what the base has in it. Paths are relative, with ``/``, and keep bytes that are no text
as surrogates. Owners, access control lists and ``security`` attributes are deliberately not recorded.
"""

from __future__ import annotations

import os
import stat
from _collections_abc import Iterable, Mapping

from ringfence.errors import UsageError
from ringfence.model.paths import quoted
from ringfence.model.record import record, replace

FILE, FOLDER, LINK, DELETED = "file", "directory", "link", "deleted"
FIFO, SOCKET, CHARACTER, BLOCK = "fifo", "socket", "character device", "block device"
JUNCTION = "junction"
"""Of Windows: a directory that leads somewhere else. Nothing is read through it, and none is ever made."""
SPECIAL = frozenset({FIFO, SOCKET, CHARACTER, BLOCK, JUNCTION})
_KINDS = {
    stat.S_IFREG: FILE,
    stat.S_IFDIR: FOLDER,
    stat.S_IFLNK: LINK,
    stat.S_IFIFO: FIFO,
    stat.S_IFSOCK: SOCKET,
    stat.S_IFCHR: CHARACTER,
    stat.S_IFBLK: BLOCK,
}
_ALL_KINDS = frozenset({*_KINDS.values(), DELETED, JUNCTION})
_REPARSE_POINT = 0x400
UNKNOWN = "?"
"""The digest of content that nobody has looked at."""


UNLISTED = (("user.", ""),)
"""Attributes that are more than can be listed: a name that no attribute has."""


@record
class Entry:
    """What a tree or a layer has at one path."""

    kind: str
    mode: int = 0
    mtime_ns: int = 0
    size: int = 0
    digest: str = ""
    """Of a file's content. Empty: the content is the base's own."""
    target: str = ""
    """Where a symbolic link points."""
    twin: str = ""
    """The first path that is the same file (a hard link). Empty: this is the first, or the only one."""
    device: int = 0
    attributes: tuple[tuple[str, str], ...] = ()
    """Extended attributes of the ``user`` kind, the value in hexadecimal."""
    opaque: bool = False
    """A directory that hides what the base has at its place."""
    copied: bool = False
    """The overlay made it from a file or directory of the base, so there was one."""


GONE = Entry(kind=DELETED)
Manifest = Mapping[str, Entry]


@record
class Seen:
    """An entry, with a fingerprint that shows whether it has changed since."""

    entry: Entry
    fingerprint: tuple[int, ...]
    """Inode, size, mtime, ctime, mode, links: a program can forge all but the ctime."""


Index = Mapping[str, Seen]


def fingerprint(status: os.stat_result) -> tuple[int, ...]:
    return (
        status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode, status.st_nlink,
    )  # fmt: skip


def kind_of(status: os.stat_result) -> str:
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), CHARACTER)
    leads_away = getattr(status, "st_file_attributes", 0) & _REPARSE_POINT
    return JUNCTION if leads_away and kind != LINK else kind


def order(path: str) -> str:
    """Sorts directories before their contents, and the contents before the directory's neighbours: no name contains a
    NUL."""
    return path.replace("/", "\0")


def ordered(paths: Iterable[str]) -> list[str]:
    return sorted(paths, key=order)


def replaceable(found: Index) -> dict[str, Seen]:
    """Without what lies in directories that have to be made anew, since nobody can say what attributes they have."""
    tops = {path for path, seen in found.items() if seen.entry.attributes == UNLISTED}
    return {path: seen for path, seen in found.items() if tops.isdisjoint(ancestors(path))} if tops else dict(found)


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def ancestors(path: str) -> list[str]:
    """The directories above, the highest first; not the tree's own top."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def shown(path: str) -> str:
    """For people."""
    return quoted(path)


def inside(path: str) -> str:
    """The path itself, if it does not lead out of a tree."""
    framed = f"/{path}/"
    if any(part in framed for part in ("//", "/./", "/../", "\0")):
        raise ValueError(f"{path!r} is not a path inside a tree")
    return path


def callers(path: str) -> str:
    """A path of the caller's, relative to the workspace."""
    parts = path.strip("/").split("/")
    if path.startswith("/") or not all(part not in ("", ".", "..") for part in parts):
        raise UsageError(f"{path!r} is not a path inside the workspace", hint="give it relative to the workspace")
    return "/".join(parts)


def hides_base(entry: Entry | None) -> bool:
    """Whether nothing of the base can be seen below this entry of a layer."""
    return entry is not None and (entry.kind != FOLDER or entry.opaque)


def joins(entry: Entry, manifest: Manifest) -> bool:
    """Whether it becomes a second name of a file that is there or made before."""
    twin = manifest.get(entry.twin) if entry.twin else None
    return twin is not None and replace(twin, twin="") == replace(entry, twin="")


_FIELDS = {name: type(value) for name, value in GONE.__dict__.items()}


def to_row(entry: Entry) -> dict[str, object]:
    """Only what is not empty, so that manifests stay small."""
    return {name: value for name, value in entry.__dict__.items() if value}


def from_row(row: Mapping[str, object]) -> Entry:
    """ValueError, TypeError or KeyError where it is not as we write it."""
    values = {name: row[name] for name in _FIELDS if name in row}
    if "attributes" in values:
        values["attributes"] = tuple((str(name), str(value)) for name, value in values["attributes"])  # type: ignore[attr-defined]
    for name, value in values.items():
        if type(value) is not _FIELDS[name]:
            raise TypeError(f"{name} is {value!r}")
    if values["kind"] not in _ALL_KINDS:
        raise ValueError(f"{values['kind']!r} is not a kind")
    if values.get("twin"):
        inside(str(values["twin"]))
    return Entry(**values)  # type: ignore[arg-type]


def to_rows(manifest: Manifest) -> dict[str, object]:
    return {path: to_row(entry) for path, entry in manifest.items()}


def from_rows(rows: Mapping[str, Mapping[str, object]]) -> dict[str, Entry]:
    return {inside(path): from_row(row) for path, row in rows.items()}


def of_index(index: Index) -> dict[str, Entry]:
    return {path: seen.entry for path, seen in index.items()}


def index_rows(index: Index) -> dict[str, object]:
    return {path: [to_row(seen.entry), list(seen.fingerprint)] for path, seen in index.items()}


def index_from(rows: Mapping[str, tuple[Mapping[str, object], list[int]]]) -> dict[str, Seen]:
    return {inside(path): Seen(entry=from_row(row), fingerprint=_mark(mark)) for path, (row, mark) in rows.items()}


def _mark(numbers: list[int]) -> tuple[int, ...]:
    if len(numbers) != 6 or not all(isinstance(number, int) for number in numbers):
        raise ValueError(f"{numbers!r} is not a fingerprint")
    return tuple(numbers)
