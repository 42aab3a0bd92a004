"""The FUSE kernel protocol as bytes: what the tripwire must decode and encode, and no more.

Owns the numbers and structs of ``linux/fuse.h``. Does no input or output, keeps no state and decides no
answer. FUSE in a user namespace exists since Linux 4.18 (protocol 7.27); anything older than 7.12, where
requests had other layouts, is refused in the handshake.
"""

from __future__ import annotations

import errno
import struct
import sys

from ringfence.model.record import record

PROTOCOL_MAJOR = 7
OLDEST_MINOR = 12
SPOKEN_MINOR = 31
MAX_WRITE_BYTES = 4096
# The kernel refuses reads into less than its 8 KiB minimum or than max_write plus headers, with EINVAL.
# Larger still: an extended attribute has up to 64 KiB, and what does not fit never reaches us.
READ_BUFFER_BYTES = 1 << 17
FOREVER_S = 1 << 31

_IN_HEADER = struct.Struct("=IIQQIIIHH")
_OUT_HEADER = struct.Struct("=IiQ")
_INIT_IN = struct.Struct("=IIII")
_INIT_OUT = struct.Struct("=IIIIHHIIHHI28x")
_ATTR = struct.Struct("=QQQQQQIIIIIIIIII")
_ATTR_HEAD = struct.Struct("=QII")
_ENTRY_HEAD = struct.Struct("=QQQQII")
_OPEN_OUT = struct.Struct("=QII")
_DIRENT = struct.Struct("=QQII")
_READ_IN = struct.Struct("=QQI")
_STATFS = struct.Struct("=QQQQQIII28x")
_ACCESS_IN = struct.Struct("=I")

# FUSE_ATOMIC_O_TRUNC, DO_READDIRPLUS, PARALLEL_DIROPS, ABORT_ERROR. Not NO_OPEN_SUPPORT or
# NO_OPENDIR_SUPPORT: with them one ENOSYS would let opens succeed unasked.
_WANTED_FLAGS = 1 << 3 | 1 << 13 | 1 << 18 | 1 << 21
# Size of fuse_init_out by the minor that the answer names; the first row that fits counts.
_INIT_OUT_BYTES = ((22, 24), (SPOKEN_MINOR, _INIT_OUT.size))


