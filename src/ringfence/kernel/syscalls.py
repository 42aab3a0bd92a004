"""System calls that Python has no function for, by name, through libc's syscall(2).

libc is opened on first use, so the module imports anywhere. It deliberately converts no error: a failed call
is an OSError that names the call, and the mechanism that made it knows what that means.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable

PR_SET_NO_NEW_PRIVS = 38
_REGISTERS = 6

_libc: ctypes.CDLL | None = None
_enter: Callable[..., int] | None = None
_numbers: dict[str, int] = {}


def libc() -> ctypes.CDLL:
    """The C library of this process, opened once."""
    global _libc
    if _libc is None:
        import ctypes

        _libc = ctypes.CDLL(None, use_errno=True)
        _libc.syscall.restype = ctypes.c_long
        _libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_void_p,) * 4)
    return _libc


def entrance(library: ctypes.CDLL) -> Callable[..., int]:
    """Its syscall(2). Types that are set once are far cheaper than arguments that are converted one by one: a register
    takes an int (of which it keeps the lowest bits), None as 0, bytes and ctypes objects as pointers."""
    import ctypes

    enter = library["syscall"]  # one of our own: somebody else may want other types
    enter.restype = ctypes.c_long
    enter.argtypes = (ctypes.c_long, *(ctypes.c_void_p,) * _REGISTERS)
    return enter


def bind() -> Callable[..., int]:
    """Look up what ``call`` needs: a process that forks does it once for all."""
    global _enter
    _enter = entrance(libc())
    number("prctl")
    return _enter


def call(name: str, *args: object) -> int:
    """Make one system call. An int goes into a register, None as 0, bytes and ctypes objects as pointers."""
    enter = _enter or bind()
    result = enter(number(name), *args, *(None,) * (_REGISTERS - len(args)))
    if result == -1:
        raise failure(name)
    return result


def failure(name: str) -> OSError:
    """The error of the call that was made last."""
    import ctypes

    code = ctypes.get_errno()
    return OSError(code, f"{name}: {os.strerror(code)}")


def number(name: str) -> int:
    """The number of a call on this machine; OSError if it has none."""
    if not _numbers:
        from ringfence.kernel import syscall_numbers

        _numbers.update(syscall_numbers.NUMBERS[syscall_numbers.architecture()])
    if name not in _numbers:
        raise OSError(errno.ENOSYS, f"{name}: {os.strerror(errno.ENOSYS)}")
    return _numbers[name]


def prctl(option: int, *args: object) -> int:
    """prctl(2); the arguments that are not given are zero, which newer options insist on."""
    return call("prctl", option, *args, *(0,) * (4 - len(args)))


def set_no_new_privs() -> None:
    """Give up, for good, what a setuid program would add. seccomp and Landlock ask for it."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
