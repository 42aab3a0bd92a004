"""Source for probes: ``call(name, arguments…)`` makes a raw system call and returns (result, errno).

Numbers come from the package's tables, so a probe needs nothing of ours inside the sandbox.
"""

from __future__ import annotations

import errno

from ringfence.kernel.syscall_numbers import NUMBERS, architecture
from tests.testable import HOST_REFUSES

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
        "def host_refuses(what, error):\n"
        f"  if 'RINGFENCE_CONTROL' in os.environ: print({HOST_REFUSES!r}, what, errno.errorcode.get(error))\n"
    )


def reaching(name: str, arguments: str) -> str:
    """A probe that escapes when the kernel itself looked at the call: it worked, or failed for its arguments.

    A kernel may be built without the call or have it switched off: as a control the probe says so.
    """
    return (
        calling(name)
        + f"result, error = call({name!r}, {arguments})\n"
        + "print(result, errno.errorcode.get(error))\n"
        + "if result != -1 or error not in REFUSED: print('ESCAPED')\n"
        + f"else: host_refuses({name!r}, error)\n"
    )


WITHOUT_ITS_FIRST_THREAD = (
    "import _thread\n"
    "def go_on_without_first(work):\n"
    " def late():\n"
    "  while open('/proc/self/stat').read().rpartition(')')[2].split()[0] != 'Z': time.sleep(0.005)\n"
    "  try: work()\n"
    "  finally: os._exit(1)\n"
    " _thread.start_new_thread(late, ())\n"
    f" ctypes.CDLL(None).syscall({KNOWN['exit']}, 0)\n"
)
"""``go_on_without_first(work)`` ends the first thread alone; ``work`` goes on in another, and ends the process."""
