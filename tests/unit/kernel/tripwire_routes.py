"""Every way of reaching a path that a program has, as a table: name → call."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import shutil
import socket
import struct
from collections.abc import Callable

from tripwire_cage import ARENA, check, libc, outcome

FOLDER = ARENA + b"/f"
SCRATCH = ARENA + b"/scratch"
_ARM = platform.machine() in ("aarch64", "arm64")
_NR = {"statx": (332, 291), "openat2": (437, 437), "name_to_handle_at": (303, 264), "execveat": (322, 281)}
AT_FDCWD = -100


def _syscall(name: str, *arguments: object) -> None:
    check(libc().syscall(_NR[name][_ARM], *arguments), name)


def _open(flags: int) -> Callable[[bytes], None]:
    return lambda path: os.close(os.open(path, flags, 0o644))


def _relative(path: bytes) -> None:
    os.chdir(os.path.dirname(FOLDER))
    os.close(os.open(os.path.relpath(path, os.path.dirname(FOLDER)), os.O_RDONLY))


def _dirfd(path: bytes) -> None:
    folder = os.open(FOLDER, os.O_RDONLY)
    try:
        os.close(os.open(os.path.relpath(path, FOLDER), os.O_RDONLY, dir_fd=folder))
    finally:
        os.close(folder)


def _symlink(path: bytes) -> None:
    os.symlink(path, SCRATCH + b"/link")
    os.close(os.open(SCRATCH + b"/link", os.O_RDONLY))


def _dotdot(path: bytes) -> None:
    os.close(os.open(SCRATCH + b"/.." + path.removeprefix(ARENA), os.O_RDONLY))


def _thread_root(path: bytes) -> None:
    os.close(os.open(b"/proc/thread-self/root" + path, os.O_RDONLY))


def _cwd_magic(path: bytes) -> None:
    os.chdir(FOLDER)
    os.close(os.open(b"/proc/self/cwd/" + os.path.relpath(path, FOLDER), os.O_RDONLY))


def _exec(path: bytes, run: Callable[[bytes], None]) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            run(path)
        except OSError as error:
            os._exit(error.errno or 255)
        os._exit(255)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, os.strerror(code))


def _execve(path: bytes) -> None:
    _exec(path, lambda program: os.execv(program, [program]))


def _execveat(path: bytes) -> None:
    words = (ctypes.c_char_p * 2)(path, None)
    _exec(path, lambda program: _syscall("execveat", AT_FDCWD, program, words, None, 0))


def _statx(path: bytes) -> None:
    _syscall("statx", AT_FDCWD, path, 0, 0x7FF, ctypes.create_string_buffer(256))


def _openat2(path: bytes) -> None:
    how = ctypes.create_string_buffer(struct.pack("=QQQ", os.O_WRONLY, 0, 0), 24)
    _syscall("openat2", AT_FDCWD, path, how, 24)


def _handle(path: bytes) -> None:
    handle = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0), 136)
    _syscall("name_to_handle_at", AT_FDCWD, path, handle, ctypes.create_string_buffer(8), 0)


def _unix(path: bytes, verb: str) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        getattr(end, verb)(path)


def _inotify(path: bytes) -> None:
    watcher = libc().inotify_init1(0)
    try:
        check(libc().inotify_add_watch(watcher, path, 1), "inotify_add_watch")
    finally:
        os.close(watcher)


def _io_uring(path: bytes) -> None:
    """Open through io_uring: no system call of the program names the path."""
    params = ctypes.create_string_buffer(120)
    ring = libc().syscall(425, 4, params)
    check(ring, "io_uring_setup")
    try:
        _ring_open(ring, struct.unpack("=30I", params.raw), path)
    finally:
        os.close(ring)


def _ring_open(ring: int, params: tuple[int, ...], path: bytes) -> None:
    sq_entries, cq_entries = params[0], params[1]
    sq_tail, sq_array, cq_cqes = params[11], params[16], params[25]
    rings = mmap.mmap(ring, cq_cqes + cq_entries * 16 + sq_entries * 4 + 4096, offset=0)
    entries = mmap.mmap(ring, sq_entries * 64, offset=0x10000000)
    text = ctypes.create_string_buffer(path)
    # opcode IORING_OP_OPENAT, flags, ioprio, fd, off, addr, len (mode), open_flags, user_data
    entries[:40] = struct.pack("=BBHiQQIIQ", 18, 0, 0, AT_FDCWD, 0, ctypes.addressof(text), 0, os.O_RDONLY, 7)
    rings[sq_array : sq_array + 4] = struct.pack("=I", 0)
    rings[sq_tail : sq_tail + 4] = struct.pack("=I", 1)
    check(libc().syscall(426, ring, 1, 1, 1, None, 0), "io_uring_enter")
    _user_data, result, _flags = struct.unpack_from("=QiI", rings, cq_cqes)
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    os.close(result)


READING: dict[str, Callable[[bytes], object]] = {
    "open": _open(os.O_RDONLY),
    "open to write": _open(os.O_WRONLY),
    "open to truncate": _open(os.O_WRONLY | os.O_TRUNC),
    "open O_PATH": _open(os.O_PATH),
    "openat2": _openat2,
    "relative to cwd": _relative,
    "relative to a dirfd": _dirfd,
    "through a symlink": _symlink,
    "through dot-dot": _dotdot,
    "/proc/self/root": lambda path: os.close(os.open(b"/proc/self/root" + path, os.O_RDONLY)),
    "/proc/thread-self/root": _thread_root,
    "/proc/self/cwd": _cwd_magic,
    "stat": os.stat,
    "lstat": os.lstat,
    "statx": _statx,
    "statvfs": os.statvfs,
    "access": lambda path: os.access(path, os.F_OK) or _absent(),
    "execve": _execve,
    "execveat": _execveat,
    "readlink": os.readlink,
    "rename away": lambda path: os.rename(path, SCRATCH + b"/taken"),
    "rename beside": lambda path: os.rename(path, FOLDER + b"/beside"),
    "rename onto": lambda path: os.rename(FOLDER + b"/own", path),
    "link": lambda path: os.link(path, SCRATCH + b"/linked"),
    "unlink": os.unlink,
    "rmdir": os.rmdir,
    "truncate": lambda path: os.truncate(path, 0),
    "chmod": lambda path: os.chmod(path, 0o600),
    "chown": lambda path: os.chown(path, 0, 0),
    "utime": os.utime,
    "getxattr": lambda path: os.getxattr(path, "user.x"),
    "setxattr": lambda path: os.setxattr(path, "user.x", b"1"),
    "setxattr of 64 KiB": lambda path: os.setxattr(path, "user.x", bytes(65536)),
    "listxattr": os.listxattr,
    "removexattr": lambda path: os.removexattr(path, "user.x"),
    "chdir": os.chdir,
    "listdir": os.listdir,
    "connect": lambda path: _unix(path, "connect"),
    "inotify": _inotify,
    "file handle": _handle,
    "io_uring": _io_uring,
}
CREATING: dict[str, Callable[[bytes], object]] = {
    "create": _open(os.O_WRONLY | os.O_CREAT),
    "create exclusively": _open(os.O_WRONLY | os.O_CREAT | os.O_EXCL),
    "mkdir": os.mkdir,
    "mknod": lambda path: os.mknod(path, 0o100644),
    "symlink": lambda path: os.symlink(b"x", path),
    "link onto": lambda path: os.link(FOLDER + b"/own", path),
    "bind": lambda path: _unix(path, "bind"),
}
ROUTES = READING | CREATING


def _absent() -> None:
    raise OSError(errno.ENOENT, "access said no")


def prepare() -> None:
    """A directory with a secret file, a secret directory, and things that stay visible."""
    os.makedirs(FOLDER + b"/vault/in", exist_ok=True)
    os.makedirs(FOLDER + b"/sub", exist_ok=True)
    os.makedirs(SCRATCH, exist_ok=True)
    for name in (b"secret", b"vault/in/key", b"own", b"open.txt", b"sub/y", b"caf\xe9\xff"):
        with open(FOLDER + b"/" + name, "wb") as file:
            file.write(b"#!/bin/sh\nexit 0\n")
        os.chmod(FOLDER + b"/" + name, 0o755)
    if not os.path.lexists(FOLDER + b"/ln"):
        os.symlink(b"open.txt", FOLDER + b"/ln")


def clear_scratch() -> None:
    os.chdir("/")
    shutil.rmtree(SCRATCH)
    os.mkdir(SCRATCH)


def try_all(path: bytes, *, fresh: bool = False) -> dict[str, str]:
    """Outcome by route; ``fresh`` sets everything up again before each, for the run without protection."""
    found = {}
    for name, call in ROUTES.items():
        clear_scratch()
        if fresh:
            _reset()
        found[name] = outcome(lambda call=call: call(path))  # type: ignore[misc]
    clear_scratch()
    return found


def _reset() -> None:
    shutil.rmtree(FOLDER)
    prepare()
