"""The steps that build a root as system calls: one pure function for each kind of step. Nothing is mounted here.

They make the same calls as ``linux_steps``. Slots hold what is known only when the table is executed: the root, the
cloned sources, the door to the leader.
"""

from __future__ import annotations

import errno
import os
import stat
from _collections_abc import Callable, Iterable
from struct import pack

from ringfence.kernel.calls.table import ANY_ERROR, Address, Slot, Table
from ringfence.kernel.mount import mounts, namespaces
from ringfence.sandbox import limits_seen

_AT, _EMPTY_PATH, _RECURSIVE = -100, 0x1000, 0x8000
_CLOEXEC = 0o2000000
_CLONE = 1 | _CLOEXEC | 0x100 | 0x800
"""OPEN_TREE_CLONE, closed on exec, no link followed at the end, no automount triggered."""
_FROM_EMPTY, _TO_EMPTY = 0x4, 0x40
_NO_SYMLINKS, _IN_ROOT, _NO_MAGICLINKS = 0x04, 0x10, 0x02
_DETACH, _NEW_CGROUP = 2, 0x02000000
_PDEATHSIG, _DUMPABLE, _SIGKILL = 1, 4, 9
_STATX_TYPE, _STATX_BYTES, _STATX_MODE = 1, 256, 28
_DESCRIPTOR = b"/proc/self/fd/"
_DIGITS = 24


class Build:
    """A table in the making, and what its later steps need to know of the earlier ones."""

    def __init__(self) -> None:
        self.table = Table()
        self.there: set[str] = set()
        """Directories that earlier steps have made."""
        self.open_trees: set[str] = set()
        """Cloned sources that this table leaves open."""
        self.how: Address | None = None
        self.how_real: Address | None = None

    def tree(self, name: str) -> Slot:
        return self.table.slot(f"tree {name}")

    def open_inside(self, root: Slot, path: str, store: Slot, allowed: tuple[int, ...] = ()) -> int:
        """An O_PATH descriptor below the root, whatever links stand there."""
        if self.how is None:
            flags = os.O_PATH | os.O_CLOEXEC
            self.how = self.table.block(pack("QQQ", flags, 0, _NO_SYMLINKS | _IN_ROOT | _NO_MAGICLINKS))
        return self.table.call("openat2", root, path, self.how, 24, store=store, allowed=allowed)

    def open_real(self, path: str, store: Slot) -> None:
        """An O_PATH descriptor of the host; a link on the way is an error; one at the end is opened as itself."""
        if self.how_real is None:
            flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
            self.how_real = self.table.block(pack("QQQ", flags, 0, _NO_SYMLINKS | _NO_MAGICLINKS))
        self.table.call("openat2", _AT, path, self.how_real, 24, store=store)

    def open_existing(self, target: str) -> Slot:
        self.open_inside(self.table.slot("root"), target.strip("/") or ".", place := self.table.slot("place"))
        return place

    def open_target(self, target: str, *, folder: bool) -> Slot:
        """A mount point inside the root, made with its parents where it is missing."""
        root, place = self.table.slot("root"), self.table.slot("place")
        relative = target.strip("/") or "."
        if target in self.there or relative == "." or target.startswith("/proc/"):
            self.open_inside(root, relative, place)
            return place
        found = self.open_inside(root, relative, place, allowed=(errno.ENOENT,))
        parent, _, name = relative.rpartition("/")
        self.open_target(f"/{parent}", folder=True)
        if folder:
            self.table.call("mkdirat", place, name, 0o755)
        else:
            self.table.call("mknodat", place, name, stat.S_IFREG | 0o644, 0)
        self.table.call("close", place)
        self.open_inside(root, relative, place)
        self.table.skip_from(found)
        return place

    def attach(self, tree: Slot, target: str, *, folder: bool, is_there: bool = False) -> None:
        place = self.open_existing(target) if is_there else self.open_target(target, folder=folder)
        self.table.call("move_mount", tree, "", place, "", _FROM_EMPTY | _TO_EMPTY)
        self.table.call("close", place)
        self.table.call("close", tree)

    def mount_inside(self, target: str, kind: str, flags: Iterable[str], options: str, source: str = "none",
                     allowed: tuple[int, ...] = ()) -> None:  # fmt: skip
        place = self.open_target(target, folder=True)
        path = self.table.block(_DESCRIPTOR + bytes(_DIGITS))
        self.table.call("decimal", Address(path + len(_DESCRIPTOR)), place)
        self.table.call("mount", source, path, kind, _flags(flags), options, allowed=allowed)
        self.table.call("close", place)

    def set_attributes(self, tree: Slot, attributes: int, flags: int = _EMPTY_PATH | _RECURSIVE) -> None:
        self.table.call("mount_setattr", tree, "", flags, pack("QQQQ", attributes, 0, 0, 0), 32)

    def bind(
        self, source: str, target: str, *, folder: bool, is_there: bool = False, read_only: bool = False
    ) -> None:
        tree = self.table.slot("tree")
        self.table.call("open_tree", _AT, source, _CLONE | _RECURSIVE, store=tree)
        if read_only:
            self.set_attributes(tree, mounts.READ_ONLY)
        self.attach(tree, target, folder=folder, is_there=is_there)


