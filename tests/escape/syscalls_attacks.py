"""Attacks by system calls that only help to break out: each must end at the filter.

A call escapes when the kernel itself looked at it, so most are made with arguments that are wrong in a harmless
way: the control then fails for the arguments, and the sandboxed one is refused before anybody looks.
"""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tests.escape.attack import Attack, Stage
from tests.escape.raw_calls import KNOWN, calling, reaching

_BUFFER = "ctypes.create_string_buffer(256)"
_FAR = "ctypes.c_void_p(8)"

# (call, arguments, what it would give, the control needs root)
_CLOSED = (
    ("io_uring_setup", f"4, {_BUFFER}", "calls that no filter sees are set up", False),
    ("bpf", f"5, {_FAR}, 48", "a program is loaded into the kernel", True),
    ("perf_event_open", f"{_FAR}, 0, -1, -1, 0", "the kernel is measured", True),
    ("userfaultfd", "1", "the kernel can be stopped in mid-copy", False),
    ("kexec_load", "0, 99, 0, 0xFFFF", "the running kernel is replaced", True),
    ("init_module", f"{_FAR}, 4096, b''", "code is put into the kernel", True),
    ("finit_module", "-1, b'', 0xFFFF", "code is put into the kernel from a file", True),
    ("delete_module", f"{_FAR}, 0", "code is taken out of the kernel", True),
    ("clock_settime", "0, struct_timespec", "the machine's clock is set", False),
    ("settimeofday", "struct_timespec, 0", "the machine's clock is set the old way", False),
    ("adjtimex", "struct_timex", "the machine's clock is steered", True),
    ("clock_adjtime", "0, struct_timex", "the machine's clock is steered by the newer call", True),
    ("sethostname", "b'x', 100000", "the host's name is set", True),
    ("setdomainname", "b'x', 100000", "the host's domain is set", True),
    ("reboot", "1, 2, 3, 0", "the machine is stopped", True),
    ("swapon", "b'/nowhere/at/all', 0", "a swap file is taken into use", True),
    ("swapoff", "b'/nowhere/at/all'", "a swap file is given up", True),
    ("quotactl", "0x80000100, 0, 0, 0", "quotas are changed", False),
    ("acct", "b'/nowhere/at/all'", "process accounting is switched", True),
    ("mount", "b'none', b'/nowhere/at/all', b'tmpfs', 0, 0", "something is mounted", True),
    ("umount2", "b'/nowhere/at/all', 2", "something is unmounted", True),
    ("fsopen", "b'tmpfs', 0", "a file system is made by the newer mount calls", True),
    ("fsmount", "-1, 0, 0", "a file system is mounted by the newer mount calls", True),
    ("fspick", "-100, b'/nowhere/at/all', 0", "a mounted file system is reconfigured", True),
    ("move_mount", "-1, b'', -1, b'', 0x44", "a mount is moved", True),
    ("open_tree", "-100, b'/', 0", "a mount is taken by a descriptor", False),
    ("mount_setattr", "-100, b'/nowhere/at/all', 0, bytes(31) + b'x', 32", "a mount is made writable", True),
    ("pivot_root", "b'/nowhere/at/all', b'/nowhere/at/all'", "the root is swapped", True),
    ("open_by_handle_at", f"-1, {_BUFFER}, 0", "a file is opened by number", True),
    ("name_to_handle_at", f"-100, b'/usr', b'\\x80' + bytes(200), {_BUFFER}, 0", "a file's number is told", False),
    ("process_madvise", f"-1, {_BUFFER}, 1, 20, 0", "memory of another process is dropped", False),
    ("process_vm_readv", "os.getpid(), 0, 0, 0, 0, 0", "memory of another process is read", False),
    ("process_vm_writev", "os.getpid(), 0, 0, 0, 0, 0", "memory of another process is written", False),
    ("kcmp", "os.getpid(), os.getpid(), 0, 0, 0", "kernel objects of processes are compared", False),
    ("fanotify_init", "0x200, 0", "whole file systems are watched", False),
    ("move_pages", "0, 0, 0, 0, 0, 0", "memory of another process is moved", False),
    ("migrate_pages", "0, 0, 0, 0", "all memory of a process is moved", False),
    ("pidfd_getfd", "os.pidfd_open(os.getpid()), 0, 0", "a descriptor is taken out of a process", False),
    ("memfd_secret", "0", "memory is made that no watcher can read", False),
    ("listmount", "struct_listmount, ctypes.create_string_buffer(800), 100, 0", "the mounts are listed", False),
    ("syslog", f"3, {_BUFFER}, 100", "the kernel's log is read", True),
    ("setns", "-1, 0", "another namespace is entered", False),
    ("lsm_set_self_attr", "0, 0, 0, 0", "the security label is changed", False),
)  # fmt: skip
# Each makes or asks for huge pages: where the host has none, the kernel says so after a look.
_HUGE = (
    ("mmap", "0, 2 << 20, 3, 0x40022, (1 << 64) - 1, 0", False),
    ("memfd_create", "b'huge', 5", False),
    ("shmget", "0, 2 << 20, 0o4600", True),
)
# Kernels are built without these: where there is no such call there is nothing to close, and no control.
_ONLY_WITH = {"kexec_load": "/sys/kernel/kexec_loaded", "init_module": "/proc/modules",
              "finit_module": "/proc/modules", "delete_module": "/proc/modules"}  # fmt: skip
