"""The steps that only Linux has, by name, for the plan of a sandbox with namespaces.

Everything is loaded before the first step: once the old root is gone there is nothing to load from.
They run in the order of the plan: those of ``stage`` before there is a sandbox, those here in its pid 1, which the
leader has forked into its namespaces, and then, after one of ``init`` has forked, in the job itself.
"""

from __future__ import annotations

import errno
import marshal
import os
import stat
from collections.abc import Callable

from ringfence.linux import (
    confinement,
    init,
    landlock,
    layout,
    mounts,
    namespaces,
    privileges,
    processes,
    seccomp,
    stage,
    tripwire_layout,
    tripwire_mount,
)
from ringfence.linux.building import BUILDING, LISTENER, TRIPWIRE

WIRE = "memory/wire"


def await_leader() -> None:
    BUILDING.await_leader()


def open_fuse() -> None:
    """Before the id is taken: the device must be opened in this user namespace, and may be root's alone."""
    BUILDING.fuse = tripwire_mount.open_device()


def take_identity(uid: int, gid: int) -> None:
    namespaces.take_identity(uid, gid)
    processes.die_with_parent()  # a change of id takes it off
    processes.hide_memory()


def own_group_namespace() -> None:
    """Only now: made with the others, its root would be the leader's group and not the sandbox's own."""
    namespaces.unshare(["cgroup"])