def _flags(names: Iterable[str]) -> int:
    number = 0
    for name in names:
        number |= mounts.FLAGS[name]
    return number


# ---- one function for each kind of step


def await_leader(build: Build) -> None:
    """The kind of the message and the number of its descriptors, as ``passing`` sends them; else the leader is gone."""
    told = build.table.block(bytes(8))
    got = build.table.slot("got")
    build.table.call("read", build.table.slot("door"), told, 2, store=got)
    build.table.call("expect", got, -1, 2, errno.ESRCH)
    build.table.call("get", told, 2, store=got)
    build.table.call("expect", got, 0xFF, ord("g"), errno.ESRCH)


def take_identity(build: Build, uid: int, gid: int) -> None:
    build.table.call("setresgid", gid, gid, gid)
    build.table.call("setresuid", uid, uid, uid)
    build.table.call("prctl", _PDEATHSIG, _SIGKILL, 0, 0, 0)
    build.table.call("prctl", _DUMPABLE, 0, 0, 0, 0)


def own_group_namespace(build: Build) -> None:
    build.table.call("unshare", _NEW_CGROUP)


def clone_sources(build: Build, sources: list[tuple[str, str, str, tuple[int, ...]]]) -> None:
    """Sources of an ordinary user, which need no mapped ids. If something is mounted below them, the leader has the
    steps executed one by one instead."""
    for name, path, mode, _ in sources:
        tree = build.tree(name)
        attributes, kinds = TAKEN[mode.removeprefix(mounts.REAL)]
        clone_source(build, path, tree, mode)
        refuse_other_kinds(build, tree, kinds)
        build.set_attributes(tree, attributes)
        build.open_trees.add(name)


_FOLDER, _FILE = (stat.S_IFDIR,), (stat.S_IFREG, stat.S_IFLNK)
TAKEN = {
    "ro": (mounts.READ_ONLY, _FOLDER),
    "file": (mounts.READ_ONLY, _FILE),
    "base": (mounts.READ_ONLY, _FOLDER),
    "rw": (mounts.WRITABLE, _FOLDER),
    "rw file": (mounts.WRITABLE, _FILE),
}


def clone_source(build: Build, path: str, tree: Slot, mode: str) -> None:
    below = _RECURSIVE if mode.removeprefix(mounts.REAL) == "rw" else 0
    if mode == "base" or mode.startswith(mounts.REAL):
        _clone_real(build, path, tree, below)
    else:
        build.table.call("open_tree", _AT, path, _CLONE | below, store=tree)


