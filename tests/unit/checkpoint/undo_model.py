"""What a workspace should be, as plain dicts: the other opinion in the random tests.

A tree is a dict from path to node. A node is one list that all hard links of a file share. Times of directories
are not modelled: every change in a directory sets them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

FILE, FOLDER, LINK, FIFO = "file", "folder", "link", "fifo"


@dataclass
class Node:
    kind: str
    mode: int = 0
    mtime_ns: int = 0
    content: bytes = b""
    target: str = ""
    attributes: dict[str, bytes] = field(default_factory=dict)


Tree = dict[str, Node]


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def within(path: str, top: str) -> bool:
    return path == top or path.startswith(top + "/")


def plain(tree: Tree) -> dict[str, tuple[object, ...]]:
    """To compare with: one tuple a path."""
    return {
        path: (node.kind, node.mode, 0 if node.kind == FOLDER else node.mtime_ns, node.content, node.target,
               tuple(sorted(node.attributes.items())))
        for path, node in tree.items()
    }  # fmt: skip


def groups(tree: Tree) -> set[frozenset[str]]:
    """Which paths are the same file."""
    found: dict[int, set[str]] = {}
    for path, node in tree.items():
        if node.kind != FOLDER:
            found.setdefault(id(node), set()).add(path)
    return {frozenset(paths) for paths in found.values() if len(paths) > 1}


def remove(tree: Tree, top: str) -> None:
    for path in [path for path in tree if within(path, top)]:
        del tree[path]


class Model:
    """The base, what one sees, and copies of that."""

    def __init__(self) -> None:
        self.base: Tree = {}
        self.now: Tree = {}
        self.links_exact = True
        """Hard links are told apart only until a part of a tree was moved: overlayfs itself breaks them then."""
        self.base_links_exact = True
        self.saved: dict[str, tuple[Tree, bool]] = {}

    def save(self, name: str) -> None:
        self.saved[name] = (copy.deepcopy(self.now), self.links_exact)

    def go_to(self, name: str) -> None:
        tree, exact = self.saved[name]
        self.now, self.links_exact = copy.deepcopy(tree), exact

    def go_to_part(self, name: str, top: str) -> None:
        then = copy.deepcopy(self.saved[name][0])
        remove(self.now, top)
        if top in then:
            _make_way(self.now, then, top)
        self.now |= {path: node for path, node in then.items() if within(path, top)}
        self.links_exact = False

    def commit(self) -> None:
        now = copy.deepcopy(self.now)
        self.base = {path: node for path, node in now.items() if node.kind != FIFO}
        self._end_history()

    def commit_part(self, top: str) -> None:
        now = copy.deepcopy(self.now)
        remove(self.base, top)
        if top in now:
            _make_way(self.base, now, top)
        self.base |= {path: node for path, node in now.items() if within(path, top) and node.kind != FIFO}
        self._end_history()

    def _end_history(self) -> None:
        self.saved.clear()
        self.links_exact = self.base_links_exact = False

    def changes(self) -> dict[str, str]:
        base, now = plain(self.base), plain(self.now)
        found = {}
        for path, row in now.items():
            if path not in base:
                found[path] = "added"
            elif base[path][0] != row[0]:
                found[path] = "type_changed"
            elif base[path] != row:
                found[path] = "modified"
        for path in base.keys() - now.keys():
            above = parent(path)
            if not above or (above in now and now[above][0] == FOLDER):
                found[path] = "deleted"
        return found


def _make_way(tree: Tree, source: Tree, top: str) -> None:
    """The directories that lead to a path, taken from where it comes from."""
    parts = top.split("/")
    for count in range(1, len(parts)):
        path = "/".join(parts[:count])
        if path not in tree or tree[path].kind != FOLDER:
            remove(tree, path)
            tree[path] = source[path]
