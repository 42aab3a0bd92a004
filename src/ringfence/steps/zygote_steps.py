"""The steps before there is a sandbox: the place where sandboxes are built, and what only root can give one.

The former run in the zygote, once for many sandboxes; the latter in the leader of one, while it is still root.
"""

from __future__ import annotations

import os
import stat
from _collections_abc import Callable

from ringfence.kernel.mount import mounts, namespaces, submounts
from ringfence.kernel.proc import processes
from ringfence.steps import root_layout as layout
from ringfence.steps.state import SETUP
from ringfence.transport.wire import write_all

BUILD_BYTES = 64 << 20
_FOLDER, _FILE, _DEVICE = (stat.S_IFDIR,), (stat.S_IFREG, stat.S_IFLNK), (stat.S_IFCHR,)
# How a source is cloned: (attributes, without the mounts below it, kinds). A writable path is the host's own directory,
# with everything in it; for all others a mount below is shown by itself, or not at all.
_TAKEN = {
    "ro": (mounts.READ_ONLY, True, _FOLDER),
    "file": (mounts.READ_ONLY, True, _FILE),
    "base": (mounts.READ_ONLY, True, _FOLDER),
    "rw": (mounts.WRITABLE, False, _FOLDER),
    "rw file": (mounts.WRITABLE, True, _FILE),
    "dev": (mounts.DEVICE, True, _DEVICE),
}


def enter_zygote(uid: int, gid: int) -> None:
    """A mount namespace to build in; a user needs a user namespace for that, in which nothing else changes."""
    if os.geteuid() == 0:
        namespaces.unshare(["mount"])
    else:
        namespaces.unshare(["user", "mount"])
        processes.show_memory()
        namespaces.map_ids("self", (uid, gid), (uid, gid))
        processes.hide_memory()
    mounts.make_private()


def build_place(folder: str, places: list[tuple[str, bool]]) -> None:
    """Where sandboxes are built: the parts of the host that they show, each at a place of its own. From here on every
    name in the building is relative, so that a mount table tells nothing of the host."""
    os.umask(0o022)
    mounts.mount("tmpfs", folder, ["nosuid"], f"size={BUILD_BYTES},mode=755")
    os.chdir(folder)
    for name in ("root", "memory", "none", "etc", "base", "cover", "base/scratch", "base/workspace"):
        os.mkdir(name)
    for name, is_folder in places:
        _make_place(f"base/{name}", is_folder)


def _make_place(name: str, is_folder: bool) -> None:
    if is_folder:
        os.makedirs(name, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(name), exist_ok=True)
        os.mknod(name, stat.S_IFREG | 0o644)


def configuration(contents: list[tuple[str, bytes, str]], places: list[tuple[str, bool]]) -> None:
    """/etc, with places for what is mounted in it."""
    made: set[str] = set()
    for target, content, link in contents:
        _make_above(target.lstrip("/"), made)
        if link:
            os.symlink(link, target.lstrip("/"))
        else:
            _write_new(target.lstrip("/"), content)
    for target, is_folder in places:
        _make_place(target.lstrip("/"), is_folder)


def limit_files(rows: list[tuple[str, str]]) -> None:
    """(path in the building, text) of what a job reads of its limits."""
    made: set[str] = set()
    for path, text in rows:
        _make_above(path, made)
        _write_new(path, text.encode("ascii"))


def _make_above(path: str, made: set[str]) -> None:
    folder = os.path.dirname(path)
    if folder not in made:
        os.makedirs(folder, exist_ok=True)
        made.add(folder)