def _clone_real(build: Build, path: str, tree: Slot, below: int) -> None:
    """Clone by a path without links; a link on the way by now is an error."""
    place = build.table.slot("place")
    build.open_real(path, place)
    build.table.call("open_tree", place, "", 1 | os.O_CLOEXEC | _EMPTY_PATH | below, store=tree)
    build.table.call("close", place, store=place)


def refuse_other_kinds(build: Build, tree: Slot, kinds: tuple[int, ...]) -> None:
    """Refuse what was cloned if it is of another kind, whatever its path leads to by now."""
    found, mode = build.table.block(bytes(_STATX_BYTES)), build.table.slot("mode")
    build.table.call("statx", tree, "", _EMPTY_PATH, _STATX_TYPE, found)
    build.table.call("get", Address(found + _STATX_MODE), 2, store=mode)
    *others, last = kinds
    tried = [build.table.call("expect", mode, 0o170000, kind, errno.EINVAL, allowed=(errno.EINVAL,)) for kind in others]
    build.table.call("expect", mode, 0o170000, last, errno.EINVAL)
    for number in tried:
        build.table.skip_from(number)


def clone_layers(build: Build, layers: list[tuple[str, str]], by_root: bool) -> None:
    for name, path in layers:
        build.table.call("open_tree", _AT, path, _CLONE | _RECURSIVE, store=build.tree(name))
        build.set_attributes(build.tree(name), mounts.WRITABLE)
        build.open_trees.add(name)


def new_root(build: Build, size_bytes: int, skeleton: list[str]) -> None:
    build.table.call("umask", 0o022)
    build.table.call("mount", "none", "root", "tmpfs", _flags(("nosuid", "nodev")), f"size={size_bytes},mode=755")
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    build.table.call("openat", _AT, "root", flags, 0, store=build.table.slot("root"))
    for path in skeleton:
        build.table.call("mkdirat", _AT, f"root{path}", 0o777)
    build.there.update(skeleton)


def attach(build: Build, name: str) -> None:
    build.table.call("move_mount", build.tree(name), "", _AT, f"base/{name}", _FROM_EMPTY)
    build.table.call("close", build.tree(name))
    build.open_trees.discard(name)


def attach_inside(build: Build, name: str, target: str) -> None:
    build.attach(build.tree(name), target, folder=True)
    build.open_trees.discard(name)


def private_tmpfs(build: Build, options: str, folders: list[tuple[str, int]]) -> None:
    build.table.call("mount", "none", "memory", "tmpfs", _flags(("nosuid", "nodev")), options)
    for number, (target, mode) in enumerate(folders):
        build.table.call("mkdirat", _AT, f"memory/{number}", 0o777)
        build.table.call("fchmodat", _AT, f"memory/{number}", mode)
        build.bind(f"memory/{number}", target, folder=True)


def file_system(build: Build, target: str, kind: str, flags: list[str], options: str) -> None:
    build.mount_inside(target, kind, flags, options)


def renew_layer(build: Build, work: str) -> None:
    for path, flags in mounts.volatile_marks(work):
        build.table.call("unlinkat", _AT, path, flags, allowed=(ANY_ERROR,))


def overlay(build: Build, target: str, flags: list[str], options: str) -> None:
    build.mount_inside(target, "overlay", ["nosuid", "nodev", *flags], f"{options},userxattr", "overlay")


def show(build: Build, target: str, name: str) -> None:
    """A directory without mounts below it; if it has some, the steps are executed one by one."""
    overlay(build, target, ["ro"], f"lowerdir=cover/{name}:base/{name}")


def cover_mounts(build: Build, target: str, name: str) -> None:
    """If something is mounted in a workspace, the steps are executed one by one; else there is nothing to cover."""


def bind(build: Build, source: str, target: str, folder: bool, is_there: bool = False) -> None:
    build.bind(source, target, folder=folder, is_there=is_there)


def kernel_settings(build: Build, rows: list[tuple[str, str]]) -> None:
    file = build.table.slot("file")
    for name, value in rows:
        build.table.call("openat", _AT, f"root/proc/sys/{name}", os.O_WRONLY | os.O_CLOEXEC, 0, store=file)
        build.table.call("write", file, value, len(value))
        build.table.call("close", file)


