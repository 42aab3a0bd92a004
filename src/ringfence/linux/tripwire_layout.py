"""What the tripwire file system looks like: which node stands for which hidden place. Pure data.

One FUSE file system serves all hidden places of a sandbox. It has two shapes:

- a *veil* replaces a read-only folder that has hidden names in it. The visible names are bind mounts of the
  real ones (symbolic links are answered by us), the hidden ones do not exist: no listing, no mount table and
  no system call tells them from names that never were.
- a *spot* is one node bound over one hidden folder or file. It works in a writable folder too, but its name
  stays in the folder's listing and in the mount table: see docs/adr/0050.

Knows nothing about mounting (``tripwire_mount``) or answering (``tripwire``).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType

from ringfence.errors import UsageError
from ringfence.linux.fuse_wire import ROOT_NODE
from ringfence.model.record import record

FOLDER_MODE = stat.S_IFDIR | 0o755
FILE_MODE = stat.S_IFREG | 0o755
LINK_MODE = stat.S_IFLNK | 0o777

# (node name in the staging folder, place in the sandbox, visible names to bind from the place itself)
Binding = tuple[bytes, bytes, tuple[bytes, ...]]


class Role(StrEnum):
    VEIL = "veil"
    SPOT = "spot"
    VISIBLE = "visible"


@record
class Entry:
    """A visible name in a veiled folder."""

    name: bytes
    mode: int
    target: bytes = b""
    """Where a symbolic link points; empty for anything else."""


@record
class Veil:
    """A read-only folder, the names in it that are hidden and those that stay."""

    folder: bytes
    hidden: frozenset[bytes]
    visible: tuple[Entry, ...] = ()


@record
class Spot:
    """One hidden place, of which a folder or file must exist to mount on."""

    path: bytes
    is_folder: bool


Place = Veil | Spot


@record
class Node:
    path: bytes
    """In the sandbox."""
    role: Role
    mode: int
    target: bytes = b""
    children: Mapping[bytes, int] = MappingProxyType({})
    hidden: frozenset[bytes] = frozenset()


@record
class Layout:
    nodes: Mapping[int, Node]
    bindings: tuple[Binding, ...]
    """In the order in which they must be made: outer folders first."""


def lay_out(*, veils: Iterable[Veil] = (), spots: Iterable[Spot] = ()) -> Layout:
    """Number the nodes and say what has to be bound where."""
    places: list[Place] = [*veils, *spots]
    places.sort(key=lambda place: (_place(place).rstrip(b"/").count(b"/"), _place(place)))
    _check(places)
    places = _uncovered(places)
    nodes: dict[int, Node] = {}
    stage: dict[bytes, int] = {}
    bindings: list[Binding] = []
    for place in places:
        node_id = len(nodes) + ROOT_NODE + 1
        name = b"%d" % node_id
        stage[name] = node_id
        bindings.append((name, _place(place), _add(nodes, node_id, place)))
    nodes[ROOT_NODE] = Node(path=b"", role=Role.VEIL, mode=FOLDER_MODE, children=stage)
    return Layout(nodes=nodes, bindings=tuple(bindings))


def to_data(layout: Layout) -> dict[int, tuple[object, ...]]:
    """The nodes as plain values that ``marshal`` takes, for the process that serves them."""
    return {
        number: (node.path, str(node.role), node.mode, node.target, dict(node.children), node.hidden)
        for number, node in layout.nodes.items()
    }


def from_data(data: dict[int, tuple[bytes, str, int, bytes, dict[bytes, int], frozenset[bytes]]]) -> Layout:
    nodes = {
        number: Node(path=path, role=Role(role), mode=mode, target=target, children=children, hidden=hidden)
        for number, (path, role, mode, target, children, hidden) in data.items()
    }
    return Layout(nodes=nodes, bindings=())


def read_veil(folder: bytes, hidden: Iterable[bytes], *, source: bytes = b"") -> Veil:
    """A veil over a folder as it is now; ``source`` is where it lies if not at its place in the sandbox."""
    gone = frozenset(hidden)
    try:
        with os.scandir(source or folder) as listing:
            visible = tuple(_entry(item) for item in listing if item.name not in gone)
    except OSError as error:
        raise UsageError(f"cannot list the folder to veil: {error}") from error
    return Veil(folder=folder, hidden=gone, visible=visible)


def read_veils(
    paths: Iterable[bytes], *, source: Callable[[bytes], bytes] = lambda folder: folder
) -> tuple[Veil, ...]:
    """One veil for each folder that has one of these paths in it; ``source`` says where a folder lies now."""
    wanted = set(paths)
    names: dict[bytes, set[bytes]] = {}
    for path in wanted:
        if not _is_below(path, wanted):
            folder, _, name = path.rpartition(b"/")
            names.setdefault(folder or b"/", set()).add(name)
    return tuple(read_veil(folder, names[folder], source=source(folder)) for folder in sorted(names))


def _entry(item: os.DirEntry[bytes]) -> Entry:
    if item.is_symlink():
        return Entry(name=item.name, mode=LINK_MODE, target=os.readlink(item.path))
    return Entry(name=item.name, mode=FOLDER_MODE if item.is_dir(follow_symlinks=False) else FILE_MODE)


def _place(place: Place) -> bytes:
    return place.folder if isinstance(place, Veil) else place.path


def _check(places: list[Place]) -> None:
    seen: set[bytes] = set()
    for path in map(_place, places):
        if not path.startswith(b"/") or b"\0" in path or b".." in path.split(b"/"):
            raise UsageError(f"a hidden place must be an absolute path without '..': {path!r}")
        if path in seen:
            raise UsageError(f"hidden twice: {path!r}")
        seen.add(path)


def _uncovered(places: list[Place]) -> list[Place]:
    """Without what lies at or below something hidden already: it can't be reached, nor mounted on."""
    veils = [place for place in places if isinstance(place, Veil)]
    veiled = {join(veil.folder, name) for veil in veils for name in veil.hidden}
    hidden = veiled.union(place.path for place in places if isinstance(place, Spot))
    return [place for place in places if _place(place) not in veiled and not _is_below(_place(place), hidden)]


def _is_below(path: bytes, hidden: set[bytes]) -> bool:
    parts = path.split(b"/")
    return any(b"/".join(parts[:depth]) in hidden for depth in range(2, len(parts)))


def _add(nodes: dict[int, Node], node_id: int, place: Place) -> tuple[bytes, ...]:
    if isinstance(place, Spot):
        mode = FOLDER_MODE if place.is_folder else FILE_MODE
        nodes[node_id] = Node(path=place.path, role=Role.SPOT, mode=mode)
        return ()
    children: dict[bytes, int] = {}
    for item in place.visible:
        children[item.name] = node_id + len(children) + 1
        nodes[children[item.name]] = Node(
            path=join(place.folder, item.name), role=Role.VISIBLE, mode=item.mode, target=item.target
        )
    nodes[node_id] = Node(
        path=place.folder, role=Role.VEIL, mode=FOLDER_MODE, children=children, hidden=place.hidden
    )
    return tuple(item.name for item in place.visible if item.mode != LINK_MODE)


def join(folder: bytes, name: bytes) -> bytes:
    return folder.rstrip(b"/") + b"/" + name
