"""The steps that only Linux has, by name, for the plan of a sandbox with namespaces.

Everything is loaded before the first step: once the old root is gone there is nothing to load from.
They run in the order of the plan: those of ``zygote_steps`` before there is a sandbox, those here in its pid 1, which
the leader has forked into its namespaces, and then, after one of ``init`` has forked, in the job itself.
"""

from __future__ import annotations

import errno
import marshal
import os
import stat
from _collections_abc import Callable

from ringfence.errors import SetupError
from ringfence.kernel import landlock, listening
from ringfence.kernel.mount import binding, mounts, namespaces, privileges
from ringfence.kernel.proc import first_files, processes
from ringfence.kernel.seccomp import compile as seccomp
from ringfence.kernel.tripwire import layout as tripwire_layout
from ringfence.kernel.tripwire import mount as tripwire_mount
from ringfence.sandbox import limits_seen
from ringfence.steps import image_steps, table_step, zygote_steps
from ringfence.steps import pid1 as init
from ringfence.steps import root_layout as layout
from ringfence.steps import wall_steps as confinement
from ringfence.steps.state import COUNTS, LAST_SOCKET, LISTENER, SETUP, SOCKETS, TRIPWIRE, UNHEARD
from ringfence.transport import passing

WIRE = "memory/wire"


def await_leader() -> None:
    """Return when the leader has mapped our ids and placed us in the groups."""
    if passing.receive(SETUP.door)[0] != passing.GO:
        raise ProcessLookupError("the leader is gone")


def open_fuse() -> None:
    """Before the change of id: the device must be opened in this user namespace, and may be for root only."""
    SETUP.fuse = tripwire_mount.open_device()


def take_identity(uid: int, gid: int) -> None:
    namespaces.take_identity(uid, gid)
    processes.die_with_parent()  # a change of id clears it
    processes.hide_memory()


def own_group_namespace() -> None:
    """Only now: if made with the others, its root would be the leader's group and not the sandbox's own."""
    namespaces.unshare(["cgroup"])


