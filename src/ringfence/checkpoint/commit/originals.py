"""What the base had where a layer changes it, kept while it is still there. A merge starts from it, and it shows that
others changed a file and changed it back.

Small files only, and a bounded number: a layer of a million files must not copy a million others. Without a kept
original a conflict is still reported and can be decided. Never keeps what others have changed since.
"""

from __future__ import annotations

from ringfence.checkpoint.entry import DELETED, FILE, Entry, Manifest, Seen, fingerprint, from_rows, to_rows
from ringfence.checkpoint.records.documents import reading
from ringfence.checkpoint.scan import OF_BASE, Reading, Scan
from ringfence.checkpoint.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.checkpoint.layer import Layer

MAX_BYTES, MAX_FILES, MAX_TOTAL_BYTES = 1 << 20, 2000, 32 << 20
_NAME = "originals"


class Originals:
    """Keeps what the base had where a workspace changed it, so that both can be merged."""

    def __init__(self, store: Store, base: Scan, layer: Layer) -> None:
        self._store, self._base, self._layer = store, base, layer
        self.known: Manifest = {}
        if store.holds(_NAME):
            with reading(f"{store.path}/{_NAME}.json"):
                self.known = from_rows(store.read(_NAME) or {})

    def note(self, layer: Manifest) -> None:
        """Keep what is new among these, which were just read."""
        found = {path: entry for path, entry in self.known.items() if path in layer}
        room = MAX_TOTAL_BYTES - sum(entry.size for entry in found.values())
        for path, entry in layer.items():
            if len(found) >= MAX_FILES:
                break
            kept = self._kept(path, entry, room) if path not in found and entry.kind in (FILE, DELETED) else None
            if kept is not None:
                found[path] = kept
                room -= kept.size
        self._save(found)

    def drop(self, paths: set[str]) -> None:
        """The base holds something else there now, and we put it there."""
        self._save({path: entry for path, entry in self.known.items() if path not in paths})

    def _kept(self, path: str, entry: Entry, room: int) -> Entry | None:
        """A copy of the file that the base has there, if it is the one that the layer was opened over."""
        try:
            status = self._base.tree.status(path)
            if status is None or status.st_size > min(MAX_BYTES, room):
                return None
            seen = self._base.one(path, OF_BASE)
            if seen is None or seen.entry.kind != FILE or self._layer.foreign(path, seen, entry):
                return None
            kept = self._base.one(path, Reading(self._store.put_unmapped))
            return kept.entry if kept is not None and self._is_still(path, seen) else None
        except OSError:
            return None  # looking at a layer must need neither room on the disk nor the right to read the base

    def _is_still(self, path: str, seen: Seen) -> bool:
        status = self._base.tree.status(path)
        return status is not None and fingerprint(status) == seen.fingerprint

    def _save(self, found: Manifest) -> None:
        if found == self.known:
            return
        self.known = found
        try:
            self._store.write(_NAME, to_rows(found))
        except OSError:
            pass  # the next look keeps them
