"""A workspace of each kind with a program's view of it, and the edits that a program could make there."""

from __future__ import annotations

import importlib
import os
import random
import shutil
import signal
import stat
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from undo_model import FIFO, FILE, FOLDER, LINK, Model, Node, Tree, parent, remove, within

from ringfence.checkpoint.workspace import Workspace, open_overlay, open_snapshot
from ringfence.kernel import syscalls

NEW_USER, NEW_NS = 0x10000000, 0x20000
NAMES = ("a", "b", "c", "d", "new\nline", "\udcff\udcfe", ".ringfence-x")
ORDINARY_ID = 65534
T0_NS = 1_700_000_000_000_000_000


def in_child(work: Callable[[], None]) -> int:
    """Run it in a fork; how that ended."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            syscalls.prctl(1, signal.SIGKILL)
            work()
            code = 0
        except BaseException:
            traceback.print_exc(file=sys.stderr)
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitpid(child, 0)[1]


def as_ordinary_user(
    folder: Path, work: Callable[[Path], None], before: Callable[[], None] = lambda: None
) -> int:
    """The same without root's rights, in a directory of that user's, which can be reached without them; ``before``:
    with root's rights, just before."""

    def inside() -> None:
        place = folder
        if os.geteuid() == 0:
            syscalls.call("unshare", NEW_NS)
            syscalls.call("mount", b"none", b"/", 0, 0x4000 | 0x40000, 0)
            place = Path("/mnt")
            syscalls.call("mount", os.fsencode(folder), b"/mnt", 0, 0x1000, 0)
            for each in (folder, *folder.rglob("*")):
                os.lchown(each, ORDINARY_ID, ORDINARY_ID)
            before()
            ours = "ringfence.checkpoint.diff.unified_diff"
            for name in ("encodings.ascii", "fcntl", "hashlib", "hmac", "json", ours):
                importlib.import_module(name)  # which this user may not be able to read
            os.setgroups([])
            os.setresgid(ORDINARY_ID, ORDINARY_ID, ORDINARY_ID)
            os.setresuid(ORDINARY_ID, ORDINARY_ID, ORDINARY_ID)
            os.environ["XDG_STATE_HOME"] = str(place / "state")
        work(place)

    return in_child(inside)


def mount_tmpfs(place: Path, options: str = "") -> None:
    place.mkdir(exist_ok=True)
    syscalls.call("mount", b"tmpfs", os.fsencode(place), b"tmpfs", 0, options.encode())


def enter(kind: str) -> None:
    """Namespaces in which overlays may be mounted, and are gone afterwards."""
    if kind == "overlay":
        uid, gid = os.getuid(), os.getgid()
        syscalls.call("unshare", NEW_USER | NEW_NS)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    else:
        return
    syscalls.call("mount", b"none", b"/", 0, 0x4000 | 0x40000, 0)  # private, with all below


KINDS = ("overlay", "snapshot")