def new_root(size_bytes: int, skeleton: list[str]) -> None:
    """``skeleton``: its directories, outer ones first."""
    os.umask(0o022)
    mounts.mount("tmpfs", "root", ["nosuid", "nodev"], f"size={size_bytes},mode=755")
    SETUP.root = os.open("root", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for path in skeleton:
        os.mkdir(f"root{path}")


def attach(name: str) -> None:
    """Attach a cloned source and its parts at its place in the building. A directory shown in parts has only parts."""
    parts = [row[0] for row in SETUP.parts.get(name, ()) if row[0] in SETUP.trees]
    for part in (parts if name in SETUP.taken_apart else [name, *parts]):
        tree = SETUP.trees.pop(part)
        mounts.attach_at(tree, f"base/{part}")
        os.close(tree)  # some seventy open descriptors would leave no room under a small RLIMIT_NOFILE


def attach_inside(name: str, target: str) -> None:
    """Attach a cloned source directly in the root."""
    tree = SETUP.trees.pop(name)
    mounts.attach(tree, SETUP.root, target, folder=True)
    os.close(tree)


def private_tmpfs(options: str, folders: list[tuple[str, int]]) -> None:
    """The one file system for everything that the job may write and that goes with the sandbox."""
    mounts.mount("tmpfs", "memory", ["nosuid", "nodev"], options)
    for number, (target, mode) in enumerate(folders):
        os.mkdir(f"memory/{number}")
        os.chmod(f"memory/{number}", mode)
        bind(f"memory/{number}", target, folder=True)


def file_system(target: str, kind: str, flags: list[str], options: str) -> None:
    mounts.mount_inside(SETUP.root, target, kind, flags, options)


def renew_layer(work: str) -> None:
    """Remove the mark of an earlier volatile mount; with it the kernel refuses to mount the layer again."""
    for path, flags in mounts.volatile_marks(work):
        try:
            os.rmdir(path) if flags else os.unlink(path)
        except OSError:
            return  # a layer that was never mounted has no mark; the mount reports anything else


def overlay(target: str, flags: list[str], options: str) -> None:
    place = mounts.open_target(SETUP.root, target, folder=True)
    try:
        where = f"/proc/self/fd/{place}"
        mounts.mount("overlay", where, ["nosuid", "nodev", *flags], f"{options},userxattr", source="overlay")
    finally:
        os.close(place)


def show(target: str, name: str) -> None:
    """Show a host directory through an overlay, and each mount below it through an overlay of its own."""
    try:
        overlay(target, ["ro"], layout.lower(name))
    except OSError as error:
        words = "no overlay can be laid over its file system, and nothing is shown without; copy what is needed"
        raise OSError(error.errno, words) if error.errno == errno.EINVAL else error from error
    for part, below, is_folder in SETUP.parts.get(name, ()):
        if is_folder:
            overlay(f"{target}/{below}", ["ro"], layout.lower(part))
        else:
            bind(f"base/{part}", f"{target}/{below}", folder=False)


def cover_mounts(target: str, name: str) -> None:
    """Where something is mounted in a workspace on the host, show nothing: neither the mount nor what lies under it."""
    for below in SETUP.covered[name]:
        try:
            place = mounts.open_inside(SETUP.root, f"{target}{below}".lstrip("/"))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            continue  # the layer has something else in its place
        os.close(place)
        bind(_cover_for(target + below), target + below)


def _cover_for(path: str) -> str:
    return "memory/none" if mounts.is_folder(f"root{path}") else "memory/nothing"


def bind(
    source: str, target: str, folder: bool | None = None, is_there: bool = False, *, read_only: bool = False
) -> None:
    """Show a part of the building in the root. ``folder``: whether it is a directory; absent: look."""
    tree = mounts.clone(source)
    if read_only:
        mounts.set_attributes(tree, mounts.READ_ONLY)
    is_folder = mounts.is_folder(source) if folder is None else folder
    mounts.attach(tree, SETUP.root, target, folder=is_folder, is_there=is_there)
    os.close(tree)


def kernel_settings(rows: list[tuple[str, str]]) -> None:
    """(name below /proc/sys, value) of these namespaces; a process without capabilities can't change them back."""
    for name, value in rows:
        namespaces.write(f"root/proc/sys/{name}", value)


def mask(files: list[str], folders: list[str]) -> None:
    """Cover these files with empty ones."""
    os.mkdir("memory/none")
    os.mknod("memory/nothing", stat.S_IFREG | 0o444)
    for cover, targets in (("memory/none", folders), ("memory/nothing", files)):
        tree = mounts.clone(cover)
        mounts.set_attributes(tree, mounts.READ_ONLY)
        mounts.attach_at(tree, cover)  # what is cloned from here on is read-only too
        os.close(tree)
        for target in targets:
            bind(cover, target, folder=targets is folders)


def show_limits(groups: list[tuple[str, str]], files: list[str]) -> None:
    """What the job reads of its limits. A JVM believes files in /sys/fs/cgroup only where the mount table has file
    systems of control groups there. These are mounted below the files, out of reach."""
    for kind, options in groups:
        try:
            flags = ["ro", "nosuid", "nodev", "noexec"]
            mounts.mount_inside(SETUP.root, limits_seen.CGROUP, kind, flags, options, "cgroup")
        except OSError:
            pass  # this is no protection: without it a runtime that reads the mount table just sees no limit
    # Through an overlay: the files are the zygote's, and other sandboxes would notice a lock or a watch on them.
    own = f"memory/{limits_seen.FOLDER}"
    os.mkdir(own)
    mounts.mount("overlay", own, ["ro", "nosuid", "nodev"], f"lowerdir=none:{limits_seen.FOLDER},userxattr", "overlay")
    for target in files:
        bind(f"{own}{target}", target)


def read_only(target: str) -> None:
    """Make a part of an attached file system read-only."""
    bind(f"root{target}", target, read_only=True)


def whiteouts(layer: str, base: str, names: list[str]) -> None:
    """Make names of the tree at ``base`` absent."""
    os.makedirs(layer, exist_ok=True)
    layout.white_out(layer, base, names)


def link(target: str, to: str) -> None:
    os.symlink(to, target.lstrip("/"), dir_fd=SETUP.root)


def tripwires(hidden: list[str], uid: int, gid: int) -> None:
    """Make hidden names vanish from their directories, and have the leader told of every process that asks for them."""
    paths = [os.fsencode(path) for path in _can_be_veiled(hidden)]
    veils = tripwire_layout.read_veils(paths, source=lambda place: b"root" + place)
    layout = tripwire_layout.lay_out(veils=veils, spots=tripwire_layout.read_spots(first_files.FILES, source="root"))
    os.mkdir(WIRE)
    options = tripwire_mount.mount_options(SETUP.fuse, uid=uid, gid=gid)
    mounts.mount_as(b"none", os.fsencode(WIRE), b"fuse", tripwire_mount.MOUNT_FLAGS, options)
    _hand_over_tripwire(tripwire_layout.to_data(layout))
    tripwire_mount.bind_all(
        layout.bindings, wire=os.fsencode(WIRE), mount=mounts.mount_as, unmount=mounts.unmount, open_target=_place
    )


def _can_be_veiled(paths: list[str]) -> list[str]:
    """Makes the directories of the hidden names. If one can't be made because it would lie in something read-only, the
    first missing name on the way is hidden instead: a request for anything below it asks for that name first."""
    problems = {folder: _make_folder(folder) for folder in {os.path.dirname(path) for path in paths}}
    found = [_first_missing(path, problems[os.path.dirname(path)]) for path in paths]
    return list(dict.fromkeys(filter(None, found)))


def _first_missing(path: str, problem: OSError | None) -> str:
    """The name itself, if its directory exists; empty: a file is in the way, and nothing can ever be below it."""
    if problem is None:
        return path
    names = path.strip("/").split("/")
    ways = ["/" + "/".join(names[:end]) for end in range(1, len(names) + 1)]
    missing = next((way for way in ways if not _is_there(way)), "")
    if not missing:
        raise problem
    return missing if mounts.is_folder("root" + os.path.dirname(missing)) else ""


def _make_folder(folder: str) -> OSError | None:
    try:
        os.close(mounts.open_target(SETUP.root, folder, folder=True))
    except OSError as error:
        return error
    return None


def _is_there(path: str) -> bool:
    try:
        os.close(mounts.open_inside(SETUP.root, path.lstrip("/")))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _hand_over_tripwire(nodes: dict[int, tuple[object, ...]]) -> None:
    """The device, the /proc in which the pids of its requests are valid, and what it has to answer."""
    proc = os.open("root/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    listed = os.memfd_create("layout")
    with open(listed, "r+b", closefd=False) as file:
        marshal.dump(nodes, file)
    os.lseek(listed, 0, os.SEEK_SET)
    SETUP.hand_over(TRIPWIRE, [SETUP.fuse, proc, listed])
    for descriptor in (SETUP.fuse, proc, listed):
        os.close(descriptor)


def _place(path: bytes) -> int:
    """Open a place of the sandbox, with what is mounted on it by now."""
    if path == b"/":
        return os.open("root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    root = _place(b"/")
    try:
        return mounts.open_inside(root, os.fsdecode(path).lstrip("/"))
    finally:
        os.close(root)


def listen(rows: list[tuple[str, int, str]]) -> None:
    """Every address leads to sockets of this namespace, and those to the gateway: no process in here keeps one."""
    listening.lead_everywhere_here(ipv6=any(":" in address for address, _, kind in rows if kind != "spare"))
    for group in listening.sockets(rows):
        SETUP.hand_over(SOCKETS, group)
        for descriptor in group:
            os.close(descriptor)
    SETUP.hand_over(LAST_SOCKET, [])


def trust(path: str) -> None:
    """The authorities of this one sandbox, which no other may have; so they are not in the zygote."""
    place = mounts.open_target(SETUP.root, os.path.dirname(path), folder=True)
    try:
        file = os.open(os.path.basename(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444, dir_fd=place)
    finally:
        os.close(place)
    with open(file, "wb") as writer:
        writer.write(SETUP.certificates)
    SETUP.certificates = b""


def seal_root(read_only: bool = True) -> None:
    """The new root becomes the root, read-only itself unless it has a layer; the old one is gone."""
    mounts.pivot("root")
    tree = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    # A veil over the root refuses changes by itself, and it can only record requests that reach it.
    if read_only and os.fstat(tree).st_dev == os.fstat(SETUP.root).st_dev:
        mounts.make_read_only(tree)
    os.close(SETUP.root)
    os.close(tree)


def drop_capabilities() -> None:
    privileges.new_session_keyring()
    privileges.drop_all()
    processes.hide_memory()
    processes.forget_command_line(processes.OWN_NAME)


def count_operations(stays_shown: bool) -> None:
    """Hand our io file to the reaper. It counts this process and all children that it waits for, to the end; but an
    ordinary user can't open the io file of a process that is hidden, or has ended. ``stays_shown``: see «show
    memory»."""
    processes.show_memory()
    file = os.open("/proc/self/io", os.O_RDONLY | os.O_CLOEXEC)
    if not stays_shown:
        processes.hide_memory()
    passing.send(SETUP.counts, COUNTS, [file])
    os.close(file)
    os.close(SETUP.counts)


def install_filter(program: bytes, told: bool, unheard: bytes = b"") -> None:
    """What names a file after this waits for the leader. ``told``: the leader hears of what is refused.
    ``unheard``: the same filter for use below an outer sandbox that listens already: there can be only one listener."""
    # A rehearsal: once the filter is on, any file lookup waits for a leader that has no listener yet.
    SETUP.hand_over(LISTENER, [])
    if told:
        _raise_soft_limit()
    try:
        listener = seccomp.install(program, notify=told)
    except SetupError as error:
        if not unheard or getattr(error.__cause__, "errno", 0) != errno.EBUSY:
            raise
        SETUP.hand_over(UNHEARD, [])
        listener = seccomp.install(unheard)
    if listener is not None:
        SETUP.hand_over(LISTENER, [listener])
        os.close(listener)


def _raise_soft_limit() -> None:
    """Raise it to the hard limit: it also bounds descriptors in flight, and the job's own limit is set later."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


STEPS: dict[str, Callable[..., None]] = {
    **zygote_steps.STEPS,
    **init.STEPS,
    **image_steps.STEPS,
    "calls": table_step.execute_table,
    "await leader": await_leader,
    "open fuse": open_fuse,
    "take identity": take_identity,
    "own group namespace": own_group_namespace,
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
    "tripwires": tripwires,
    "seal root": seal_root,
    "loopback": namespaces.loopback_up,
    "listen": listen,
    "trust": trust,
    "host name": namespaces.name_host,
    "drop capabilities": drop_capabilities,
    "landlock": landlock.put_up,
    "show memory": processes.show_memory,
    "count operations": count_operations,
    "seccomp": install_filter,
    "bind in place": binding.bind_in_place,
    **confinement.STEPS,
}
