"""What ``changes`` and ``diff`` look at: the layer as it is, or as it was sealed.

A program that still runs sees each of our reads by the file's atime. It could show one content to the seal, another one
to the diff, and the first one again to the commit. So what was sealed is kept, and shown from the store.
"""

from __future__ import annotations

from _collections_abc import Callable, Iterator

from ringfence.checkpoint import merge
from ringfence.checkpoint.diff import differences
from ringfence.checkpoint.diff.differences import Below
from ringfence.checkpoint.diff.texts import Texts
from ringfence.checkpoint.entry import Manifest
from ringfence.checkpoint.scan import UNREAD
from ringfence.checkpoint.store import Store
from ringfence.model.outcome import Changes
from ringfence.model.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.checkpoint.layer import Layer


@record
class Look:
    """A layer as it was read, and where its contents are."""

    layer: Manifest
    open: Callable[[str], int]
    complete: bool = True
    """Nothing was left out of it."""

    def changes(self, base: Below) -> Changes:
        return differences.changes(self.layer, base, complete=self.complete)

    def diffs(self, base: Below, wanted: tuple[str, ...] | None, title: str, most: int) -> Iterator[str]:
        return Texts(self.layer, self.open, base, title).all(self.changes(base), wanted, most)

    def without(self, hidden: frozenset[str]) -> Look:
        layer = {path: entry for path, entry in self.layer.items() if not merge.is_below(path, hidden)}
        return replace(self, layer=layer)


def live(layer: Layer) -> Look:
    """As it is now; contents are read when somebody asks for them."""
    found = layer.read(UNREAD)
    return Look(layer=found, open=layer.scan.open, complete=not layer.scan.cut_short)


def sealed(layer: Manifest, store: Store, base: Below) -> Look:
    """``layer``: its contents are in the store. One without a digest has the base's own."""
    opened = lambda path: store.open(layer[path].digest) if layer[path].digest else base.open(path)  # noqa: E731
    return Look(layer=layer, open=opened)
