"""A small real sandbox for the tripwire tests: user, mount and pid namespaces, and a supervisor that serves.

``as_caller`` runs a whole scenario (supervisor and guest) in a forked process, as root or as an ordinary user
for whom /dev/fuse is made accessible in a mount namespace of its own; nothing of the machine is changed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import pickle
import selectors
import signal
import socket
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

# Not os._exit: measured, that one writes a file, through the very places that are watched.
from posix import _exit as leave
from typing import Any

from ringfence.kernel.recorder import Attempt, Recorder
from ringfence.kernel.tripwire import mount as tripwire_mount
from ringfence.kernel.tripwire.layout import Layout
from ringfence.kernel.tripwire.serve import Tripwire

MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x20000, 0x10000000, 0x20000000
ORDINARY_ID = 54321
DEADLINE_S = 300.0
ARENA = b"/mnt"
_libc: Any = None


def libc() -> Any:
    global _libc
    _libc = _libc or ctypes.CDLL(None, use_errno=True)
    return _libc


def check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def mount(source: bytes, target: bytes, kind: bytes, flags: int, options: bytes) -> None:
    check(libc().mount(source, target, kind, ctypes.c_ulong(flags), options), f"mount {target!r}")


def unmount(target: bytes, flags: int) -> None:
    check(libc().umount2(target, flags), f"umount {target!r}")


def open_target(path: bytes) -> int:
    return os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)


def why_not(caller: str) -> str:
    """Why this caller can't be tried here; empty when it can."""
    if os.getuid() != 0 and caller == "root":
        return "needs root"
    if os.getuid() != 0 and not os.access(tripwire_mount.DEVICE, os.R_OK | os.W_OK):
        return "/dev/fuse is not accessible to this user"
    return "" if os.path.exists(tripwire_mount.DEVICE) else "no /dev/fuse"


def as_caller(caller: str, scenario: Callable[[], Any]) -> Any:
    """Run ``scenario`` in a fork as that caller; what it returns or raises comes back."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(caller, scenario, write_end)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as stream:
        data = stream.read()
    os.waitpid(pid, 0)
    ok, value = pickle.loads(data)
    if not ok:
        raise value
    return value


def _child(caller: str, scenario: Callable[[], Any], write_end: int) -> None:
    try:
        if caller == "user" and os.getuid() == 0:
            become_ordinary()
        answer = (True, scenario())
    except BaseException as error:
        answer = (False, RuntimeError(f"{type(error).__name__}: {error}"))
    with os.fdopen(write_end, "wb") as stream:
        pickle.dump(answer, stream)
    os._exit(0)


def become_ordinary() -> None:
    """An ordinary user on a machine whose /dev/fuse has the mode that distributions give it."""
    check(libc().unshare(CLONE_NEWNS), "unshare")
    mount(b"none", b"/", b"", MS_REC | MS_PRIVATE, b"")
    mount(b"none", ARENA, b"tmpfs", 0, b"mode=755")
    os.mknod(ARENA + b"/fuse", stat.S_IFCHR | 0o666, os.stat(tripwire_mount.DEVICE).st_rdev)
    os.chmod(ARENA + b"/fuse", 0o666)
    mount(ARENA + b"/fuse", tripwire_mount.DEVICE.encode(), b"", MS_BIND, b"")
    check(libc().umount2(ARENA, 2), "umount")
    os.setgroups([])
    os.setresgid(ORDINARY_ID, ORDINARY_ID, ORDINARY_ID)
    os.setresuid(ORDINARY_ID, ORDINARY_ID, ORDINARY_ID)
    check(libc().prctl(4, 1, 0, 0, 0), "PR_SET_DUMPABLE")  # else /proc/self belongs to root


@dataclass
class Ran:
    result: Any
    attempts: list[Attempt]
    recorder: Recorder
    tripwire: Tripwire
    setup_s: float
    guest: int


def enter_namespaces(other_ids: bool = False, inner_id: int = 0) -> None:
    """``other_ids``: map a second user besides the caller, which takes root outside."""
    flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID
    if other_ids:
        _mapped_from_outside(lambda: check(libc().unshare(flags), "unshare"))
        return
    users, groups = f"{inner_id} {os.getuid()} 1", f"{inner_id} {os.getgid()} 1"
    check(libc().unshare(flags), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", users), ("gid_map", groups)):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _mapped_from_outside(unshare: Callable[[], None]) -> None:
    asked, ask = os.pipe()
    guest, helper = os.getpid(), os.fork()
    if helper == 0:
        os.read(asked, 1)
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{guest}/{name}", "w") as file:
                file.write(f"0 0 1\n1 {ORDINARY_ID} 1\n")
        leave(0)
    unshare()
    os.write(ask, b"x")
    os.waitpid(helper, 0)
    os.close(asked)
    os.close(ask)


def furnish(prepare: Callable[[], None]) -> None:
    mount(b"none", b"/", b"", MS_REC | MS_PRIVATE, b"")
    mount(b"none", ARENA, b"tmpfs", 0, b"mode=755")
    os.mkdir(ARENA + b"/stage")
    prepare()


def lay(layout: Layout, channel: socket.socket, open_place: tripwire_mount.OpenTarget = open_target) -> float:
    """What the sandbox's set-up does."""
    started = time.monotonic()
    device = tripwire_mount.open_device()
    stage = ARENA + b"/stage"
    options = tripwire_mount.mount_options(device, uid=os.getuid(), gid=os.getgid())
    mount(b"none", stage, b"fuse", tripwire_mount.MOUNT_FLAGS, options)
    socket.send_fds(channel, [b"device"], [device])
    os.close(device)
    tripwire_mount.bind_all(
        layout.bindings, wire=stage, mount=mount, unmount=unmount, open_target=open_place
    )
    return time.monotonic() - started