def new_root(size_bytes: int, skeleton: list[str]) -> None:
    """``skeleton``: its folders, outer ones first."""
    os.umask(0o022)
    mounts.mount("tmpfs", "root", ["nosuid", "nodev"], f"size={size_bytes},mode=755")
    BUILDING.root = os.open("root", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for path in skeleton:
        os.mkdir(f"root{path}")


def attach(name: str) -> None:
    """A cloned source, and those of its parts, at its place in the building. One that is taken apart has parts only."""
    parts = [row[0] for row in BUILDING.parts.get(name, ()) if row[0] in BUILDING.trees]
    for part in (parts if name in BUILDING.taken_apart else [name, *parts]):
        tree = BUILDING.trees.pop(part)
        mounts.attach_at(tree, f"base/{part}")
        os.close(tree)  # some seventy of them would leave no room under a small RLIMIT_NOFILE


def attach_inside(name: str, target: str) -> None:
    """A cloned source straight in the root."""
    tree = BUILDING.trees.pop(name)
    mounts.attach(tree, BUILDING.root, target, folder=True)
    os.close(tree)


def memory(options: str, folders: list[tuple[str, int]]) -> None:
    """The one file system of everything that the job may write and that is gone with the sandbox."""
    mounts.mount("tmpfs", "memory", ["nosuid", "nodev"], options)
    for number, (target, mode) in enumerate(folders):
        os.mkdir(f"memory/{number}")
        os.chmod(f"memory/{number}", mode)
        bind(f"memory/{number}", target, folder=True)


def file_system(target: str, kind: str, flags: list[str], options: str) -> None:
    mounts.mount_inside(BUILDING.root, target, kind, flags, options)


def overlay(target: str, flags: list[str], options: str) -> None:
    place = mounts.open_target(BUILDING.root, target, folder=True)
    try:
        where = f"/proc/self/fd/{place}"
        mounts.mount("overlay", where, ["nosuid", "nodev", *flags], f"{options},userxattr", source="overlay")
    finally:
        os.close(place)


def show(target: str, name: str) -> None:
    """A directory of the host through an overlay, and what is mounted below it through one of its own."""
    try:
        overlay(target, ["ro"], layout.lower(name))
    except OSError as error:
        words = "no overlay can be laid over its file system, and nothing is shown without; copy what is needed"
        raise OSError(error.errno, words) if error.errno == errno.EINVAL else error from error
    for part, below, is_folder in BUILDING.parts.get(name, ()):
        if is_folder:
            overlay(f"{target}/{below}", ["ro"], layout.lower(part))
        else:
            bind(f"base/{part}", f"{target}/{below}", folder=False)


def cover_mounts(target: str, name: str) -> None:
    """Where something is mounted in a workspace on the host, nothing is shown: neither that nor what lies under it."""
    for below in BUILDING.covered[name]:
        try:
            place = mounts.open_inside(BUILDING.root, f"{target}{below}".lstrip("/"))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            continue  # the layer has something else in its place
        os.close(place)
        bind(_cover_for(target + below), target + below)


def _cover_for(path: str) -> str:
    return "memory/none" if mounts.is_folder(f"root{path}") else "memory/nothing"


def bind(source: str, target: str, *, read_only: bool = False, folder: bool | None = None) -> None:
    """Show a part of the building in the root. ``folder``: whether it is one; absent: look."""
    tree = mounts.clone(source)
    if read_only:
        mounts.set_attributes(tree, mounts.READ_ONLY)
    mounts.attach(tree, BUILDING.root, target, folder=mounts.is_folder(source) if folder is None else folder)
    os.close(tree)


def kernel_settings(rows: list[tuple[str, str]]) -> None:
    """(name below /proc/sys, value) of these namespaces; whoever has no capability can't change it again."""
    for name, value in rows:
        namespaces.write(f"root/proc/sys/{name}", value)


def blank(files: list[str], folders: list[str]) -> None:
    """Cover them with empty ones."""
    os.mkdir("memory/none")
    os.mknod("memory/nothing", stat.S_IFREG | 0o444)
    for cover, targets in (("memory/none", folders), ("memory/nothing", files)):
        tree = mounts.clone(cover)
        mounts.set_attributes(tree, mounts.READ_ONLY)
        mounts.attach_at(tree, cover)  # what is cloned from here on is read-only too
        os.close(tree)
        for target in targets:
            bind(cover, target, folder=targets is folders)


def shield(target: str) -> None:
    """Make a part of an attached file system read-only."""
    bind(f"root{target}", target, read_only=True)


def whiteouts(layer: str, base: str, names: list[str]) -> None:
    """Make names of the tree at ``base`` absent."""
    os.makedirs(layer, exist_ok=True)
    layout.white_out(layer, base, names)


def folder(target: str, mode: int) -> None:
    place = mounts.open_target(BUILDING.root, target, folder=True)
    os.close(place)
    os.chmod(target.lstrip("/"), mode, dir_fd=BUILDING.root)


def link(target: str, to: str) -> None:
    os.symlink(to, target.lstrip("/"), dir_fd=BUILDING.root)


def tripwires(hidden: list[str], uid: int, gid: int) -> None:
    """Hidden names vanish from the folders that they lie in, and the leader hears of whoever asks for them."""
    paths = [os.fsencode(path) for path in _can_be_veiled(hidden)]
    veils = tripwire_layout.read_veils(paths, source=lambda place: b"root" + place)
    layout = tripwire_layout.lay_out(veils=veils)
    os.mkdir(WIRE)
    options = tripwire_mount.mount_options(BUILDING.fuse, uid=uid, gid=gid)
    mounts.mount_as(b"none", os.fsencode(WIRE), b"fuse", tripwire_mount.MOUNT_FLAGS, options)
    _hand_over_tripwire(tripwire_layout.to_data(layout))
    tripwire_mount.bind_all(
        layout.bindings, stage=os.fsencode(WIRE), mount=mounts.mount_as, unmount=mounts.unmount, open_target=_place
    )


def _can_be_veiled(paths: list[str]) -> list[str]:
    """Makes the folders that the hidden names lie in; where one can't be, its names must not be there either."""
    can: dict[str, OSError | None] = {}
    for folder in {os.path.dirname(path) for path in paths}:
        can[folder] = _make_folder(folder)
    missing = [path for path in paths if can[os.path.dirname(path)]]
    for path in missing:
        if _is_there(path):
            raise can[os.path.dirname(path)] or OSError(path)
    return [path for path in paths if not can[os.path.dirname(path)]]


def _make_folder(folder: str) -> OSError | None:
    try:
        os.close(mounts.open_target(BUILDING.root, folder, folder=True))
    except OSError as error:
        return error
    return None


def _is_there(path: str) -> bool:
    try:
        os.close(mounts.open_inside(BUILDING.root, path.lstrip("/")))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _hand_over_tripwire(nodes: dict[int, tuple[object, ...]]) -> None:
    """The device, the /proc in which its requests' process ids mean something, and what it has to answer."""
    proc = os.open("root/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    listed = os.memfd_create("layout")
    with open(listed, "r+b", closefd=False) as file:
        marshal.dump(nodes, file)
    os.lseek(listed, 0, os.SEEK_SET)
    BUILDING.hand_over(TRIPWIRE, [BUILDING.fuse, proc, listed])
    for descriptor in (BUILDING.fuse, proc, listed):
        os.close(descriptor)


def _place(path: bytes) -> int:
    """A place of the sandbox, with what is mounted on it by now."""
    if path == b"/":
        return os.open("root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    root = _place(b"/")
    try:
        return mounts.open_inside(root, os.fsdecode(path).lstrip("/"))
    finally:
        os.close(root)


def seal_root() -> None:
    """The new root becomes the root, read-only itself; the old one is gone."""
    mounts.pivot("root")
    tree = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    # A veil over the root refuses changes by itself, and records what is asked for only if it is asked.
    if os.fstat(tree).st_dev == os.fstat(BUILDING.root).st_dev:
        mounts.make_read_only(tree)
    os.close(BUILDING.root)
    os.close(tree)


def drop_capabilities() -> None:
    privileges.new_session_keyring()
    privileges.drop_all()
    processes.hide_memory()
    processes.forget_command_line(processes.OWN_NAME)


def install_filter(program: bytes, told: bool) -> None:
    """Nothing that names a file may come between this and the exec. ``told``: the leader hears of what is refused."""
    # Once for nothing: from the filter on, whatever looks a file up waits for a leader that has no listener yet.
    BUILDING.hand_over(LISTENER, [])
    if told:
        _raise_soft_limit()
    listener = seccomp.install(program, notify=told)
    if listener is not None:
        BUILDING.hand_over(LISTENER, [listener])
        os.close(listener)


def _raise_soft_limit() -> None:
    """To the hard one: it bounds what is handed over, too, and the job's own limit comes after this step."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


STEPS: dict[str, Callable[..., None]] = {
    **stage.STEPS,
    **init.STEPS,
    "await leader": await_leader,
    "open fuse": open_fuse,
    "take identity": take_identity,
    "own group namespace": own_group_namespace,
    "new root": new_root,
    "attach": attach,
    "attach inside": attach_inside,
    "memory": memory,
    "file system": file_system,
    "overlay": overlay,
    "show": show,
    "cover mounts": cover_mounts,
    "bind": bind,
    "kernel settings": kernel_settings,
    "blank": blank,
    "shield": shield,
    "whiteouts": whiteouts,
    "make folder": folder,
    "link": link,
    "tripwires": tripwires,
    "seal root": seal_root,
    "loopback": namespaces.loopback_up,
    "host name": namespaces.name_host,
    "drop capabilities": drop_capabilities,
    "landlock": landlock.put_up,
    "show memory": processes.show_memory,
    "seccomp": install_filter,
    **confinement.STEPS,
}
