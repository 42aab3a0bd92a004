"""The steps that only Linux has, by name, for the plan of a sandbox with namespaces.

Everything is loaded before the first step: once the old root is gone there is nothing to load from.
They run in the order of the plan, first in the process that enters the namespaces, then in its child,
pid 1 of the sandbox, then in the job itself: two of the steps fork, and the plan goes on in the child.
"""

from __future__ import annotations

import os
import select
import signal
import stat
from collections.abc import Callable
from struct import Struct

from ringfence.linux import cgroup_tree, landlock, mounts, namespaces, privileges, processes, seccomp

ENDED = Struct("!i")
STAGE = "/tmp"
"""Where the new root is built; it covers this folder in the sandbox's own mount namespace only."""


class Building:
    """What the steps of one sandbox hand on to each other: the cloned sources and the new root."""

    def __init__(self) -> None:
        self.trees: list[int] = []
        self.root = -1
        self.born_in = ""
        """The control group that this process was forked into; it need not enter it."""
        self.status = -1
        """Where pid 1 tells how the job ended."""
        self.wake_on_child: Callable[[], int] = lambda: -1
        """Makes a descriptor that becomes readable when a child ends; given by the leader."""
        self.hand_over: Callable[[int], None] = lambda _: None
        """Gives a listener to the leader; given by the leader."""


BUILDING = Building()


def join_cgroups(procs_paths: list[str]) -> None:
    born_in = f"{BUILDING.born_in}/"
    cgroup_tree.enter(path for path in procs_paths if not path.startswith(born_in))


def clone_sources(sources: list[tuple[str, str, bool]], owner: list[int]) -> None:
    """(path, mode, own) of everything from the host that the sandbox shows, while it can be reached.

    ``owner`` is (uid, gid) on disk of what is the caller's own, and is to appear as the job's; empty: as it is.
    """
    idmap = namespaces.mapping_namespace(owner[0], owner[1], namespaces.host_id()) if owner else -1
    for path, mode, own in sources:
        tree = mounts.clone(path)
        attributes = {"ro": mounts.READ_ONLY, "rw": mounts.WRITABLE, "dev": mounts.DEVICE}[mode]
        mounts.set_attributes(tree, attributes, idmap=idmap if own else -1)
        BUILDING.trees.append(tree)
    if idmap >= 0:
        os.close(idmap)


def take_identity(owned: list[str]) -> None:
    """Give root up for an id of the sandbox's own, which is given the folders that the sandbox writes."""
    identity = namespaces.host_id()
    for path in owned:
        os.chown(path, identity, identity, follow_symlinks=False)
    for descriptor in (1, 2):  # the pipes that we made: the job may open /dev/stdout and /dev/stderr anew
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.fchown(descriptor, identity, identity)
    namespaces.take_identity(identity)


def enter_namespaces(names: list[str], inside_uid: int, inside_gid: int) -> None:
    namespaces.remember_ids()
    namespaces.unshare(names)
    namespaces.map_ids(inside_uid, inside_gid)


def become_pid_1() -> None:
    """Only a child is in the new pid namespace; the plan goes on there. The leader adopts it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.write(BUILDING.status, ENDED.pack(child))
        os._exit(0)
    # The leader must hear this pid before how the job ended, however late the parent is on a busy machine.
    os.close(writer)
    os.read(reader, 1)
    os.close(reader)


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


def seal_root() -> None:
    """The new root becomes the root, read-only itself; the old one is gone."""
    mounts.pivot(STAGE)
    os.close(BUILDING.root)
    tree = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    mounts.make_read_only(tree)
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
        BUILDING.hand_over(listener)
        os.close(listener)


STEPS: dict[str, Callable[..., None]] = {
    "join cgroups": join_cgroups,
    "clone sources": clone_sources,
    "take identity": take_identity,
    "enter namespaces": enter_namespaces,
    "become pid 1": become_pid_1,
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
    "seal root": seal_root,
    "loopback": namespaces.loopback_up,
    "host name": namespaces.name_host,
    "drop capabilities": drop_capabilities,
    "run as init": run_as_init,
    "landlock": second_wall,
    "seccomp": install_filter,
}
