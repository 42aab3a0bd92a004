"""What the tripwire file system looks like: which node stands for which hidden place. Pure data.

One FUSE file system serves all hidden places of a sandbox. A *veil* replaces a read-only directory that has hidden
names in it. The visible names are bind mounts of the real ones (symbolic links are answered by us), the hidden ones
do not exist: no listing, no mount table and no system call tells them from names that never were (docs/adr/0026).

A *spot* is one file that is there and stays: whoever opens it is refused and recorded (docs/adr/0145).

Knows nothing about mounting (``tripwire_mount``) or answering (``tripwire``).
"""

from __future__ import annotations

import os
import stat
from _collections_abc import Callable, Iterable, Mapping
from types import MappingProxyType

from ringfence.errors import UsageError
from ringfence.model.record import record

ROOT_NODE = 1
FOLDER_MODE = stat.S_IFDIR | 0o755
FILE_MODE = stat.S_IFREG | 0o755
LINK_MODE = stat.S_IFLNK | 0o777

# (node name in the staging directory, place in the sandbox, visible names to bind from the place itself)
Binding = tuple[bytes, bytes, tuple[bytes, ...]]


@record
class Entry:
    """A visible name in a veiled directory."""

    name: bytes
    mode: int
    target: bytes = b""
    """Where a symbolic link points; empty for anything else."""


@record
class Veil:
    """A read-only directory, the names in it that are hidden and those that stay."""

    folder: bytes
    hidden: frozenset[bytes]
    visible: tuple[Entry, ...] = ()


@record
class Node:
    path: bytes
    """In the sandbox."""
    mode: int
    target: bytes = b""
    children: Mapping[bytes, int] = MappingProxyType({})
    hidden: frozenset[bytes] = frozenset()
    spot: bool = False
    """A file whose opening is refused and recorded."""


@record
class Layout:
    nodes: Mapping[int, Node]
    bindings: tuple[Binding, ...]
    """In the order in which they must be made: outer directories first."""


def lay_out(*, veils: Iterable[Veil] = (), spots: Iterable[tuple[bytes, int]] = ()) -> Layout:
    """Number the nodes and say what has to be bound where. ``spots``: path and mode of files, in no veiled
    directory."""
    ordered = sorted(veils, key=lambda veil: (veil.folder.rstrip(b"/").count(b"/"), veil.folder))
    _check(ordered)
    nodes: dict[int, Node] = {}
    children: dict[bytes, int] = {}
    bindings: list[Binding] = []
    for veil in _uncovered(ordered):
        node_id = len(nodes) + ROOT_NODE + 1
        name = b"%d" % node_id
        children[name] = node_id
        bindings.append((name, veil.folder, _add(nodes, node_id, veil)))
    for path, mode in spots:
        node_id = len(nodes) + ROOT_NODE + 1
        name = b"%d" % node_id
        children[name], nodes[node_id] = node_id, Node(path=path, mode=mode, spot=True)
        bindings.append((name, path, ()))
    nodes[ROOT_NODE] = Node(path=b"", mode=FOLDER_MODE, children=children)
    return Layout(nodes=nodes, bindings=tuple(bindings))


def to_data(layout: Layout) -> dict[int, tuple[object, ...]]:
    """The nodes as plain values that ``marshal`` takes, for the process that serves them."""
    return {
        number: (node.path, node.mode, node.target, dict(node.children), node.hidden, node.spot)
        for number, node in layout.nodes.items()
    }


def from_data(data: dict[int, tuple[bytes, int, bytes, dict[bytes, int], frozenset[bytes], bool]]) -> Layout:
    nodes = {
        number: Node(path=path, mode=mode, target=target, children=children, hidden=hidden, spot=spot)
        for number, (path, mode, target, children, hidden, spot) in data.items()
    }
    return Layout(nodes=nodes, bindings=())


def read_veil(folder: bytes, hidden: Iterable[bytes], *, source: bytes = b"") -> Veil:
    """A veil over a directory as it is now; ``source`` is where it lies if not at its place in the sandbox."""
    gone = frozenset(hidden)
    try:
        with os.scandir(source or folder) as listing:
            visible = tuple(_entry(item) for item in listing if item.name not in gone)
    except OSError as error:
        raise UsageError(f"cannot list the directory to veil: {error}") from error
    return Veil(folder=folder, hidden=gone, visible=visible)


def read_veils(
    paths: Iterable[bytes], *, source: Callable[[bytes], bytes] = lambda folder: folder
) -> tuple[Veil, ...]:
    """One veil for each directory that has one of these paths in it; ``source`` says where a directory lies now."""
    wanted = set(paths)
    names: dict[bytes, set[bytes]] = {}
    for path in wanted:
        if not _is_below(path, wanted):
            folder, _, name = path.rpartition(b"/")
            names.setdefault(folder or b"/", set()).add(name)
    return tuple(read_veil(folder, names[folder], source=source(folder)) for folder in sorted(names))


def read_spots(paths: Iterable[str], *, source: str) -> list[tuple[bytes, int]]:
    """Those of these files that this kernel has, with their modes; ``source`` is where the root lies."""
    found = []
    for path in paths:
        try:
            found.append((os.fsencode(path), os.stat(source + path).st_mode))
        except FileNotFoundError:
            continue
    return found


def _entry(item: os.DirEntry[bytes]) -> Entry:
    if item.is_symlink():
        return Entry(name=item.name, mode=LINK_MODE, target=os.readlink(item.path))
    return Entry(name=item.name, mode=FOLDER_MODE if item.is_dir(follow_symlinks=False) else FILE_MODE)


def _check(veils: list[Veil]) -> None:
    seen: set[bytes] = set()
    for path in (veil.folder for veil in veils):
        if not path.startswith(b"/") or b"\0" in path or b".." in path.split(b"/"):
            raise UsageError(f"a hidden place must be an absolute path without '..': {path!r}")
        if path in seen:
            raise UsageError(f"the hidden place {path!r} appears twice")
        seen.add(path)


def _uncovered(veils: list[Veil]) -> list[Veil]:
    """Without what lies at or below something hidden already: it can't be reached, nor mounted on."""
    hidden = {join(veil.folder, name) for veil in veils for name in veil.hidden}
    return [veil for veil in veils if veil.folder not in hidden and not _is_below(veil.folder, hidden)]


def _is_below(path: bytes, hidden: set[bytes]) -> bool:
    parts = path.split(b"/")
    return any(b"/".join(parts[:depth]) in hidden for depth in range(2, len(parts)))


def _add(nodes: dict[int, Node], node_id: int, veil: Veil) -> tuple[bytes, ...]:
    children: dict[bytes, int] = {}
    for item in veil.visible:
        children[item.name] = node_id + len(children) + 1
        nodes[children[item.name]] = Node(path=join(veil.folder, item.name), mode=item.mode, target=item.target)
    nodes[node_id] = Node(path=veil.folder, mode=FOLDER_MODE, children=children, hidden=veil.hidden)
    return tuple(item.name for item in veil.visible if item.mode != LINK_MODE)


def join(folder: bytes, name: bytes) -> bytes:
    return folder.rstrip(b"/") + b"/" + name