class Cage:
    """One guest with its tripwire; ``probe`` runs inside, after the wire is laid.

    ``inside``: lay it as pid 1 of the new pid namespace, where our process numbers mean nothing.
    """

    def __init__(
        self,
        layout: Layout,
        prepare: Callable[[], None],
        probe: Callable[[], Any],
        *,
        inside: bool = False,
        open_place: tripwire_mount.OpenTarget = open_target,
        answer_late_s: float = 0.0,
        other_ids: bool = False,
        inner_id: int = 0,
    ) -> None:
        self.answer_late_s = answer_late_s
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.results, write_end = os.pipe()
        self.guest = os.fork()
        if self.guest == 0:
            self.ours.close()
            set_up = partial(_set_up, layout, prepare, theirs, open_place)
            _outer(set_up, probe, write_end, inside, partial(enter_namespaces, other_ids, inner_id))
        theirs.close()
        os.close(write_end)
        self.ours.settimeout(DEADLINE_S)
        message, descriptors, _, _ = socket.recv_fds(self.ours, 4096, 1)
        if not descriptors:
            raise RuntimeError(f"set-up failed: {message!r}")
        self.tripwire = Tripwire(descriptors[0], layout, mounter=self.guest, uid=inner_id, gid=inner_id)
        self.recorder = Recorder()
        self.attempts: list[Attempt] = []

    def turn(self) -> None:
        for attempt in self.tripwire.handle(self.recorder.wants):
            self.recorder.record(attempt)
            if len(self.attempts) < 10_000:
                self.attempts.append(attempt)

    def serve(self) -> Ran:
        """Serve until the guest's answer is complete."""
        data = b""
        deadline = time.monotonic() + DEADLINE_S
        with selectors.DefaultSelector() as selector:
            selector.register(self.results, selectors.EVENT_READ)
            selector.register(self.tripwire, selectors.EVENT_READ)
            while time.monotonic() < deadline:
                ready = {key.fileobj for key, _ in selector.select(1)}
                if self.tripwire in ready:
                    time.sleep(self.answer_late_s)
                    self.turn()
                    if self.tripwire.finished:
                        selector.unregister(self.tripwire)
                elif self.results in ready:
                    chunk = os.read(self.results, 1 << 16)
                    data += chunk
                    if not chunk:
                        break
            else:
                os.kill(self.guest, signal.SIGKILL)
                raise TimeoutError("the guest hangs")
        return self._finish(data)

    def _finish(self, data: bytes) -> Ran:
        os.waitpid(self.guest, 0)
        self.turn()
        self.recorder.lose(self.tripwire.lost, "requests that could not be read")
        self.recorder.close()
        self.tripwire.close()
        self.ours.close()
        os.close(self.results)
        ok, value, setup_s = pickle.loads(data)
        if not ok:
            raise RuntimeError(value)
        return Ran(value, self.attempts, self.recorder, self.tripwire, setup_s, self.guest)


def _set_up(
    layout: Layout, prepare: Callable[[], None], channel: socket.socket, open_place: tripwire_mount.OpenTarget
) -> float:
    try:
        furnish(prepare)
        return lay(layout, channel, open_place)
    except BaseException as error:
        with contextlib.suppress(OSError):
            channel.send(repr(error).encode())
        raise
    finally:
        channel.close()


def _outer(
    set_up: Callable[[], float],
    probe: Callable[[], Any],
    results: int,
    inside: bool,
    enter: Callable[[], None],
) -> None:
    answer: tuple[Any, ...]
    try:
        enter()
        setup_s = 0.0 if inside else set_up()
        init = os.fork()
        if init:
            os.close(results)
            os.waitpid(init, 0)
            leave(0)
        check(libc().prctl(1, signal.SIGKILL, 0, 0, 0), "PR_SET_PDEATHSIG")
        setup_s = set_up() if inside else setup_s
        answer = (True, probe(), setup_s)
    except BaseException as error:
        answer = (False, f"{type(error).__name__}: {error}", 0.0)
    with os.fdopen(results, "wb") as stream:
        pickle.dump(answer, stream)
    leave(0)


def outcome(action: Callable[[], Any]) -> str:
    """``ok`` or the name of the error that a call ended in."""
    try:
        action()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "ok"