_STRUCTURES = (
    "import struct\n"
    "struct_timespec = struct.pack('qq', 1, 1 << 40)\n"
    "struct_timex = struct.pack('Q', 0x4000) + bytes(400)\n"  # ADJ_TICK with a tick of zero
    "struct_listmount = struct.pack('IIQQ', 24, 0, 0xFFFFFFFFFFFFFFFF, 0)\n"
)
_WORTH_KILLING = {"kexec_load", "init_module", "finit_module", "delete_module", "open_by_handle_at", "pivot_root",
                  "reboot", "swapon", "swapoff"}  # fmt: skip


def _closed(name: str, arguments: str, gives: str, needs_root: bool) -> Attack:
    known = name in KNOWN
    return Attack(
        name=name, family="syscalls", what=gives, probe=_STRUCTURES + reaching(name, arguments) if known else "",
        needs_root=needs_root, possible=known and os.path.exists(_ONLY_WITH.get(name, "/")), status=("FORBIDDEN_SYSCALL",) if name in _WORTH_KILLING else (),
    )  # fmt: skip


def _huge(name: str, arguments: str, needs_root: bool) -> Attack:
    return Attack(
        name=f"huge pages by {name}", family="syscalls", what="the job takes memory that no limit counts",
        probe=reaching(name, arguments), needs_root=needs_root,
    )  # fmt: skip


# The kernel takes 32 bits of a number and of most flags; a filter that compares 64 lets these through.
_UPPER_BITS = calling("unshare") + (
    "result, error = call(NUMBER['unshare'] | 0xABCD << 32, 0x10000000)\n"
    "print('ESCAPED') if result == 0 else host_refuses('unshare', error)\n"
    "child = os.fork()\n"
    "if child == 0:\n  print('ESCAPED' if call('unshare', 0x10000000 | 0x400)[0] == 0 else 'refused'); os._exit(0)\n"
    "os.waitpid(child, 0)\n"
)
_CLONE = calling("clone") + (
    "result, error = call('clone', 0x10000000 | 17, 0, 0, 0, 0)\n"
    "if result == 0: os._exit(0)\n"
    "print('ESCAPED') if result > 0 else host_refuses('clone', error)\n"
)
_CLONE3 = calling("clone3") + (
    "import struct\n"
    "args = ctypes.create_string_buffer(struct.pack('8Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0))\n"
    "result, error = call('clone3', args, 64)\n"
    "if result == 0: os._exit(0)\n"
    "print('ESCAPED') if result > 0 else host_refuses('clone3', error)\n"
)
_LISTENER = calling("seccomp", "prctl") + (
    "import struct\n"
    "call('prctl', 38, 1, 0, 0, 0)\n"
    "code = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7FFF0000))\n"
    "result, error = call('seccomp', 1, 8, struct.pack('HxxxxxxQ', 1, ctypes.addressof(code)))\n"
    "print(result, error)\n"
    "if result >= 0: print('ESCAPED')\n"
)
_FORK = (
    "try:\n  child = os.fork()\nexcept OSError as e: print(e)\n"
    "else:\n  print('ESCAPED') if child else os._exit(0)\n"
)
_SOCKET = "try:\n  socket.socket()\nexcept OSError as e: print(e)\nelse: print('ESCAPED')\n"

_NAMESPACES = {"user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x8000000,
               "uts": 0x4000000, "cgroup": 0x2000000, "time": 0x80}  # fmt: skip


def _unshare(name: str, flag: int) -> Attack:
    return Attack(
        name=f"unshare {name}", family="syscalls", what=f"a new {name} namespace is made",
        probe=reaching("unshare", str(flag)), needs_root=name != "user",
    )  # fmt: skip


# ---- the entry of the 32-bit architecture, where every number is another call

_MESSAGE = b"ESCAPED\n"


def _program_32() -> bytes:
    """A 32-bit ELF program of this machine's older sibling: write(1, "ESCAPED\\n", 8); exit(0)."""
    base, header = 0x10000 if KNOWN_ARM else 0x8048000, 52 + 32
    code = _arm_code() if KNOWN_ARM else _i386_code(base + header)
    size = header + len(code) + len(_MESSAGE)
    machine, flags = (40, 0x5000000) if KNOWN_ARM else (3, 0)
    elf = struct.pack("<16sHHIIIIIHHHHHH", b"\x7fELF\x01\x01\x01", 2, machine, 1, base + header, 52, 0, flags,
                      52, 32, 1, 0, 0, 0)  # fmt: skip
    segment = struct.pack("<8I", 1, 0, base, base, size, size, 5, 0x1000)
    return elf + segment + code + _MESSAGE