def _write_new(path: str, content: bytes) -> None:
    """Without the calls that a file object makes: there are hundreds of files."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        write_all(file, content)
    finally:
        os.close(file)


def clone_sources(sources: list[tuple[str, str, str, tuple[int, ...]]]) -> None:
    """(name, path, mode, owner) of what the sandbox shows of the host, while it can be reached.

    ``owner`` is (uid, gid) on disk of files that appear as the job's own; empty: unchanged.
    """
    for name, path, mode, owner in sources:
        idmap = SETUP.idmap((owner[0], owner[1])) if owner else -1
        if name not in SETUP.taken_apart:
            SETUP.trees[name] = _clone_source(path, mode, idmap)
        if owner:
            _map_parts(name, idmap)
        if mode == "base":
            SETUP.covered[name] = [point[len(path) :] for point in submounts.below(path, SETUP.points)]


def _clone_source(path: str, mode: str, idmap: int) -> int:
    attributes, alone, kinds = _TAKEN[mode.removeprefix(mounts.REAL)]
    clone = mounts.clone_real if mode == "base" or mode.startswith(mounts.REAL) else mounts.clone
    tree = clone(path, alone=alone)
    try:
        layout.refuse_other_kinds(tree, path, kinds)
        _set_attributes(tree, path, attributes, idmap)
    except BaseException:
        os.close(tree)
        raise
    return tree


def _set_attributes(tree: int, path: str, attributes: int, idmap: int) -> None:
    try:
        mounts.set_attributes(tree, attributes, idmap=idmap)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def _map_parts(name: str, idmap: int) -> None:
    """Mounts below something that is mapped are mapped too, if their file system can be."""
    for part, *_ in SETUP.parts.get(name, ()):
        tree = mounts.clone(f"base/{part}", alone=True)
        try:
            mounts.set_attributes(tree, mounts.READ_ONLY, idmap=idmap)
            SETUP.trees[part] = tree
        except OSError:
            os.close(tree)


# ---- in the leader, where root is the caller


def give_folders(owned: list[str]) -> None:
    """What the sandbox writes belongs to its id."""
    os.setgroups([])
    for path in owned:
        os.chown(path, SETUP.identity, SETUP.identity, follow_symlinks=False)


def clone_layers(layers: list[tuple[str, str]], by_root: bool) -> None:
    """Layers that outlive sandboxes. For root, what an earlier sandbox wrote appears as this one's own, at no cost: the
    first to write a layer becomes its owner on disk, and later sandboxes, which have other ids, are mapped to that.
    """
    for name, path in layers:
        idmap = _map_layer(path) if by_root else -1
        tree = mounts.clone(path)
        mounts.set_attributes(tree, mounts.WRITABLE, idmap=idmap)
        SETUP.trees[name] = tree


def _map_layer(path: str) -> int:
    status = os.stat(f"{path}/upper", follow_symlinks=False)
    if status.st_uid == 0:
        give_folders([path, f"{path}/upper", f"{path}/work"])
        return -1
    return -1 if status.st_uid == SETUP.identity else SETUP.idmap((status.st_uid, status.st_gid))


def make_devices(names: list[str], links: list[tuple[str, str]], folders: list[str]) -> None:
    """Devices with inodes of the sandbox's own: a lock on the host's would be seen by every other sandbox."""
    tree = mounts.new_tmpfs()
    os.chmod(".", 0o755, dir_fd=tree)
    for name in names:
        os.mknod(name, stat.S_IFCHR | 0o666, os.stat(f"/dev/{name}").st_rdev, dir_fd=tree)
        os.chmod(name, 0o666, dir_fd=tree)
    for name, to in links:
        os.symlink(to, name, dir_fd=tree)
    for name in folders:
        os.mkdir(name, 0o755, dir_fd=tree)
    mounts.set_attributes(tree, mounts.DEVICE)
    SETUP.trees["devices"] = tree


STEPS: dict[str, Callable[..., None]] = {
    "enter zygote": enter_zygote,
    "build place": build_place,
    "lay out": layout.lay_out,
    "configuration": configuration,
    "limit files": limit_files,
    "clone sources": clone_sources,
    "give directories": give_folders,
    "clone layers": clone_layers,
    "make devices": make_devices,
}
