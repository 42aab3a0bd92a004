"""Reads the memory of another process by address: bounded, and never waiting for it.

``process_vm_readv`` takes one call where /proc/<pid>/mem takes three. It deliberately does not know whether the
process is still the one that was meant: the caller checks that last (``notify.Listener.valid``).
"""

from __future__ import annotations

import os

from ringfence.kernel import syscalls
from ringfence.model.memo import lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MAX_BYTES = 4096
_STEP_BYTES = 4096  # the smallest page size: memory that is absent begins at such a boundary
_MOST_STRINGS_BYTES = 256
_POINTER_MASK = (1 << 56) - 1  # arm64 ignores the top byte, other machines have none in user space


def read(thread: int, address: int, size_bytes: int) -> bytes:
    """At most MAX_BYTES; fewer where the memory ends. OSError: EFAULT nothing there, ESRCH gone, EPERM not ours."""
    return _reader()(thread, address, min(size_bytes, MAX_BYTES))


def read_string(thread: int, address: int) -> bytes:
    """A C string without its end, of at most MAX_BYTES."""
    found = _reader()(thread, address, _MOST_STRINGS_BYTES)
    end = found.find(0)
    if end < 0 and len(found) == _MOST_STRINGS_BYTES:
        return read(thread, address, MAX_BYTES).partition(b"\0")[0]
    return found if end < 0 else found[:end]


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
        address &= _POINTER_MASK
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
