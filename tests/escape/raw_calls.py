"""Source for probes: ``call(name, arguments…)`` makes a raw system call and returns (result, errno).

Numbers come from the package's tables, so a probe needs nothing of ours inside the sandbox.
"""

from __future__ import annotations

import errno

from ringfence.linux.syscall_numbers import NUMBERS, architecture

KNOWN = NUMBERS[architecture()]
REFUSED = (errno.EPERM, errno.ENOSYS, errno.EACCES, errno.EOPNOTSUPP)


def calling(*names: str) -> str:
    """The definition of ``call`` for these system calls."""
    numbers = {name: KNOWN[name] for name in names}
    return (
        "libc = ctypes.CDLL(None, use_errno=True)\nlibc.syscall.restype = ctypes.c_long\n"
        f"NUMBER = {numbers}\nREFUSED = {REFUSED}\n"
        "def call(name, *args):\n"
        "  held = [ctypes.c_char_p(a) if isinstance(a, bytes) else a if hasattr(a, '_type_') else ctypes.c_ulong(a)"
        " for a in args]\n"
        "  ctypes.set_errno(0)\n"
        "  result = libc.syscall(ctypes.c_long(NUMBER[name] if isinstance(name, str) else name), *held)\n"
        "  return result, 0 if result != -1 else ctypes.get_errno()\n"
    )


def reaching(name: str, arguments: str) -> str:
    """A probe that escapes when the kernel itself looked at the call: it worked, or failed for its arguments."""
    return (
        calling(name)
        + f"result, error = call({name!r}, {arguments})\n"
        + "print(result, errno.errorcode.get(error))\n"
        + "if result != -1 or error not in REFUSED: print('ESCAPED')\n"
    )