def mask(build: Build, files: list[str], folders: list[str]) -> None:
    build.table.call("mkdirat", _AT, "memory/none", 0o777)
    build.table.call("mknodat", _AT, "memory/nothing", stat.S_IFREG | 0o444, 0)
    tree = build.table.slot("tree")
    for cover, targets in (("memory/none", folders), ("memory/nothing", files)):
        build.table.call("open_tree", _AT, cover, _CLONE | _RECURSIVE, store=tree)
        build.set_attributes(tree, mounts.READ_ONLY)
        build.table.call("move_mount", tree, "", _AT, cover, _FROM_EMPTY)
        build.table.call("close", tree)
        for target in targets:
            build.bind(cover, target, folder=targets is folders)


def read_only(build: Build, target: str) -> None:
    build.bind(f"root{target}", target, folder=True, read_only=True)


def show_limits(build: Build, groups: list[tuple[str, str]], files: list[str]) -> None:
    for kind, options in groups:  # no protection: without it a runtime that reads the mount table sees no limit
        build.mount_inside(limits_seen.CGROUP, kind, ["ro", "nosuid", "nodev", "noexec"], options, "cgroup",
                           allowed=(ANY_ERROR,))  # fmt: skip
    own = f"memory/{limits_seen.FOLDER}"
    build.table.call("mkdirat", _AT, own, 0o777)
    options = f"lowerdir=none:{limits_seen.FOLDER},userxattr"
    build.table.call("mount", "overlay", own, "overlay", _flags(("ro", "nosuid", "nodev")), options)
    for target in files:
        build.bind(f"{own}{target}", target, folder=target == limits_seen.CGROUP)


def whiteouts(build: Build, layer: str, base: str, names: list[str]) -> None:
    """Only without names: absent ones are found when the steps are executed one by one."""
    build.table.call("mkdirat", _AT, layer, 0o777, allowed=(errno.EEXIST,))


def link(build: Build, target: str, to: str) -> None:
    build.table.call("symlinkat", to, build.table.slot("root"), target.lstrip("/"))


def loopback(build: Build) -> None:
    wire = build.table.slot("file")
    build.table.call("socket", *namespaces.DATAGRAMS, store=wire)
    build.table.call("ioctl", wire, namespaces.SET_FLAGS, namespaces.LOOPBACK_UP)
    build.table.call("close", wire)


def host_name(build: Build, name: str) -> None:
    build.table.call("sethostname", name, len(name))


def seal_root(build: Build, read_only: bool = True) -> None:
    top = build.table.slot("top")
    build.table.call("chdir", "root")
    build.table.call("pivot_root", ".", ".")
    build.table.call("umount2", ".", _DETACH)
    build.table.call("chdir", "/")
    build.table.call("openat", _AT, "/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, 0, store=top)
    if read_only:
        build.set_attributes(top, mounts.FLAGS["ro"], _EMPTY_PATH)
    build.table.call("close", build.table.slot("root"))
    build.table.call("close", top)


CALLS: dict[str, Callable[..., None]] = {
    "await leader": await_leader,
    "take identity": take_identity,
    "own group namespace": own_group_namespace,
    "clone sources": clone_sources,
    "clone layers": clone_layers,
    "new root": new_root,
    "attach": attach,
    "attach inside": attach_inside,
    "private tmpfs": private_tmpfs,
    "file system": file_system,
    "renew layer": renew_layer,
    "overlay": overlay,
    "show": show,
    "cover mounts": cover_mounts,
    "bind": bind,
    "kernel settings": kernel_settings,
    "mask": mask,
    "read-only": read_only,
    "show limits": show_limits,
    "whiteouts": whiteouts,
    "link": link,
    "loopback": loopback,
    "host name": host_name,
    "seal root": seal_root,
}
