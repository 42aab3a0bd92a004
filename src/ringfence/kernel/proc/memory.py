"""Reads the memory of another process by address: bounded, and never waiting for it.

``process_vm_readv`` takes one call where /proc/<pid>/mem takes three. But it refuses memory that may only be written,
which the kernel reads for a system call all the same: that is read through the file. It deliberately does not know
whether the process is still the one that was meant: the caller checks that last (``notify.Listener.valid``).
"""

from __future__ import annotations

import errno
import os
from struct import pack, unpack_from

from ringfence.kernel import syscalls
from ringfence.model.memo import lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MAX_BYTES = 4096
POINTER_MASK = (1 << 56) - 1 if os.name == "posix" and os.uname().machine in ("aarch64", "arm64") else (1 << 64) - 1
"""arm64 ignores the top byte of a pointer; elsewhere it counts."""
_STEP_BYTES = 4096  # the smallest page size: memory that is absent begins at such a boundary
_MOST_STRINGS_BYTES = 256
# struct procmap_query: its size, no flags, the address; what comes back has the mapping's permissions as sixth number.
_WHICH_MAPPING, _QUERY_BYTES, _PERMISSIONS, _ANY_PERMISSION = 0xC0686611, 104, 40, 0b111


def read(thread: int, address: int, size_bytes: int) -> bytes:
    """At most MAX_BYTES; fewer where the memory ends. OSError: EFAULT nothing there, ESRCH gone, EPERM not ours, EACCES
    something is there, but only its own process can read it."""
    wanted = min(size_bytes, MAX_BYTES)
    found = _readable(thread, address, wanted)
    if len(found) < wanted:
        found += _forced(thread, address + len(found), wanted - len(found))
    if wanted and not found:
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
    return found


def read_string(thread: int, address: int) -> bytes:
    """A C string without its end, of at most MAX_BYTES."""
    found = _readable(thread, address, _MOST_STRINGS_BYTES)
    if 0 not in found:
        found = read(thread, address, MAX_BYTES)
    return found.partition(b"\0")[0]


def _readable(thread: int, address: int, size_bytes: int) -> bytes:
    """As much of it as its process may read too; nothing if that is nothing."""
    try:
        return _reader()(thread, address, size_bytes)
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise
        return b""


def _forced(thread: int, address: int, size_bytes: int) -> bytes:
    """The same, whatever its process may do with it."""
    address, found = address & POINTER_MASK, b""
    file = os.open(f"/proc/{thread}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        while len(found) < size_bytes:
            place = address + len(found)
            part = _part(file, place, min(size_bytes - len(found), _STEP_BYTES - place % _STEP_BYTES))
            if not part:
                _refuse_mapped(thread, place)
                break
            found += part
    finally:
        os.close(file)
    return found


def _part(file: int, place: int, size_bytes: int) -> bytes:
    try:
        return os.pread(file, size_bytes, place)
    except (OSError, OverflowError):
        return b""


def _refuse_mapped(thread: int, place: int) -> None:
    """A kernel may be told never to force a read (``proc_mem.force_override``). Kernels that know of that tell which
    mapping an address is in."""
    import fcntl

    query = bytearray(pack("<QQQ", _QUERY_BYTES, 0, place % (1 << 64)).ljust(_QUERY_BYTES, b"\0"))
    maps = os.open(b"/proc/%d/maps" % thread, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(maps, _WHICH_MAPPING, query)
    except OSError:
        return  # nothing is mapped there, or this kernel forces every read
    finally:
        os.close(maps)
    if unpack_from("<Q", query, _PERMISSIONS)[0] & _ANY_PERMISSION:
        raise OSError(errno.EACCES, "memory that only its own process can read")


@lru_cache(maxsize=1)
def _reader() -> Callable[[int, int, int], bytes]:
    """The call with its structures made once, since it is made for every path that a guest opens. One thread."""
    import ctypes

    buffer = ctypes.create_string_buffer(MAX_BYTES)
    # struct iovec: address, length
    local = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), MAX_BYTES)
    remote = (ctypes.c_size_t * 4)()
    call = syscalls.libc().process_vm_readv
    call.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong)
    call.restype = ctypes.c_ssize_t
    here, there, view = ctypes.addressof(local), ctypes.addressof(remote), memoryview(buffer)

    def read_now(thread: int, address: int, size_bytes: int) -> bytes:
        address &= POINTER_MASK
        first = _STEP_BYTES - address % _STEP_BYTES
        remote[0] = address
        if first >= size_bytes:
            remote[1] = size_bytes
            count = call(thread, here, 1, there, 1, 0)
        else:
            remote[1], remote[2], remote[3] = first, address + first, size_bytes - first
            count = call(thread, here, 1, there, 2, 0)
        if count < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"process_vm_readv: {os.strerror(code)}")
        return bytes(view[:count])

    read_now.structures = local, remote, buffer  # type: ignore[attr-defined]  # not to be freed before it
    return read_now