class Arena:
    """One workspace; ``seen`` is where the program works while it is open."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.base = folder / "base"
        self.overlay = kind == "overlay"
        for name in ("base", "upper", "work", "merged"):
            (folder / name).mkdir(exist_ok=True)
        self.seen = folder / ("merged" if self.overlay else "store/work")

    def open(self) -> Workspace:
        store = str(self.folder / "store")
        if not self.overlay:
            return open_snapshot(str(self.base), store)
        return open_overlay(str(self.folder / "upper"), str(self.base), store)

    def mount(self) -> None:
        if not self.overlay:
            return
        where = f"lowerdir={self.folder}/base,upperdir={self.folder}/upper,workdir={self.folder}/work,userxattr"
        syscalls.call("mount", b"overlay", os.fsencode(self.seen), b"overlay", 0, where.encode())

    def unmount(self) -> None:
        if self.overlay:
            syscalls.call("umount2", os.fsencode(self.seen), 0)


def look(top: Path) -> tuple[dict[str, tuple[object, ...]], set[frozenset[str]]]:
    """A tree as ``model.plain`` tells it, and which paths are the same file."""
    found: dict[str, tuple[object, ...]] = {}
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            found[os.path.relpath(path, top)] = _row(path, os.lstat(path))
    return found, same_files(top)


def same_files(top: Path) -> set[frozenset[str]]:
    inodes: dict[int, set[str]] = {}
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            if status.st_nlink > 1 and stat.S_IFMT(status.st_mode) not in (stat.S_IFDIR, stat.S_IFCHR):
                inodes.setdefault(status.st_ino, set()).add(os.path.relpath(path, top))
    return {frozenset(paths) for paths in inodes.values() if len(paths) > 1}


def _row(path: str, status: os.stat_result) -> tuple[object, ...]:
    shapes = {stat.S_IFREG: FILE, stat.S_IFDIR: FOLDER, stat.S_IFLNK: LINK, stat.S_IFIFO: FIFO}
    kind = shapes[stat.S_IFMT(status.st_mode)]
    attributes = ()
    if kind in (FILE, FOLDER):
        names = [name for name in os.listxattr(path) if name.startswith("user.")]
        attributes = tuple(sorted((name, os.getxattr(path, name)) for name in names))
    return (
        kind,
        0 if kind == LINK else stat.S_IMODE(status.st_mode),
        0 if kind == FOLDER else status.st_mtime_ns,
        Path(path).read_bytes() if kind == FILE else b"",
        os.readlink(path) if kind == LINK else "",
        attributes,
    )


class Editor:
    """Makes one random change, in the file system and in the model."""

    def __init__(self, chance: random.Random, top: Path, tree: Tree) -> None:
        self.chance, self.top, self.tree = chance, top, tree

    def edit(self) -> str:
        """What was done; nothing where it made no sense."""
        name = self.chance.choice(EDITS)
        getattr(self, "_" + name)()
        return name

    def _time(self) -> int:
        return T0_NS + self.chance.randrange(10**9)

    def _folder(self) -> str:
        folders = [path for path, node in self.tree.items() if node.kind == FOLDER and path.count("/") < 3]
        return self.chance.choice(["", "", *folders])

    def _new_path(self) -> str:
        folder = self._folder()
        name = self.chance.choice(NAMES)
        return f"{folder}/{name}" if folder else name

    def _some(self, *kinds: str) -> str | None:
        return self.chance.choice([path for path, node in self.tree.items() if node.kind in kinds] or [None])

    def _clear(self, path: str) -> None:
        real = self.top / path
        if real.is_dir() and not real.is_symlink():
            shutil.rmtree(real)
        elif os.path.lexists(real):
            real.unlink()
        remove(self.tree, path)

    def _finish(self, path: str, node: Node) -> None:
        node.mtime_ns = self._time()
        os.utime(self.top / path, ns=(node.mtime_ns, node.mtime_ns), follow_symlinks=False)
        self.tree[path] = node

    def _content(self) -> bytes:
        shape = self.chance.randrange(4)
        if shape == 0:
            return b""
        if shape == 1:
            return bytes(70_000) + self.chance.randbytes(5) + bytes(70_000)
        return self.chance.randbytes(self.chance.randrange(1, 200))

    def _write(self) -> None:
        path = self._new_path()
        self._clear(path)
        node = Node(FILE, mode=self.chance.choice((0o644, 0o600, 0o755, 0o444)), content=self._content())
        (self.top / path).write_bytes(node.content)
        (self.top / path).chmod(node.mode)
        self._finish(path, node)

    def _alone(self) -> str | None:
        """A file with one name: writing into one with more differs between file systems."""
        path = self._some(FILE)
        alone = path and sum(node is self.tree[path] for node in self.tree.values()) == 1
        return path if alone and os.lstat(self.top / path).st_nlink == 1 else None

    def _append(self) -> None:
        if (path := self._alone()) and self.tree[path].mode & 0o200:
            more = self._content()
            with (self.top / path).open("ab") as file:
                file.write(more)
            node = self.tree[path]
            node.content += more
            self._finish(path, node)

    def _forge(self) -> None:
        """New content of the same length and time."""
        if (path := self._alone()) and self.tree[path].content and self.tree[path].mode & 0o200:
            node = self.tree[path]
            node.content = self.chance.randbytes(len(node.content))
            with (self.top / path).open("r+b") as file:
                file.write(node.content)
            os.utime(self.top / path, ns=(node.mtime_ns, node.mtime_ns))

    def _folder_new(self) -> None:
        path = self._new_path()
        self._clear(path)
        (self.top / path).mkdir()
        node = Node(FOLDER, mode=self.chance.choice((0o755, 0o700)))
        (self.top / path).chmod(node.mode)
        self.tree[path] = node

    def _delete(self) -> None:
        if path := self._some(FILE, FOLDER, LINK, FIFO):
            self._clear(path)

    def _symlink(self) -> None:
        path = self._new_path()
        self._clear(path)
        node = Node(LINK, target=self.chance.choice(("a", "/etc/passwd", "../..", "\udcff", ".")))
        (self.top / path).symlink_to(node.target)
        self._finish(path, node)

    def _hard_link(self) -> None:
        source, path = self._some(FILE), self._new_path()
        if source and source != path and not within(source, path):
            self._clear(path)
            os.link(self.top / source, self.top / path)
            self.tree[path] = self.tree[source]

    def _rename(self) -> None:
        source, path = self._some(FILE, LINK), self._new_path()
        there = self.tree.get(path)
        free = there is None or there.kind != FOLDER
        if source and free and there is not self.tree[source] and not within(source, path):
            os.rename(self.top / source, self.top / path)
            self.tree[path] = self.tree.pop(source)

    def _chmod(self) -> None:
        if path := self._alone():
            self.tree[path].mode = self.chance.choice((0o640, 0o750, 0o400))
            (self.top / path).chmod(self.tree[path].mode)

    def _chmod_folder(self) -> None:
        if path := self._some(FOLDER):
            self.tree[path].mode = self.chance.choice((0o711, 0o750))
            (self.top / path).chmod(self.tree[path].mode)

    def _attribute(self) -> None:
        path = self._alone() if self.chance.randrange(2) else self._some(FOLDER)
        if path and self.tree[path].mode & 0o200:
            value = self.chance.randbytes(4)
            os.setxattr(self.top / path, "user.mark", value)
            self.tree[path].attributes["user.mark"] = value

    def _fifo(self) -> None:
        path = self._new_path()
        self._clear(path)
        node = Node(FIFO, mode=0o600)
        os.mkfifo(self.top / path, 0o600)
        self._finish(path, node)


EDITS = ("write", "write", "write", "append", "forge", "folder_new", "folder_new", "delete", "delete", "symlink",
         "hard_link", "rename", "chmod", "chmod_folder", "attribute", "fifo")  # fmt: skip


def fill(chance: random.Random, arena: Arena, model: Model, edits: int) -> None:
    """A base to begin with, which has no FIFO."""
    editor = Editor(chance, arena.base, model.base)
    for _ in range(edits):
        editor.edit()
    for path in [path for path, node in model.base.items() if node.kind == FIFO]:
        editor._clear(path)


__all__ = [
    "KINDS", "Arena", "Editor", "as_ordinary_user", "enter", "fill", "in_child", "look", "mount_tmpfs", "parent",
    "same_files",
]  # fmt: skip
