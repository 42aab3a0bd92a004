"""The tripwire's half inside the sandbox: mount the file system and bind its nodes over hidden places.

Runs in the new user and mount namespaces, before pivot_root and before privileges are dropped, while the
supervisor already answers (``tripwire``): each step that looks something up waits for it. To have processes
named in the records it must run in the supervisor's pid namespace, so before the sandbox's pid 1 is made.
Imports little, on purpose. How to mount, how to open a target without following links of the host, and how to
hand over the descriptor are the caller's, passed in.
"""

from __future__ import annotations

import os
import stat
from _collections_abc import Callable, Iterable

from ringfence.errors import SetupError, UnavailableError
from ringfence.kernel.opened import Opened, opened

DEVICE = "/dev/fuse"
_STEP = "tripwire"
# Not noexec and not read-only: then execve and open for writing would end in the kernel with EACCES or EROFS,
# which tells that something is there, and would never be recorded. Every write is refused by the answer.
MOUNT_FLAGS = 2 | 4  # MS_NOSUID | MS_NODEV
_BIND = 4096 | 16384  # MS_BIND | MS_REC
_MNT_DETACH = 2

# mount(source, target, type, flags, options), as mount(2); raises OSError
Mount = Callable[[bytes, bytes, bytes, int, bytes], None]
# unmount(target, flags), as umount2(2); raises OSError
Unmount = Callable[[bytes, int], None]
# opens a place of the sandbox with O_PATH, by its path inside the root, anew each time; raises OSError
OpenTarget = Callable[[bytes], int]


def open_device(path: str = DEVICE) -> int:
    """The FUSE device. It must be opened in the user namespace that mounts (kernel rule)."""
    try:
        return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UnavailableError(
            f"no tripwires: {path}: {error.strerror}",
            missing=(path,),
            hint=f"load the fuse module and allow it to users: modprobe fuse && chmod 0666 {DEVICE}",
        ) from error


def mount_options(device: int, *, uid: int = 0, gid: int = 0) -> bytes:
    """Options of the fuse mount.

    ``allow_other`` because the job may run as another id than init; it reaches no further than this user
    namespace and those below it.
    """
    return b"fd=%d,rootmode=40755,user_id=%d,group_id=%d,allow_other" % (device, uid, gid)


def bind_all(
    bindings: Iterable[tuple[bytes, bytes, tuple[bytes, ...]]],
    *,
    wire: bytes,
    mount: Mount,
    unmount: Unmount,
    open_target: OpenTarget,
) -> None:
    """Bind each node of the file system mounted at ``wire`` over its place, then take the wire away.

    ``bindings`` are ``Layout.bindings``. The wire may lie in a directory that becomes covered by one of them.
    """
    try:
        with opened(wire, os.O_RDONLY | os.O_DIRECTORY) as nodes:
            # One listing brings all nodes into the kernel's cache; without it each is a round trip.
            os.listdir(nodes)
            for name, place, visible in bindings:
                _bind_one(_fd_path(nodes) + b"/" + name, place, visible, mount, open_target)
            unmount(_fd_path(nodes), _MNT_DETACH)
    except OSError as error:
        raise SetupError(_STEP, f"cannot lay a tripwire: {error}") from error


def _bind_one(
    node: bytes, place: bytes, visible: tuple[bytes, ...], mount: Mount, open_target: OpenTarget
) -> None:
    with Opened(open_target(place)) as covered:
        mount(node, _fd_path(covered), b"", _BIND, b"")
        if visible:
            _bind_visible(covered, place, visible, mount, open_target)


def _bind_visible(
    covered: int, place: bytes, visible: tuple[bytes, ...], mount: Mount, open_target: OpenTarget
) -> None:
    with Opened(open_target(place)) as veil:
        os.listdir(_fd_path(veil))
        for name in visible:
            _bind_child(covered, veil, name, mount)


def _bind_child(covered: int, veil: int, name: bytes, mount: Mount) -> None:
    try:
        with opened(name, os.O_PATH | os.O_NOFOLLOW, covered) as source:
            if not stat.S_ISLNK(os.fstat(source).st_mode):
                mount(_fd_path(source), _fd_path(veil) + b"/" + name, b"", _BIND, b"")
    except FileNotFoundError:
        return  # gone since the directory was listed: the node below it answers «no such file»


def _fd_path(descriptor: int) -> bytes:
    return b"/proc/self/fd/%d" % descriptor
