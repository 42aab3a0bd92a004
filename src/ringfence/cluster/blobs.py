"""Inputs by their content: put into the cluster's store once, sent to each node once, and checked where they arrive."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

from ringfence.cluster.ray_module import RayModule, Ref
from ringfence.errors import SupervisionError
from ringfence.model.record import record

INLINE_BYTES = 32 << 10
"""Data up to this size travels with its task."""
_KEPT_BYTES = 256 << 20
_SENT_BYTES = 1 << 30


@record
class Blob:
    """Some bytes: the bytes themselves, or their digest."""

    sha256: str
    data: bytes | None = None
    refs: tuple[Ref, ...] = ()
    """In a tuple, so that Ray does not fetch it for a worker that has it."""


class Blobs:
    """The sender's side: what was sent the latest stays in the store. What a task needs stays as long as the task."""

    def __init__(self, ray: RayModule, most_bytes: int = _SENT_BYTES) -> None:
        self._ray, self._most = ray, most_bytes
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[Blob, int]] = OrderedDict()
        self._bytes = 0

    def of(self, data: bytes) -> Blob:
        """The same bytes are put into the store once, while they are known."""
        digest = hashlib.sha256(data).hexdigest()
        if len(data) <= INLINE_BYTES:
            return Blob(sha256=digest, data=data)
        with self._lock:
            if digest in self._known:
                self._known.move_to_end(digest)
            else:
                self._keep(Blob(sha256=digest, refs=(self._ray.put(data),)), len(data))
            return self._known[digest][0]

    def _keep(self, blob: Blob, size: int) -> None:
        self._known[blob.sha256] = blob, size
        self._bytes += size
        while self._bytes > self._most and len(self._known) > 1:
            self._bytes -= self._known.popitem(last=False)[1][1]

    def close(self) -> None:
        """Let go of all."""
        with self._lock:
            self._known.clear()
            self._bytes = 0


class Received:
    """The receiver's side, one in each process: the latest are kept."""

    def __init__(self, most_bytes: int = _KEPT_BYTES) -> None:
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._bytes, self._most = 0, most_bytes

    def data(self, blob: Blob, ray: RayModule) -> bytes:
        """The bytes; SupervisionError where they are not what they are known by."""
        if blob.data is not None:
            return blob.data
        if blob.sha256 in self._kept:
            self._kept.move_to_end(blob.sha256)
            return self._kept[blob.sha256]
        data = ray.get(blob.refs[0])
        if not isinstance(data, bytes) or hashlib.sha256(data).hexdigest() != blob.sha256:
            raise SupervisionError(f"an input was changed on its way here: {blob.sha256[:16]}…")
        self._keep(blob.sha256, data)
        return data

    def _keep(self, digest: str, data: bytes) -> None:
        self._kept[digest] = data
        self._bytes += len(data)
        while self._bytes > self._most and len(self._kept) > 1:
            self._bytes -= len(self._kept.popitem(last=False)[1])
