"""System calls that Python has no function for, by name, through libc's syscall(2).

libc is opened on first use, so the module imports anywhere. It deliberately converts no error: a failed call
is an OSError that names the call, and the mechanism that made it knows what that means.
"""

from __future__ import annotations

import errno
import os

from ringfence.linux import syscall_numbers

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes

PR_SET_NO_NEW_PRIVS = 38

_libc: ctypes.CDLL | None = None
_numbers: dict[str, int] = {}


def libc() -> ctypes.CDLL:
    """The C library of this process, opened once."""
    global _libc
    if _libc is None:
        import ctypes

        _libc = ctypes.CDLL(None, use_errno=True)
        _libc.syscall.restype = ctypes.c_long
    return _libc


def call(name: str, *args: object) -> int:
    """Make one system call. An int goes into a register, None as 0, bytes and ctypes objects as pointers."""
    import ctypes

    result: int = libc().syscall(ctypes.c_long(number(name)), *map(_register, args))
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def number(name: str) -> int:
    """The number of a call on this machine; OSError if it has none."""
    if not _numbers:
        _numbers.update(syscall_numbers.NUMBERS[syscall_numbers.architecture()])
    if name not in _numbers:
        raise OSError(errno.ENOSYS, f"{name}: {os.strerror(errno.ENOSYS)}")
    return _numbers[name]


def _register(arg: object) -> object:
    import ctypes

    if isinstance(arg, bytes):
        return arg  # passed as a pointer to its first byte
    if arg is None:
        return ctypes.c_long(0)
    if isinstance(arg, int):
        # Flags with bit 63 set arrive as large positive numbers; the register is the same either way.
        return ctypes.c_ulong(arg & 0xFFFFFFFFFFFFFFFF)
    return arg


def prctl(option: int, *args: object) -> int:
    """prctl(2); the arguments that are not given are zero, which newer options insist on."""
    return call("prctl", option, *args, *(0,) * (4 - len(args)))


def set_no_new_privs() -> None:
    """Give up, for good, what a setuid program would add. seccomp and Landlock ask for it."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