class Op:
    """Request kinds. A number that is not here is from a newer kernel and gets ENOSYS. Plain numbers: a sandbox does
    not load ``enum``."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    GETLK = 31
    SETLK = 32
    SETLKW = 33
    ACCESS = 34
    CREATE = 35
    INTERRUPT = 36
    BMAP = 37
    DESTROY = 38
    IOCTL = 39
    POLL = 40
    NOTIFY_REPLY = 41
    BATCH_FORGET = 42
    FALLOCATE = 43
    READDIRPLUS = 44
    RENAME2 = 45
    LSEEK = 46
    COPY_FILE_RANGE = 47
    SYNCFS = 50
    TMPFILE = 51
    STATX = 52


KNOWN_OPS = {number: name.lower() for name, number in vars(Op).items() if isinstance(number, int)}
"""Their names, as attempts are recorded by."""
SILENT_OPS = frozenset((Op.FORGET, Op.BATCH_FORGET, Op.INTERRUPT, Op.NOTIFY_REPLY))
# Bytes of the fixed part that stands before the first name in the body.
_NAME_OFFSET: dict[int, int] = {
    Op.LOOKUP: 0, Op.UNLINK: 0, Op.RMDIR: 0, Op.SYMLINK: 0, Op.MKNOD: 16, Op.MKDIR: 8, Op.CREATE: 16,
    Op.RENAME: 8, Op.RENAME2: 16, Op.LINK: 8, Op.TMPFILE: 16,
}  # fmt: skip
_RENAMES = frozenset((Op.RENAME, Op.RENAME2))


@record
class Request:
    op: int
    unique: int
    node: int
    uid: int
    pid: int
    """Thread id in the reader's pid namespace; 0 when it can't be seen from there."""
    body: bytes


def decode(data: bytes) -> Request | None:
    """One message as read from the device; None when it is none."""
    if len(data) < _IN_HEADER.size:
        return None
    length, op, unique, node, uid, _gid, pid, _extensions, _ = _IN_HEADER.unpack_from(data)
    if length != len(data):
        return None
    return Request(op=op, unique=unique, node=node, uid=uid, pid=pid, body=data[_IN_HEADER.size :])


def names(request: Request) -> tuple[tuple[int, bytes], ...]:
    """The (directory node, name) pairs that a request is about; none when it is about the node itself."""
    offset = _NAME_OFFSET.get(request.op)
    if offset is None:
        return ()
    parts = request.body[offset:].split(b"\0")
    if request.op in _RENAMES and len(parts) > 1:
        return ((request.node, parts[0]), (int.from_bytes(request.body[:8], sys.byteorder), parts[1]))
    return ((request.node, parts[0]),)


def access_mask(request: Request) -> int:
    return int(_ACCESS_IN.unpack_from(request.body)[0])


def read_window(request: Request) -> tuple[int, int]:
    """Where a READDIR goes on and how many bytes it takes."""
    _handle, offset, size = _READ_IN.unpack_from(request.body)
    return offset, size


def reply(unique: int, payload: bytes = b"", *, error: int = 0) -> bytes:
    return _OUT_HEADER.pack(_OUT_HEADER.size + len(payload), -error, unique) + payload


def init_reply(request: Request) -> bytes:
    """The handshake: a newer major asks again with ours, an older protocol than we speak is refused."""
    major, minor, readahead, flags = _INIT_IN.unpack_from(request.body)
    if major < PROTOCOL_MAJOR or (major == PROTOCOL_MAJOR and minor < OLDEST_MINOR):
        return reply(request.unique, error=errno.EPROTO)
    spoken = SPOKEN_MINOR if major > PROTOCOL_MAJOR else min(minor, SPOKEN_MINOR)
    payload = _INIT_OUT.pack(
        PROTOCOL_MAJOR, spoken, readahead, flags & _WANTED_FLAGS, 16, 12, MAX_WRITE_BYTES, 1, 0, 0, 0
    )
    size = next(size for newest, size in _INIT_OUT_BYTES if spoken <= newest)
    return reply(request.unique, payload[:size])


def attributes(*, node: int, mode: int, uid: int, gid: int, size: int = 0) -> bytes:
    links = 2 if mode & 0o170000 == 0o040000 else 1
    return _ATTR.pack(node, size, 0, 0, 0, 0, 0, 0, 0, mode, links, uid, gid, 0, 4096, 0)


def attr_reply(unique: int, attrs: bytes) -> bytes:
    return reply(unique, _ATTR_HEAD.pack(FOREVER_S, 0, 0) + attrs)


def entry(node: int, attrs: bytes) -> bytes:
    """A name that exists, which the kernel may remember."""
    return _ENTRY_HEAD.pack(node, 0, FOREVER_S, FOREVER_S, 0, 0) + attrs


def absent_entry() -> bytes:
    """A name that does not exist and is nobody's secret: node 0 lets the kernel remember the absence."""
    return _ENTRY_HEAD.pack(0, 0, FOREVER_S, 0, 0, 0) + bytes(_ATTR.size)


def dirent(*, node: int, next_offset: int, mode: int, name: bytes, plus: bytes = b"") -> bytes:
    """One row of a listing; ``plus`` is the entry that READDIRPLUS puts before it."""
    row = _DIRENT.pack(node, next_offset, len(name), mode >> 12) + name
    return plus + row + bytes(-len(row) % 8)


def open_reply(unique: int) -> bytes:
    return reply(unique, _OPEN_OUT.pack(0, 0, 0))


def statfs_reply(unique: int) -> bytes:
    return reply(unique, _STATFS.pack(0, 0, 0, 0, 0, 4096, 255, 4096))
