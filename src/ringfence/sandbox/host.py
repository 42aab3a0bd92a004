"""Looks at this host for what a sandbox shows and what the kernel lets us do. Reads; changes nothing."""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from _collections_abc import Iterable

from ringfence.errors import UnavailableError
from ringfence.kernel import syscalls
from ringfence.model import mounted_names
from ringfence.model.ways.walk import Look, absolute, real
from ringfence.sandbox import container_around, limits_seen
from ringfence.sandbox import root as rootfs
from ringfence.sandbox.root import HostMount

_COPIED_BYTES, _COPIED_FILES = 128 * 1024, 64
_CONFIGURED_S = 5
_STAGES = ("/mnt", "/media", "/srv", "/dev/shm", "/opt")
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ANYBODY, _USERS, _NOT_THE_HOSTS_ROOT = "anybody", "users", "not the host's root"
# (file below /proc/sys, the blocking value, whom it blocks, the text for it, the command that lifts it)
_SWITCHES = (
    ("user/max_user_namespaces", 0, _ANYBODY,
     "user namespaces, which are switched off here (user.max_user_namespaces = 0)",
     "sudo sysctl -w user.max_user_namespaces=15000"),
    ("kernel/unprivileged_userns_clone", 0, _NOT_THE_HOSTS_ROOT,
     "user namespaces, which are kept from users here (kernel.unprivileged_userns_clone = 0)",
     "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
    ("kernel/apparmor_restrict_unprivileged_userns", 1, _USERS,
     "user namespaces, which AppArmor blocks here (kernel.apparmor_restrict_unprivileged_userns = 1)",
     "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"),
)  # fmt: skip
_NO_KERNEL_SUPPORT = ("a kernel with user namespaces", "use a kernel with CONFIG_USER_NS=y")
_CLONE_NEWUSER, _NO_SUCH_FLAG = 0x10000000, 0x1
_ALL_IDS = ["0", "0", "4294967295"]


def user_namespaces_blocked(root: str = "/") -> tuple[str, str] | None:
    """(what this caller lacks for user namespaces, the command that brings it), or None.

    ``root``: where to look for /proc.
    """
    if not os.path.exists(os.path.join(root, "proc/self/ns/user")):
        return _NO_KERNEL_SUPPORT
    whom = {_ANYBODY: True, _USERS: os.geteuid() != 0 and not _has_a_profile(root), _NOT_THE_HOSTS_ROOT:
            not is_the_hosts_root(root)}  # fmt: skip
    for name, blocking, blocked, problem, fix in _SWITCHES:
        if whom[blocked] and _number(os.path.join(root, "proc/sys", name)) == blocking:
            return problem, fix
    return container_around.FILTERED if _unshare_is_filtered() else container_around.closed(root)


def is_the_hosts_root(root: str = "/") -> bool:
    """Whether this process is root, and not only in a user namespace."""
    return os.geteuid() == 0 and _text(os.path.join(root, "proc/self/uid_map")).split() == _ALL_IDS


def is_confined(root: str = "/") -> bool:
    """Whether an outer sandbox holds this process by a filter or a profile: either may close mounting."""
    status = _text(os.path.join(root, "proc/self/status"))
    return _has_a_profile(root) or "Seccomp:\t2" in status


def _has_a_profile(root: str) -> bool:
    """Whether AppArmor has a profile for this process, which then decides; the switch is for processes without."""
    return _text(os.path.join(root, "proc/self/attr/current")).strip() not in ("", "unconfined")


def _unshare_is_filtered() -> bool:
    """The kernel itself refuses an unknown flag before it does anything; a filter only looks for the known one."""
    try:
        syscalls.call("unshare", _CLONE_NEWUSER | _NO_SUCH_FLAG)
    except OSError as error:
        return error.errno != errno.EINVAL
    return False


def has_seccomp() -> bool:
    """Whether this kernel has system call filters."""
    return os.path.exists("/proc/sys/kernel/seccomp/actions_avail")


UNIFIED = (("cgroup2", ""),)


def group_mounts() -> tuple[tuple[str, str], ...]:
    """The file systems of control groups that this kernel has."""
    return limits_seen.group_mounts(_text("/proc/self/cgroup"))


def _number(path: str) -> int | None:
    try:
        return int(_text(path))
    except ValueError:
        return None


def _text(path: str) -> str:
    try:
        return _content(path).decode("utf-8", "replace")
    except OSError:
        return ""


def _content(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # twice as fast as open(), and asked with each sandbox
    try:
        return b"".join(iter(lambda: os.read(file, 65536), b""))
    finally:
        os.close(file)


def system_links() -> tuple[tuple[str, str], ...]:
    """System directories that are links on this host, such as /lib → usr/lib."""
    return tuple((path, os.readlink(path)) for path in rootfs.SYSTEM_FOLDERS if os.path.islink(path))


def system_folders() -> tuple[HostMount, ...]:
    real = (path for path in rootfs.SYSTEM_FOLDERS if os.path.isdir(path) and not os.path.islink(path))
    return tuple(HostMount(path=path, mode="ro", folder=True) for path in real)


def configuration() -> tuple[tuple[HostMount, ...], tuple[tuple[str, bytes, str], ...]]:
    """The part of /etc that ordinary programs read: what is shown, and what is copied, since small things are cheaper
    to copy once than to mount for every sandbox: (path, content, where it points if it is a link).

    A link among the names is taken for what it points to. At most a few seconds old.
    """
    if _configured and time.monotonic() < _configured[0] + _CONFIGURED_S:
        return _configured[1], _configured[2]
    shown: list[HostMount] = []
    copies: list[tuple[str, bytes, str]] = []
    for name in rootfs.ETC_NAMES:
        path = f"/etc/{name}"
        try:
            copied = _copied(path)
            if copied is None:
                shown.append(HostMount(path=path, mode="ro", folder=os.path.isdir(path)))
            else:
                copies += copied
        except OSError:
            continue
    _configured[:] = time.monotonic(), tuple(shown), tuple(copies)
    return _configured[1], _configured[2]


_configured: list[Any] = []


def _copied(path: str) -> list[tuple[str, bytes, str]] | None:
    """The content of a file, or of a directory with a few files in it; None if that is too much."""
    found = os.stat(path)
    if stat.S_ISREG(found.st_mode) and found.st_size <= _COPIED_BYTES:
        return [(path, _public_content(path), "")]
    if not stat.S_ISDIR(found.st_mode):
        return None if stat.S_ISREG(found.st_mode) else []
    listed = _few_within(path)
    return None if listed is None else [row for entry in listed for row in _copied_within(entry)]


def _few_within(folder: str) -> list[os.DirEntry[str]] | None:
    """The files below it, and links to files; None if they are many, or one is large. The look ends at the first file
    too many: a directory of certificates has hundreds."""
    found: list[os.DirEntry[str]] = []
    waiting = [folder]
    while waiting:
        for entry in _entries(waiting.pop()):
            if entry.is_dir():
                waiting += [] if entry.is_symlink() else [entry.path]
                continue
            found.append(entry)
            if len(found) > _COPIED_FILES or entry.stat(follow_symlinks=False).st_size > _COPIED_BYTES:
                return None
    return found


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as listed:
            return list(listed)
    except OSError:
        return []  # not for us, or gone


def _copied_within(entry: os.DirEntry[str]) -> list[tuple[str, bytes, str]]:
    path = entry.path
    try:
        if entry.is_symlink():
            return [(path, b"", os.readlink(path))]
        return [(path, _public_content(path), "")]
    except OSError:
        return []  # not for everybody, or no file


def _public_content(path: str) -> bytes:
    """Its content if everybody may read it; a copy must not make a private file public."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or not found.st_mode & stat.S_IROTH:
            raise PermissionError(path)
        return os.read(descriptor, _COPIED_BYTES)
    finally:
        os.close(descriptor)


RESOLVER = ("/etc/resolv.conf", "/etc/hosts")
"""The files that control name lookup on the host's network."""


def resolver() -> tuple[tuple[str, str], ...]:
    """(path, text) of each."""
    return tuple((path, _text(path)) for path in RESOLVER)


def free_folder(used: list[str]) -> str:
    """A directory that every system has, and that neither contains nor lies in any of these paths."""
    for folder in _STAGES:
        apart = all(not f"{path}/".startswith(f"{folder}/") and not folder.startswith(f"{path}/") for path in used)
        if apart and os.path.isdir(folder) and not os.path.islink(folder):
            return folder
    raise UnavailableError(
        "no directory to build a sandbox in", missing=(" or ".join(_STAGES),), hint=f"sudo mkdir {_STAGES[0]}"
    )


def mount_table() -> bytes:
    """Changes when something is mounted or unmounted."""
    return _content("/proc/self/mountinfo")


def which_are_there(folders: Iterable[str]) -> bytes:
    """Changes when one of these paths appears or disappears."""
    return bytes(os.path.isdir(folder) for folder in sorted(folders))


def has_fuse() -> bool:
    """Whether this caller may open the device that tripwires need."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True


_WORTH_A_LISTING = 32


def names_in(folders: Iterable[str]) -> int:
    """How many names there are in these directories; for a missing one, in the nearest existing directory above it. If
    a file is in the way, more than can be counted: no tripwire reports requests for names below it."""
    nearest = {_nearest(folder) for folder in folders}
    return sum(map(_names_in, nearest))


def _nearest(folder: str) -> str:
    """The directory, or the nearest one above it that exists."""
    while folder != "/" and not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    return folder


def _names_in(folder: str) -> int:
    try:
        return 1 + len(os.listdir(folder))
    except NotADirectoryError:
        return sys.maxsize
    except OSError:
        return 1


def present(folder: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names that exist, except links."""
    paths = {name: f"{folder}/{name}" for name in names}
    return tuple(name for name, path in paths.items() if os.path.exists(path) and not os.path.islink(path))


def every_name(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Each path as the kernel will meet it: with the links on the way resolved, the target of a link at its end, and
    its other names by second mounts."""
    names: dict[str, list[str]] = {}
    for path in paths:
        folder, _, name = path.rstrip("/").rpartition("/")
        names.setdefault(folder, []).append(name)
    found: dict[str, None] = {}
    for folder, inside in names.items():
        place = real(folder or "/").rstrip("/")
        found.update(dict.fromkeys([f"{place}/{name}" for name in inside]))
        found.update(dict.fromkeys([real(f"{place}/{name}") for name in _links(place or "/", inside)]))
    return by_every_mount(tuple(found))


def by_every_mount(paths: tuple[str, ...]) -> tuple[str, ...]:
    """These paths, and their names by other mounts of their file systems."""
    if not paths or sys.platform != "linux":
        return paths
    return tuple(dict.fromkeys((*paths, *mounted_names.others(paths, mount_table()))))


def _links(folder: str, names: list[str]) -> list[str]:
    """The names in the directory that are links; one listing tells that for a whole directory."""
    if len(names) < _WORTH_A_LISTING:
        return [name for name in names if os.path.islink(f"{folder}/{name}")]
    try:
        with os.scandir(folder) as listing:
            links = {entry.name for entry in listing if entry.is_symlink()}
    except OSError:
        return [name for name in names if os.path.islink(f"{folder}/{name}")]
    return [name for name in names if name in links]


def outside_the_system(paths: list[str], shown: tuple[str, ...], look: Look) -> list[str]:
    """Paths that are not shown already, without those below another of them; by where the kernel finds them, and by
    their own names for programs that look there."""
    wanted = sorted({look.real(path) for path in paths} | {absolute(path) for path in paths})
    kept: list[str] = []
    below = tuple(f"{top.rstrip('/')}/" for top in shown)
    for path in wanted:
        if path != "/" and not f"{path}/".startswith(below) and os.path.lexists(path):
            kept.append(path)
            below = (*below, f"{path.rstrip('/')}/")
    return kept
