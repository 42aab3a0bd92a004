"""Which system calls name a file, where in their arguments, and whether a link at the end is followed. Data only.

``WATCHED`` is what the filter tells the recorder of where hidden paths are watched by notification. Not in it:
calls on descriptors (what is hidden has none), ``fanotify_mark`` (it needs what ``fanotify_init`` refuses),
messages by ``sendmsg`` (its address lies behind two pointers) and calls that end the process anyway.
"""

from __future__ import annotations

import os

from ringfence.model.record import record

CWD = -1
_AT_SYMLINK_NOFOLLOW, _AT_SYMLINK_FOLLOW, _IN_DONT_FOLLOW = 0x100, 0x400, 0x2000000
_O_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_O_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_SOCKADDR_PATH = 2


@record
class Watched:
    """Says how one call names the paths that it touches."""

    operation: str
    places: tuple[tuple[int, int], ...]
    """(argument with the directory, CWD: the working directory; argument that points to the path)."""
    follow: bool = True
    """A link at the end of the path leads on."""
    unless: tuple[int, int] = (0, 0)
    """(argument, bits): one of the bits set turns ``follow`` round."""
    creates: bool = False
    """Makes the name, so what it gets can't be told from the name's absence."""
    writes: bool = False
    flags: int = -1
    """Argument with open flags; -1: none."""
    skip_bytes: int = 0
    """What stands before the path where the pointer leads: a socket address begins with its family."""
    runs: bool = False
    """Executes the file, for which the kernel may open others."""
    size: int = 0
    """Of a socket address: the argument with its length."""

    def follows(self, args: tuple[int, ...]) -> bool:
        argument, bits = self.unless
        return self.follow != bool(args[argument] & bits)

    def may_write(self, args: tuple[int, ...]) -> bool:
        return self.writes or (self.flags >= 0 and bool(args[self.flags] & _O_WRITES))

    def may_create(self, args: tuple[int, ...]) -> bool:
        return self.creates or (self.flags >= 0 and bool(args[self.flags] & os.O_CREAT))


def _look(operation: str, *places: tuple[int, int], **more: object) -> Watched:
    return Watched(operation=operation, places=places, **more)  # type: ignore[arg-type]


def _change(operation: str, *places: tuple[int, int], **more: object) -> Watched:
    return Watched(operation=operation, places=places, writes=True, **more)  # type: ignore[arg-type]


def _make(operation: str, *places: tuple[int, int]) -> Watched:
    return Watched(operation=operation, places=places, writes=True, creates=True, follow=False)


_HERE = (CWD, 0)  # the first argument is the path
_AT = (0, 1)  # the first two are directory and path

WATCHED: dict[str, Watched] = {
    "open": _look("open", _HERE, flags=1, unless=(1, _O_NOFOLLOW)),
    "openat": _look("open", _AT, flags=2, unless=(2, _O_NOFOLLOW)),
    "openat2": _look("open", _AT),
    "creat": _change("open", _HERE, creates=True),
    "execve": _look("exec", _HERE, runs=True),
    "execveat": _look("exec", _AT, unless=(4, _AT_SYMLINK_NOFOLLOW), runs=True),
    "stat": _look("stat", _HERE),
    "lstat": _look("stat", _HERE, follow=False),
    "newfstatat": _look("stat", _AT, unless=(3, _AT_SYMLINK_NOFOLLOW)),
    "statx": _look("stat", _AT, unless=(2, _AT_SYMLINK_NOFOLLOW)),
    "file_getattr": _look("stat", _AT, unless=(4, _AT_SYMLINK_NOFOLLOW)),
    "statfs": _look("statfs", _HERE),
    "access": _look("access", _HERE),
    "faccessat": _look("access", _AT),
    "faccessat2": _look("access", _AT, unless=(3, _AT_SYMLINK_NOFOLLOW)),
    "readlink": _look("readlink", _HERE, follow=False),
    "readlinkat": _look("readlink", _AT, follow=False),
    "chdir": _look("chdir", _HERE),
    "chroot": _look("chroot", _HERE),
    "uselib": _look("open", _HERE),
    "acct": _change("open", _HERE),
    "quotactl": _look("open", (CWD, 1)),
    "name_to_handle_at": _look("handle", _AT, follow=False, unless=(4, _AT_SYMLINK_FOLLOW)),
    "inotify_add_watch": _look("watch", (CWD, 1), unless=(2, _IN_DONT_FOLLOW)),
    "getxattr": _look("xattr", _HERE),
    "lgetxattr": _look("xattr", _HERE, follow=False),
    "getxattrat": _look("xattr", _AT, unless=(2, _AT_SYMLINK_NOFOLLOW)),
    "listxattr": _look("xattr", _HERE),
    "llistxattr": _look("xattr", _HERE, follow=False),
    "listxattrat": _look("xattr", _AT, unless=(2, _AT_SYMLINK_NOFOLLOW)),
    "setxattr": _change("xattr", _HERE),
    "lsetxattr": _change("xattr", _HERE, follow=False),
    "setxattrat": _change("xattr", _AT, unless=(2, _AT_SYMLINK_NOFOLLOW)),
    "removexattr": _change("xattr", _HERE),
    "lremovexattr": _change("xattr", _HERE, follow=False),
    "removexattrat": _change("xattr", _AT, unless=(2, _AT_SYMLINK_NOFOLLOW)),
    "file_setattr": _change("chmod", _AT, unless=(4, _AT_SYMLINK_NOFOLLOW)),
    "truncate": _change("truncate", _HERE),
    "chmod": _change("chmod", _HERE),
    "fchmodat": _change("chmod", _AT),
    "fchmodat2": _change("chmod", _AT, unless=(3, _AT_SYMLINK_NOFOLLOW)),
    "chown": _change("chown", _HERE),
    "lchown": _change("chown", _HERE, follow=False),
    "fchownat": _change("chown", _AT, unless=(4, _AT_SYMLINK_NOFOLLOW)),
    "utime": _change("utime", _HERE),
    "utimes": _change("utime", _HERE),
    "futimesat": _change("utime", _AT),
    "utimensat": _change("utime", _AT, unless=(3, _AT_SYMLINK_NOFOLLOW)),
    "unlink": _change("unlink", _HERE, follow=False),
    "unlinkat": _change("unlink", _AT, follow=False),
    "rmdir": _change("rmdir", _HERE, follow=False),
    "rename": _change("rename", _HERE, (CWD, 1), follow=False),
    "renameat": _change("rename", _AT, (2, 3), follow=False),
    "renameat2": _change("rename", _AT, (2, 3), follow=False),
    "link": _change("link", _HERE, (CWD, 1), follow=False),
    "linkat": _change("link", _AT, (2, 3), follow=False, unless=(4, _AT_SYMLINK_FOLLOW)),
    "symlink": _make("symlink", (CWD, 1)),
    "symlinkat": _make("symlink", (1, 2)),
    "mkdir": _make("mkdir", _HERE),
    "mkdirat": _make("mkdir", _AT),
    "mknod": _make("mknod", _HERE),
    "mknodat": _make("mknod", _AT),
    "connect": _look("connect", (CWD, 1), skip_bytes=_SOCKADDR_PATH, size=2),
    "sendto": _look("sendto", (CWD, 4), skip_bytes=_SOCKADDR_PATH, size=5),
    "bind": Watched(operation="bind", places=((CWD, 1),), writes=True, creates=True, follow=False,
                    skip_bytes=_SOCKADDR_PATH, size=2),
}  # fmt: skip
