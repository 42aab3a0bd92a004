"""Layers as data: what one looks like over a base, and how a part of one gets into another.

Pure but for one thing: if the other layer hides a part of the base that must come back, that part is read and kept,
because a layer can't point into the base.
"""

from __future__ import annotations

from _collections_abc import Callable

from ringfence.checkpoint.entry import (
    DELETED,
    FOLDER,
    GONE,
    SPECIAL,
    Entry,
    Manifest,
    ancestors,
    hides_base,
    ordered,
    parent,
)
from ringfence.model.paths import within
from ringfence.model.record import replace

ReadBase = Callable[[str], dict[str, Entry]]
"""What the base has at a path and below, its content kept in the store; empty where it has nothing."""
_SOMETHING = Entry(kind=FOLDER, mode=0o755)


def view(base: Manifest, layer: Manifest) -> dict[str, Entry]:
    """The whole tree that a layer makes of a base."""
    found: dict[str, Entry] = {}
    hidden: set[str] = set()
    for path in ordered(base):
        if parent(path) in hidden or hides_base(layer.get(path)):
            hidden.add(path)
        elif path not in layer:
            found[path] = base[path]
    found.update((path, entry) for path, entry in layer.items() if entry.kind != DELETED)
    return found


def delta(base: Manifest, tree: Manifest) -> dict[str, Entry]:
    """The layer that makes ``tree`` of ``base``; only the top of what is deleted is in it."""
    found = {path: entry for path, entry in tree.items() if base.get(path) != entry}
    for path in base.keys() - tree.keys():
        above = tree.get(parent(path))
        if not parent(path) or (above is not None and above.kind == FOLDER):
            found[path] = GONE
    return found


def part(layer: Manifest, top: str) -> dict[str, Entry]:
    return {path: entry for path, entry in layer.items() if within(path, top)}


def is_below(path: str, tops: frozenset[str]) -> bool:
    """Whether it is one of these, or in one of them."""
    return not tops.isdisjoint((path, *ancestors(path)))


def hidden_above(layer: Manifest, path: str) -> bool:
    """Whether a directory above hides what the base has at this path."""
    return any(hides_base(layer.get(above)) for above in ancestors(path))


def chosen(
    layer: Manifest, paths: tuple[str, ...] | None, has_folder: Callable[[str], bool]
) -> dict[str, Entry]:
    """The part of a layer that says everything about these paths, as a layer; with directories that the base lacks."""
    if paths is None:
        return dict(layer)
    found: dict[str, Entry] = {}
    for top in paths:
        hidden = hidden_above(layer, top)
        inside = part(layer, top)
        if hidden and top not in inside:
            inside = {top: GONE}
        elif hidden and inside[top].kind == FOLDER:
            inside[top] = replace(inside[top], opaque=True)
        if inside and inside.get(top, _SOMETHING).kind != DELETED:
            above = [path for path in ancestors(top) if path in layer and path not in found and not has_folder(path)]
            found |= {path: replace(layer[path], opaque=False) for path in above}
        found |= inside
    return found


def rest(layer: Manifest, paths: tuple[str, ...] | None) -> dict[str, Entry]:
    """What is left of a layer once these paths are in the base; sockets and the like stay in it."""
    stays = {path for path, entry in layer.items() if entry.kind in SPECIAL}
    if paths is not None:
        stays |= {path for path in layer if not any(within(path, top) for top in paths) or hidden_above(layer, path)}
    stays |= {above for path in stays for above in ancestors(path)}
    kept = {path: layer[path] for path in stays if path in layer}
    if paths is None:
        return {path: replace(entry, opaque=False) for path, entry in kept.items()}
    return kept


def swap(now: Manifest, then: Manifest, top: str, read_base: ReadBase) -> dict[str, Entry]:
    """``now``, but with ``top`` and all below it as in ``then``."""
    found = {path: entry for path, entry in now.items() if not within(path, top)}
    wanted = part(then, top)
    hidden_now, hidden_then = hidden_above(now, top), hidden_above(then, top)
    if hidden_now and not hidden_then:
        wanted = view(read_base(top), wanted)
    elif hidden_then and not hidden_now:
        wanted = _hiding(wanted, top, there=bool(read_base(top)))
    if hidden_now:
        wanted = {path: entry for path, entry in wanted.items() if entry.kind != DELETED}
    if wanted and wanted.get(top, _SOMETHING).kind != DELETED:
        found |= _way(found, then, top, read_base)
    return found | wanted


def _hiding(wanted: dict[str, Entry], top: str, *, there: bool) -> dict[str, Entry]:
    """Put into the entry itself what a directory above it says about it."""
    if top not in wanted:
        return {top: GONE} if there else {}
    if wanted[top].kind == FOLDER:
        wanted[top] = replace(wanted[top], opaque=True)
    return wanted


def _way(now: Manifest, then: Manifest, top: str, read_base: ReadBase) -> dict[str, Entry]:
    """The directories that lead to a path, where the layer has none or something else in their place."""
    made: dict[str, Entry] = {}
    for path in ancestors(top):
        here = now.get(path)
        if here is not None and here.kind == FOLDER:
            continue
        below = read_base(path).get(path) if here is not None or path not in then or hidden_above(now, path) else None
        if here is None and not hidden_above(now, path) and below is not None and below.kind == FOLDER:
            continue
        source = then.get(path) or below or _SOMETHING
        made[path] = replace(source if source.kind == FOLDER else _SOMETHING, opaque=here is not None)
    return made
