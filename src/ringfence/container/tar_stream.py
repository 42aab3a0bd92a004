"""Reads a tar archive from a stream, strictly: every header is checked, and nothing in it decides how much is read.

The archive may be anybody's. Anything but plain ustar, PAX or GNU long names (sparse files, several volumes, invalid
numbers) is refused. Knows nothing of disks; see ``unpacking``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ringfence.errors import UsageError
from ringfence.model.record import record

FILE, LINK, SYMLINK, DIRECTORY, DEVICE, FIFO = "file", "link", "symlink", "directory", "device", "fifo"
BLOCK = 512
MAX_HEADER_BYTES = 1 << 20
"""Of one PAX header or long name: the kernel takes paths of 4096 bytes, and attributes are of no use to us."""
MAX_EXTRA, MAX_EXTRA_BYTES = 8, 4 << 30
"""Extra headers before one entry, and their total size: writers need two headers and a few hundred bytes."""
_KINDS = {b"0": FILE, b"\0": FILE, b"7": FILE, b"1": LINK, b"2": SYMLINK, b"3": DEVICE, b"4": DEVICE, b"5": DIRECTORY,
          b"6": FIFO}  # fmt: skip
_PAX, _PAX_ALL, _LONG_NAME, _LONG_LINK = b"x", b"g", b"L", b"K"
_SPARSE = "GNU.sparse."
_LARGEST = 1 << 62
_NS = 10**9

Read = Callable[[int], bytes]
"""Returns up to this many bytes of the stream; nothing at its end."""


@record
class Member:
    """One entry of an archive, as it says of itself."""

    name: str
    kind: str
    mode: int = 0o644
    size: int = 0
    target: str = ""
    """Of a link: where it leads, by its text."""
    mtime_ns: int = 0


class TarStream:
    """The entries of an archive in their order. The content of each is read, or passed over, before the next."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._left = self._padding = 0
        self._extra = self._extra_bytes = 0

    def __iter__(self) -> Iterator[Member]:
        said: dict[str, str] = {}
        while True:
            self._skip()
            header = self._exactly(BLOCK, at_end=True)
            if not header.strip(b"\0"):
                return
            _check_sum(header)
            kind, size = header[156:157], _number(header[124:136])
            if kind in (_PAX, _PAX_ALL, _LONG_NAME, _LONG_LINK):
                said |= self._more(kind, size)
                continue
            member = _member(header, said)
            said, self._extra = {}, 0
            if member.kind == FILE:
                self._left, self._padding = member.size, -member.size % BLOCK
            elif size:
                raise UsageError(f"the archive has {member.kind} {member.name!r} with content")
            yield member

    def content(self, at_most: int) -> bytes:
        """The next bytes of the entry; nothing when all is read."""
        wanted = min(self._left, at_most)
        data = self._read(wanted) if wanted else b""
        if wanted and not data:
            raise UsageError("the archive ends in the middle of a file")
        self._left -= len(data)
        return data

    def _skip(self) -> None:
        while self.content(1 << 16):
            continue
        self._exactly(self._padding)
        self._padding = 0

    def _more(self, kind: bytes, size: int) -> dict[str, str]:
        """What an extra header says of the entry that follows. Global headers are skipped, since no writer of image
        roots uses them."""
        if not 0 <= size <= MAX_HEADER_BYTES:
            raise UsageError(f"the archive has a header of {size} bytes")
        self._extra += 1
        self._extra_bytes += BLOCK + size
        if self._extra > MAX_EXTRA or self._extra_bytes > MAX_EXTRA_BYTES:
            raise UsageError(f"the archive has more than {MAX_EXTRA} headers before an entry, or {MAX_EXTRA_BYTES:,} "
                             "bytes of them in all")  # fmt: skip
        data = self._exactly(size)
        self._exactly(-size % BLOCK)
        if kind == _PAX_ALL:
            return {}
        if kind != _PAX:
            return {"path" if kind == _LONG_NAME else "linkpath": _text(data.split(b"\0", 1)[0])}
        return dict(_records(data))

    def _exactly(self, count: int, *, at_end: bool = False) -> bytes:
        """``at_end``: the stream may end here, which reads as zeros."""
        parts: list[bytes] = []
        missing = count
        while missing:
            data = self._read(missing)
            if not data:
                if at_end and missing == count:
                    return bytes(count)
                raise UsageError("the archive ends in the middle of an entry")
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)


def _check_sum(header: bytes) -> None:
    """Only this tells an archive from any other stream."""
    if sum(header) - sum(header[148:156]) + 8 * 32 != _number(header[148:156]):
        raise UsageError("this is not a tar archive, or a damaged one")


def _number(field: bytes) -> int:
    """Octal digits, or GNU's binary form for what is too large for them."""
    if field[:1] == b"\x80":
        found = int.from_bytes(field[1:], "big")
    else:
        digits = field.split(b"\0", 1)[0].strip()
        if digits.strip(b"01234567"):
            raise UsageError(f"the archive has {digits!r} where a number belongs")
        found = int(digits or b"0", 8)
    if found > _LARGEST:
        raise UsageError("the archive has a number that is too large")
    return found


def _member(header: bytes, said: dict[str, str]) -> Member:
    if any(key.startswith(_SPARSE) for key in said):
        raise UsageError("the archive has a sparse file in a form that is not supported")
    kind = _KINDS.get(header[156:157])
    if kind is None:
        raise UsageError(f"the archive has an entry of the kind {header[156:157]!r}")
    return Member(
        name=said.get("path") or _ustar_name(header), kind=kind, mode=_number(header[100:108]) & 0o7777,
        size=_decimal(said["size"]) if "size" in said else _number(header[124:136]),
        target=said.get("linkpath") or _text(header[157:257].split(b"\0", 1)[0]),
        mtime_ns=_time_ns(said["mtime"]) if "mtime" in said else _number(header[136:148]) * _NS,
    )  # fmt: skip


def _ustar_name(header: bytes) -> str:
    name, prefix = (field.split(b"\0", 1)[0] for field in (header[:100], header[345:500]))
    is_ustar = header[257:263] == b"ustar\0"
    return _text(prefix + b"/" + name if prefix and is_ustar else name)


def _records(data: bytes) -> Iterator[tuple[str, str]]:
    """``length key=value`` and a line end, again and again."""
    place = 0
    while place < len(data):
        digits, found, _ = data[place : place + 20].partition(b" ")
        length = int(digits) if found and digits.isdigit() else 0
        whole = data[place : place + length]
        key, equal, value = whole[len(digits) + 1 : -1].partition(b"=")
        if len(whole) != length or not equal or whole[-1:] != b"\n":
            raise UsageError("the archive has a header that can't be read")
        yield _text(key), _text(value)
        place += length


def _decimal(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise UsageError(f"the archive has {text[:40]!r} where a number belongs")
    return int(text)


def _time_ns(text: str) -> int:
    """Seconds with a fraction; before 1970 is 1970."""
    whole, _, part = text.removeprefix("-").partition(".")
    return 0 if text.startswith("-") else _decimal(whole) * _NS + _decimal(part[:9].ljust(9, "0"))


def _text(data: bytes) -> str:
    if b"\0" in data:
        raise UsageError("the archive has a name with a NUL in it")
    return data.decode("utf-8", "surrogateescape")
