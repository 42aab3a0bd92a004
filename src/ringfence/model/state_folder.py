"""The folder that outlives every process: sandboxes, recordings, and the key that tells our records from others'.

``$XDG_STATE_HOME/ringfence``, 0700. Nothing is made before it is needed. No guest sees it (``sandbox/hiding``).
"""

from __future__ import annotations

import os
from _collections_abc import Collection, Iterable

from ringfence.errors import UsageError
from ringfence.model import own_files
from ringfence.model.mounted_names import every_name
from ringfence.model.paths import within
from ringfence.model.ways.walk import real, walk

IMAGES = "images"
"""The folder in it with the unpacked roots of images (``container/images``), each in a folder of its own."""
_KEY, _KEY_BYTES = "key", 32
_ROOTS, _ROOTS_BYTES = "roots", 1 << 20
_keys: dict[str, bytes] = {}


def state_folder() -> str:
    """Its path; a relative ``XDG_STATE_HOME`` counts as none, as that standard has it."""
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        state = os.path.join(os.path.expanduser("~"), ".local", "state")
    if not os.path.isabs(state):  # nobody knows a home; else it would be a folder «~» in the current one
        raise UsageError("there is no home folder to keep it in", hint="set HOME or XDG_STATE_HOME")
    return os.path.join(os.path.normpath(state), "ringfence")  # records are sealed for the place that they lie in


def own_places() -> tuple[str, ...]:
    """Where links on the way to it lead, by every name that mounts give it, and those links themselves.

    Whoever replaces such a link decides which key is ours. Nothing where there is no home.
    """
    try:
        path = state_folder()
    except UsageError:
        return ()
    way = walk(path)
    return tuple(dict.fromkeys((*every_name(way.end, *_noted_roots(path)), *way.links)))


def refuse_ours(ours: tuple[str, ...], shown: Iterable[str], writable: Collection[str]) -> None:
    """UsageError where a guest would be given a folder of ours: nothing can be hidden in what it writes directly."""
    places = {path: real(path) for path in (*shown, *writable)}
    for path, place in places.items():
        for own in ours:
            if within(place, own):
                raise UsageError(f"{path} lies in a folder of ringfence's own ({own})", hint="name another folder")
    for path in writable:
        for own in ours:
            if within(own, places[path]):
                hint = "name folders below it, or keep the records elsewhere: XDG_STATE_HOME"
                raise UsageError(f"{path} holds {own}, which no guest may write", hint=hint)


def is_image_root(path: str) -> bool:
    """Whether it lies in the root of an image: of all that is ours the one thing that guests work on, over a layer."""
    try:
        top = os.path.join(real(state_folder()), IMAGES)
    except UsageError:
        return False
    return path.startswith(f"{top}/") and len(path[len(top) + 1 :].split("/")) > 1


def note_root(path: str) -> None:
    """Remember a folder of sandboxes that lies elsewhere: from now on no guest sees it, whoever runs one."""
    top = made()
    if within(path, real(top)) or path in _noted_roots(top):
        return
    descriptor = own_files.open_private(top)
    try:
        _lock(descriptor)
        known = _noted_roots(top)  # those that are gone are forgotten
        data = b"".join(os.fsencode(each) + b"\0" for each in dict.fromkeys((*known, path)))
        own_files.write_whole(os.path.join(top, _ROOTS), data)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    """Two processes that note one at the same time lose nothing; it ends with the descriptor."""
    try:
        import fcntl
    except ImportError:
        return  # not POSIX
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def _noted_roots(top: str) -> list[str]:
    """Those that are still there."""
    try:
        found, _ = own_files.read_regular(os.path.join(top, _ROOTS), _ROOTS_BYTES)
    except (OSError, UsageError):
        return []
    paths = dict.fromkeys(os.fsdecode(path) for path in found.split(b"\0") if os.path.isabs(path))
    return [path for path in paths if os.path.isdir(path)]


def sandboxes_folder() -> str:
    return os.path.join(state_folder(), "sandboxes")


def made(name: str = "") -> str:
    """A folder in it, or itself, for us alone; made where it is missing."""
    top = state_folder()
    try:
        own_files.make_private(top)
        descriptor = own_files.open_private(top)
        try:
            if os.name == "posix" and os.fstat(descriptor).st_mode & 0o077:
                os.fchmod(descriptor, 0o700)
        finally:
            os.close(descriptor)
        if name:
            own_files.make_private(os.path.join(top, name))
            os.close(own_files.open_private(os.path.join(top, name)))
    except OSError as error:
        raise UsageError(f"{top}: {error.strerror}", hint="set XDG_STATE_HOME to a folder of your own") from error
    return os.path.join(top, name) if name else top


def key() -> bytes:
    """The secret that seals records; made once for each state folder, and never shown to a guest."""
    top = made()
    if top not in _keys:
        _keys[top] = _read(top) or _new(top)
    return _keys[top]


def _read(top: str) -> bytes:
    """Empty where there is none yet."""
    path = os.path.join(top, _KEY)
    try:
        found, status = own_files.read_regular(path, _KEY_BYTES)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    if len(found) != _KEY_BYTES or not _is_ours_alone(status):
        raise UsageError(f"{path} is no key of ours, or others can read it",
                         hint="remove it; then each kept sandbox must be trusted anew")  # fmt: skip
    return found


def _is_ours_alone(status: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or (status.st_uid == os.geteuid() and not status.st_mode & 0o077)


def _new(top: str) -> bytes:
    """By a hard link, so that of two processes that make one at the same time both have the same."""
    path = os.path.join(top, _KEY)
    try:
        descriptor, beside = own_files.new_beside(path)
        try:
            with open(descriptor, "wb") as file:
                file.write(os.urandom(_KEY_BYTES))
            os.link(beside, path)
        except FileExistsError:
            pass
        finally:
            os.unlink(beside)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint="set XDG_STATE_HOME to a folder of your own") from error
    return _read(top)
