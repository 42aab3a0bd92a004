"""The steps that only Linux has, by name, for the plan of a sandbox with namespaces.

Everything is loaded before the first step: once the old root is gone there is nothing to load from.
They run in the order of the plan, in pid 1 of the sandbox, which the leader has forked into its namespaces, then
in the job itself: one of the steps forks, and the plan goes on in the child. Where root is the caller, a few run in
the leader before, while we still are root.
"""

from __future__ import annotations

import marshal
import os
import select
import signal
import stat
from collections.abc import Callable, Iterable
from struct import Struct

from ringfence.linux import (
    landlock,
    mounts,
    namespaces,
    privileges,
    processes,
    seccomp,
    tripwire_layout,
    tripwire_mount,
)

ENDED = Struct("!i")
LISTENER, TRIPWIRE = b"l", b"t"
"""What pid 1 and the job hand over to the leader."""
STAGE = "/tmp"
"""Where the new root is built; it covers this folder in the sandbox's own mount namespace only."""
WIRE = f"{STAGE}/.wire"


class Building:
    """What the steps of one sandbox hand on to each other: the cloned sources and the new root."""

    def __init__(self) -> None:
        self.trees: list[int] = []
        self.root = -1
        self.fuse = -1
        """The FUSE device, where hidden paths get tripwires."""
        self.status = -1
        """Where pid 1 tells how the job ended."""
        self.wake_on_child: Callable[[], int] = lambda: -1
        """Makes a descriptor that becomes readable when a child ends; given by the leader."""
        self.await_leader: Callable[[], None] = lambda: None
        """Returns when the leader has mapped our ids and placed us in the groups; given by the leader."""
        self.hand_over: Callable[[bytes, list[int]], None] = lambda kind, descriptors: None
        """Gives descriptors to the leader, and says what they are; given by the leader."""


BUILDING = Building()


# ---- in the leader, where root is the caller


def give_folders(owned: list[str]) -> None:
    """What the sandbox writes becomes the property of its id."""
    identity = namespaces.host_id(os.getpid())
    os.setgroups([])
    for path in owned:
        os.chown(path, identity, identity, follow_symlinks=False)


def give_pipes(descriptors: Iterable[int], identity: int) -> None:
    """The pipes that we made for output: the job may open /dev/stdout and /dev/stderr anew."""
    for descriptor in descriptors:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.fchown(descriptor, identity, identity)


def clone_sources(sources: list[tuple[str, str, bool]], owner: list[int]) -> None:
    """(path, mode, own) of everything from the host that the sandbox shows, while it can be reached.

    ``owner`` is (uid, gid) on disk of what is the caller's own, and is to appear as the job's; empty: as it is.
    """
    identity = namespaces.host_id(os.getpid())
    idmap = namespaces.mapping_namespace(owner[0], owner[1], identity) if owner else -1
    for path, mode, own in sources:
        tree = mounts.clone(path)
        attributes = {"ro": mounts.READ_ONLY, "rw": mounts.WRITABLE, "dev": mounts.DEVICE}[mode]
        mounts.set_attributes(tree, attributes, idmap=idmap if own else -1)
        BUILDING.trees.append(tree)
    if idmap >= 0:
        os.close(idmap)


# ---- in pid 1 of the sandbox


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