def _arm_code() -> bytes:
    # mov r7,#4; mov r0,#1; add r1,pc,#16 (the message); mov r2,#8; svc 0; mov r7,#1; mov r0,#0; svc 0
    words = (0xE3A07004, 0xE3A00001, 0xE28F1010, 0xE3A02008, 0xEF000000, 0xE3A07001, 0xE3A00000, 0xEF000000)
    return struct.pack("<8I", *words)


def _i386_code(start: int) -> bytes:
    # mov eax,4; mov ebx,1; mov ecx,message; mov edx,8; int 0x80; mov eax,1; xor ebx,ebx; int 0x80
    length = 5 * 4 + 2 + 5 + 2 + 2
    moves = struct.pack("<BIBIBIBI", 0xB8, 4, 0xBB, 1, 0xB9, start + length, 0xBA, 8)
    return moves + b"\xcd\x80" + b"\xb8\x01\x00\x00\x00" + b"\x31\xdb" + b"\xcd\x80"


KNOWN_ARM = "open" not in KNOWN  # the newer architecture has no open(2)


def _put_program(folder: Path) -> Path:
    path = folder / "program32"
    path.write_bytes(_program_32())
    path.chmod(0o755)
    return path


def _stage_program(stage: Stage) -> Mapping[str, object]:
    path = _put_program(stage.folder)
    stage.policy["readable_paths"] = [str(path)]
    return {"path": str(path)}


def _host_runs_32_bit() -> bool:
    """Whether this processor and kernel have the older entry at all; where not, there is nothing to close."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        try:
            return subprocess.run([_put_program(Path(name))], capture_output=True, check=False).stdout == _MESSAGE
        except OSError:
            return False


_EXEC = "os.execv(GIVEN['path'], ['program32'])\n"
_INT_80 = (
    "import mmap\n"
    "page = mmap.mmap(-1, 4096, prot=7)\n"
    "page.write(bytes.fromhex('53b814000000cd805bc3'))\n"  # push rbx; mov eax,20 (getpid); int 0x80; pop rbx; ret
    "made = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))\n"
    "if made() == os.getpid(): print('ESCAPED')\n"
)
_FOREIGN = [
    Attack(name="a 32-bit program", family="syscalls", what="calls come in by the entry of another architecture",
           prepare=_stage_program, probe=_EXEC, status=("FORBIDDEN_SYSCALL",)),
]  # fmt: skip
_X86_ENTRY = [
    Attack(name="int 0x80", family="syscalls", what="a 64-bit program uses the 32-bit entry", probe=_INT_80,
           status=("FORBIDDEN_SYSCALL",)),
]  # fmt: skip
_X86_ONLY = [
    Attack(name="modify_ldt", family="syscalls", what="a 16-bit segment is made",
           probe=reaching("modify_ldt", f"0, {_BUFFER}, 256") if not KNOWN_ARM else ""),
    Attack(name="iopl", family="syscalls", what="hardware ports are opened", needs_root=True,
           probe=reaching("iopl", "99") if not KNOWN_ARM else "", status=("FORBIDDEN_SYSCALL",)),
]  # fmt: skip

_RUNS_32_BIT = _host_runs_32_bit()

ATTACKS = [
    *(_closed(*row) for row in _CLOSED),
    *(_huge(*row) for row in _HUGE),
    *(_unshare(name, flag) for name, flag in _NAMESPACES.items()),
    Attack(name="upper bits", family="syscalls", what="bits that the kernel ignores carry a call past the filter",
           probe=_UPPER_BITS),
    Attack(name="clone with a namespace", family="syscalls", what="a child is born in a new user namespace",
           probe=_CLONE),
    Attack(name="clone3 with a namespace", family="syscalls", what="flags behind a pointer pass the filter",
           probe=_CLONE3),
    Attack(name="a listener of its own", family="syscalls", what="the job answers its own forbidden calls",
           probe=_LISTENER),
    Attack(name="fork under the tight profile", family="syscalls", what="a process is made where none may be",
           probe=_FORK, policy={"syscall_profile": "tight"}),
    Attack(name="socket under the tight profile", family="syscalls", what="a socket is made where none may be",
           probe=_SOCKET, policy={"syscall_profile": "tight"}),
    *(replace(attack, possible=_RUNS_32_BIT) for attack in _FOREIGN),
    *(replace(attack, possible=_RUNS_32_BIT and not KNOWN_ARM) for attack in _X86_ENTRY),
    *(replace(attack, possible=not KNOWN_ARM) for attack in _X86_ONLY),
]  # fmt: skip
