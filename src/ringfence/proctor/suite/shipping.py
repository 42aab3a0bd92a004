"""Sends the inputs of a task to a node: by content, to the same path as here, so that evidence and command agree.

If the path has the same content already, as on a shared file system, it is used as it is. If it is missing, it is put
there, whole or not at all. If it has other content, it is refused: nothing on a node is ever overwritten.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator, Sequence

from ringfence.cluster.blobs import Blob, Blobs, Received
from ringfence.cluster.ray_module import RayModule
from ringfence.container.tar_stream import TarStream
from ringfence.container.unpacking import unpack
from ringfence.errors import SetupError, UnavailableError
from ringfence.model.own_files import make_private
from ringfence.model.record import record
from ringfence.model.ways.walk import absolute, real
from ringfence.proctor.submission_manifest.reading import read_input
from ringfence.roles.removal import remove_tree

_PIECE_BYTES = 16 << 20
_MOST_BYTES = 2 << 30
"""What is larger is not sent: every node must have it."""


@record
class Shipped:
    """A file or directory."""

    path: str
    """Absolute, on both machines."""
    sha256: str
    """A file's own digest, or a directory's tree digest (docs/reference/formats.md)."""
    pieces: tuple[Blob, ...]
    """Of a tar archive with the one entry."""


class Shipping:
    """The caller's side. Each path is read once, and its content is in the cluster's store once."""

    def __init__(self, ray: RayModule) -> None:
        self._blobs = Blobs(ray)
        self._known: dict[str, Shipped] = {}

    def of(self, paths: Sequence[str]) -> tuple[Shipped, ...]:
        return tuple(self._one(absolute(path)) for path in dict.fromkeys(paths))

    def _one(self, path: str) -> Shipped:
        if path not in self._known:
            found = read_input("other", "it", path)
            pieces = tuple(map(self._blobs.of, _pieces(path))) if found.bytes <= _MOST_BYTES else ()
            self._known[path] = Shipped(path=path, sha256=found.sha256, pieces=pieces)
        return self._known[path]


def _pieces(path: str) -> Iterator[bytes]:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as file:
        file.add(real(path), arcname="it")
    data = archive.getbuffer()
    for start in range(0, len(data), _PIECE_BYTES):
        yield bytes(data[start : start + _PIECE_BYTES])


def _digest(path: str) -> str:
    return read_input("other", "it", path).sha256


def place(shipped: Shipped, received: Received, ray: RayModule) -> None:
    """On a node: make the path have the content. UnavailableError where it has other content, or can't be made."""
    if not os.path.lexists(shipped.path):
        if not shipped.pieces:
            raise UnavailableError(f"{shipped.path} is too large to be sent", missing=("inputs",),
                                   hint="share it with every node, at the same path")  # fmt: skip
        try:
            _unpack(shipped, received, ray)
        except (OSError, SetupError) as error:
            raise UnavailableError(f"{shipped.path} can't be made on the node: {error}", missing=("inputs",),
                                   hint="use paths that every node can make, or share them") from error  # fmt: skip
    if _digest(shipped.path) != shipped.sha256:
        raise UnavailableError(f"the node has a different {shipped.path}", missing=("inputs",),
                               hint="remove it there, or name another path here")  # fmt: skip


def _unpack(shipped: Shipped, received: Received, ray: RayModule) -> None:
    """Unpack beside its place, then rename once; a second process finds it there."""
    above = os.path.dirname(shipped.path)
    make_private(above)
    part = os.path.join(above, f".{os.path.basename(shipped.path)[:50]}.{os.urandom(8).hex()}.part")
    os.mkdir(part, 0o700)
    try:
        data = io.BytesIO(b"".join(received.data(piece, ray) for piece in shipped.pieces))
        unpack(TarStream(data.read), part)
        _rename(os.path.join(part, "it"), shipped.path)
    finally:
        remove_tree(part)


def _rename(made: str, path: str) -> None:
    """A file must not replace what somebody else put there: hard-linking it can't."""
    if os.path.isdir(made):
        try:
            os.rename(made, path)
        except OSError:
            if not os.path.isdir(path):
                raise
    else:
        try:
            os.link(made, path)
        except FileExistsError:
            return