def new_root(size_bytes: int) -> None:
    os.umask(0o022)
    mounts.make_private()
    mounts.mount("tmpfs", STAGE, ["nosuid", "nodev"], f"size={size_bytes},mode=755")
    BUILDING.root = os.open(STAGE, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def attach(number: int, target: str, folder: bool) -> None:
    mounts.attach(BUILDING.trees[number], BUILDING.root, target, folder=folder)
    os.close(BUILDING.trees[number])  # some seventy of them would leave no room under a small RLIMIT_NOFILE


def file_system(target: str, kind: str, flags: list[str], options: str) -> None:
    mounts.mount_inside(BUILDING.root, target, kind, flags, options)


def overlay(target: str, within: str, flags: list[str], options: str) -> None:
    """Names in the options are relative to a part of the building: the mount table tells nothing of the host."""
    os.chdir(f"{STAGE}/{within}")
    place = mounts.open_target(BUILDING.root, target, folder=True)
    try:
        mounts.mount("overlay", f"/proc/self/fd/{place}", ["nosuid", "nodev", *flags], options, source="overlay")
    finally:
        os.close(place)
        os.chdir("/")


def bind(source: str, target: str) -> None:
    """Show a part of the building at another place in it."""
    tree = mounts.clone(f"{STAGE}/{source}")
    mounts.attach(tree, BUILDING.root, target, folder=True)
    os.close(tree)


def detach(target: str) -> None:
    """Let go of something that was only needed for building."""
    mounts.detach(f"{STAGE}/{target}")
    os.rmdir(f"{STAGE}/{target}")


def shield(target: str) -> None:
    """Make a part of an attached file system read-only."""
    tree = mounts.clone(f"{STAGE}{target}")
    mounts.set_attributes(tree, mounts.READ_ONLY)
    mounts.attach(tree, BUILDING.root, target, folder=True)
    os.close(tree)


def whiteouts(layer: str, names: list[str]) -> None:
    """Make names of the tree at ``.base`` absent, as overlayfs does it for removed ones."""
    os.makedirs(f"{STAGE}/{layer}", exist_ok=True)
    for name in names:
        if os.path.isdir(f"{STAGE}/.base/{os.path.dirname(name)}"):
            _white_out(f"{STAGE}/{layer}", name)


def _white_out(layer: str, relative: str) -> None:
    """Never through a link: an earlier visit may have left one in the layer, and it would lead to the host."""
    *parents, name = relative.split("/")
    within = os.open(layer, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parents:
            within = _step_into(within, part)
        os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=within)
    except (FileExistsError, NotADirectoryError):
        pass  # what an earlier visit put there hides what lies under it just as well
    finally:
        os.close(within)


def _step_into(folder: int, name: str) -> int:
    """Like chdir, for a descriptor; makes the folder where it is missing."""
    try:
        os.mkdir(name, 0o755, dir_fd=folder)
    except FileExistsError:
        pass
    deeper = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    os.close(folder)
    return deeper


def folder(target: str, mode: int) -> None:
    place = mounts.open_target(BUILDING.root, target, folder=True)
    os.close(place)
    os.chmod(target.lstrip("/"), mode, dir_fd=BUILDING.root)


def link(target: str, to: str) -> None:
    os.symlink(to, target.lstrip("/"), dir_fd=BUILDING.root)


def files(contents: list[tuple[str, bytes]]) -> None:
    """Small files in the new root itself, in folders that are made where they are missing."""
    for target, content in contents:
        parent, _, name = target.rpartition("/")
        place = mounts.open_target(BUILDING.root, parent, folder=True)
        try:
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(name, flags, 0o644, dir_fd=place)
            os.write(file, content)
            os.close(file)
        finally:
            os.close(place)


def tripwires(hidden: list[str], uid: int, gid: int) -> None:
    """Hidden names vanish from the folders that they lie in, and the leader hears of whoever asks for them."""
    paths = [os.fsencode(path) for path in hidden if _can_be_veiled(path)]
    veils = tripwire_layout.read_veils(paths, source=lambda place: STAGE.encode() + place)
    layout = tripwire_layout.lay_out(veils=veils)
    os.mkdir(WIRE)
    options = tripwire_mount.mount_options(BUILDING.fuse, uid=uid, gid=gid)
    mounts.mount_as(b"none", os.fsencode(WIRE), b"fuse", tripwire_mount.MOUNT_FLAGS, options)
    _hand_over_tripwire(tripwire_layout.to_data(layout))
    tripwire_mount.bind_all(
        layout.bindings, stage=os.fsencode(WIRE), mount=mounts.mount_as, unmount=mounts.unmount, open_target=_place
    )
    os.rmdir(os.path.basename(WIRE), dir_fd=BUILDING.root)  # by now the root itself may be covered


def _can_be_veiled(path: str) -> bool:
    """Makes the folder that the hidden name lies in; where that can't be, the name must not be there either."""
    try:
        os.close(mounts.open_target(BUILDING.root, os.path.dirname(path), folder=True))
    except OSError:
        try:
            os.close(mounts.open_inside(BUILDING.root, path.lstrip("/")))
        except (FileNotFoundError, NotADirectoryError):
            return False
        raise
    return True


def _hand_over_tripwire(nodes: dict[int, tuple[object, ...]]) -> None:
    """The device, the /proc in which its requests' process ids mean something, and what it has to answer."""
    proc = os.open(f"{STAGE}/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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
        return os.open(STAGE, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    root = _place(b"/")
    try:
        return mounts.open_inside(root, os.fsdecode(path).lstrip("/"))
    finally:
        os.close(root)


def seal_root() -> None:
    """The new root becomes the root, read-only itself; the old one is gone."""
    mounts.pivot(STAGE)
    tree = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    # A veil over the root refuses changes by itself, and records what is asked for only if it is asked.
    if os.fstat(tree).st_dev == os.fstat(BUILDING.root).st_dev:
        mounts.make_read_only(tree)
    os.close(BUILDING.root)
    os.close(tree)


def run_as_init() -> None:
    """pid 1 stays here: it forks the job, in which the plan goes on, collects the dead, and tells the end."""
    signal.set_wakeup_fd(-1)
    job = os.fork()
    if job == 0:
        return
    os.closerange(0, BUILDING.status)
    try:
        _collect(job)
    finally:
        os._exit(0)


def _collect(job: int) -> None:
    wakeup = BUILDING.wake_on_child()
    poller = select.poll()
    poller.register(wakeup, select.POLLIN)
    # An error on it says that the leader is gone; the sandbox must not outlive it.
    poller.register(BUILDING.status, 0)
    while True:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == job:
                os.write(BUILDING.status, ENDED.pack(status))
                return
            if pid == 0:
                break
        for descriptor, _ in poller.poll():
            if descriptor == BUILDING.status:
                return
            os.read(wakeup, 4096)


def drop_capabilities() -> None:
    privileges.new_session_keyring()
    privileges.drop_all()
    processes.hide_memory()
    processes.forget_command_line("init")


def second_wall(writable: list[str]) -> None:
    """Landlock behind the mounts: everything that is there may be read, only these places written."""
    rules = [("/", landlock.READ), ("/dev", landlock.DEVICES), ("/proc", (*landlock.READ, "write_file"))]
    rules += [(path, (*landlock.WRITE, "ioctl_dev", "resolve_unix")) for path in writable]
    files, scopes = tuple(landlock.FILE_RIGHTS), tuple(landlock.SCOPES)
    landlock.restrict(landlock.Ruleset(files=files, beneath=tuple(rules), scopes=scopes), allow_partial=True)


def install_filter(program: bytes, told: bool) -> None:
    """The last step before the exec. ``told``: the leader hears of what is refused."""
    listener = seccomp.install(program, notify=told)
    if listener is not None:
        BUILDING.hand_over(LISTENER, [listener])
        os.close(listener)


STEPS: dict[str, Callable[..., None]] = {
    "give folders": give_folders,
    "clone sources": clone_sources,
    "await leader": await_leader,
    "open fuse": open_fuse,
    "take identity": take_identity,
    "own group namespace": own_group_namespace,
    "new root": new_root,
    "attach": attach,
    "file system": file_system,
    "overlay": overlay,
    "bind": bind,
    "detach": detach,
    "shield": shield,
    "whiteouts": whiteouts,
    "make folder": folder,
    "link": link,
    "files": files,
    "tripwires": tripwires,
    "seal root": seal_root,
    "loopback": namespaces.loopback_up,
    "host name": namespaces.name_host,
    "drop capabilities": drop_capabilities,
    "run as init": run_as_init,
    "landlock": second_wall,
    "seccomp": install_filter,
}
