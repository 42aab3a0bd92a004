"""Roots of images, unpacked once each: a cache in the state directory, by the id of the image.

A root is complete or absent: it is filled beside its place and moved there. A process that wants a root which another
is filling waits for it. The next process removes what a killed one left.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ringfence.container.engine import Engine, Image
from ringfence.container.tar_stream import TarStream
from ringfence.container.unpacking import Unpacked, unpack
from ringfence.errors import SetupError, UsageError, is_of_a_call
from ringfence.evidence.digest import sha256_hex
from ringfence.model import own_files, state_folder
from ringfence.model.record import record
from ringfence.roles.removal import remove_tree

_ROOT, _ABOUT, _LOCK = "root", "about.json", ".lock"
_REBUILD = "the image can't be used: rebuild it, or export it again"
_PART = ".part"


@record
class StoredRoot:
    """The unpacked root of an image."""

    folder: str
    image_id: str
    left_out: tuple[str, ...] = ()
    """Devices and FIFOs of the image that are not in it: the first ones, by name."""


def root_of(engine: Engine, image: Image) -> StoredRoot:
    """The root of an image, from the cache or, the first time, from the engine."""
    top = state_folder.made(state_folder.IMAGES)
    place = os.path.join(top, image.id.removeprefix("sha256:"))
    found = _stored(place)
    if found is not None:
        return found
    with _locked(f"{place}{_LOCK}"):
        found = _stored(place)  # another process has made it meanwhile
        if found is not None:
            return found
        _tidy(top)
        _fill(engine, image, place)
    found = _stored(place)
    assert found is not None
    return found


def forget(image_id: str) -> None:
    """Remove the root of an image, where there is one. Nobody may be using it."""
    place = os.path.join(state_folder.made(state_folder.IMAGES), image_id.removeprefix("sha256:"))
    with _locked(f"{place}{_LOCK}"):
        if os.path.isdir(place):
            gone = f"{place}.gone{_PART}"
            os.rename(place, gone)  # moved away first: half a root must never be taken for a complete one
            remove_tree(gone)


def stored() -> tuple[str, ...]:
    """The ids of the images whose roots are here."""
    top = state_folder.made(state_folder.IMAGES)
    return tuple(f"sha256:{name}" for name in sorted(os.listdir(top)) if "." not in name)


def _stored(place: str) -> StoredRoot | None:
    about = os.path.join(place, _ABOUT)
    try:
        data, _ = own_files.read_regular(about, 1 << 20)
    except FileNotFoundError:
        return None
    try:
        said = json.loads(data)
        return StoredRoot(folder=os.path.join(place, _ROOT), image_id=said["id"], left_out=tuple(said["left_out"]))
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{about} is not as ringfence writes it", hint=f"remove {place}") from error


def _fill(engine: Engine, image: Image, place: str) -> None:
    """The caller has the lock, so anything that is there was left by a killed process."""
    part = f"{place}{_PART}"
    remove_tree(part)
    try:
        os.mkdir(part, 0o700)
        root = os.path.join(part, _ROOT)
        os.mkdir(root, 0o700)
        with engine.exported(image, sha256_hex(os.fsencode(place))[:16]) as stream:
            unpacked = unpack(TarStream(stream.read), root)
            while stream.read(1 << 16):  # what follows the archive's end, so that the engine ends by itself
                continue
        _write_about(part, image, unpacked)
        os.rename(part, place)
    except BaseException as error:
        remove_tree(part)
        if isinstance(error, UsageError) and not error.hint:  # what reads archives reads others too
            raise UsageError(str(error), hint=_REBUILD) from error
        if isinstance(error, OSError) and is_of_a_call(error):
            raise SetupError("store the image", f"{place}: {error.strerror}", errno=error.errno or 0) from error
        raise


def _write_about(part: str, image: Image, unpacked: Unpacked) -> None:
    said = {"id": image.id, "ref": image.ref, "entries": unpacked.entries, "bytes": unpacked.bytes,
            "left_out": [name.encode("utf-8", "backslashreplace").decode() for name in unpacked.left_out],
            "left_out_count": unpacked.left_out_count}  # fmt: skip
    own_files.write_whole(os.path.join(part, _ABOUT), json.dumps(said).encode())


def _tidy(top: str) -> None:
    """Remove what killed processes left: parts whose lock nobody holds."""
    for name in os.listdir(top):
        if name.endswith(_PART):
            lock = _open_lock(os.path.join(top, f"{name.partition('.')[0]}{_LOCK}"))
            try:
                own_files.lock(lock, wait=False)
                remove_tree(os.path.join(top, name))
            except BlockingIOError:
                continue
            finally:
                os.close(lock)


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """The lock ends with its holder, however that ends. Its file stays: removing it could rob another process."""
    lock = _open_lock(path)
    try:
        own_files.lock(lock)
        yield
    finally:
        os.close(lock)


def _open_lock(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | own_files.FLAGS, 0o600)
