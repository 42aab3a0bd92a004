"""The directory that outlives every process: sandboxes, recordings, and the key that proves which records are ours.

``$XDG_STATE_HOME/ringfence``, 0700. Nothing is made before it is needed. No guest sees it (``sandbox/hiding``).
"""

from __future__ import annotations

import os
from _collections_abc import Collection, Iterable

from ringfence.errors import SandboxError, UsageError
from ringfence.model import own_files
from ringfence.model.mounted_names import every_name
from ringfence.model.own import noted_roots
from ringfence.model.own import private_place as places
from ringfence.model.paths import lies_in, within
from ringfence.model.ways.walk import absolute, real, walk

_NAME = "ringfence"
_IN_A_HOME = os.path.join(".local", "state", _NAME)
IMAGES = "images"
"""The directory in it with the unpacked roots of images (``container/images``), each in a directory of its own."""
_KEY, _KEY_BYTES = "key", 32
_keys: dict[str, bytes] = {}


def state_folder() -> str:
    """Its path; a relative ``XDG_STATE_HOME`` is ignored, as that standard says."""
    return _named() or _usual()


def _named() -> str:
    """The one that the variable names; empty: none."""
    state = os.environ.get("XDG_STATE_HOME", "")
    # Records are sealed for the place that they lie in.
    return os.path.join(absolute(state), _NAME) if os.path.isabs(state) else ""


def _usual() -> str:
    """The directory if no variable is set. Asked for with each job: ``expanduser`` only where it knows more."""
    home = (os.environ.get("HOME") if os.name == "posix" else "") or os.path.expanduser("~")
    if not os.path.isabs(home):  # the home is unknown; otherwise we would use a directory «~» in the current one
        raise UsageError("there is no home directory to keep it in", hint="set HOME or XDG_STATE_HOME")
    return os.path.join(absolute(home), _IN_A_HOME)


def own_places() -> tuple[str, ...]:
    """Its real path, by every name that mounts give it, and the links on the way to it; directories that were noted,
    and the private places.

    Whoever replaces such a link decides which key is ours. Without a home there are only the private places.
    """
    tops = _state_folders()
    ways = [walk(top) for top in tops]
    roots = [*(way.end for way in ways), *(root for top in tops for root in noted_roots.noted(top)), *places.known()]
    links = (link for way in ways for link in way.links)
    return tuple(dict.fromkeys((*every_name(*dict.fromkeys(roots)), *links)))


def own_stamp() -> tuple[object, ...]:
    """A stamp that changes once a directory was noted: cheaper than looking them all up."""
    return tuple(map(noted_roots.stamp, (*_state_folders(), places.usual())))


def _state_folders() -> list[str]:
    """This directory, and the usual one if it exists: other programs of the same user use it."""
    named = _named()
    try:
        usual = _usual()
    except UsageError:  # there is no home
        return [named] if named else []
    if named in ("", usual):
        return [usual]
    return [named, usual] if os.path.lexists(usual) else [named]


def refuse_ours(ours: tuple[str, ...], shown: Iterable[str], writable: Collection[str]) -> None:
    """UsageError if a guest would get a directory of ours: nothing can be hidden in what a guest writes directly."""
    led = {path: real(path) for path in (*shown, *writable)}
    for path, place in led.items():
        for own in ours:
            if within(place, own):
                raise UsageError(f"{path} is in a directory of ringfence's own ({own})", hint="name another")
    for path in writable:
        for own in ours:
            if within(own, led[path]):
                hint = "name directories below it, or move that elsewhere: XDG_STATE_HOME, TMPDIR"
                raise UsageError(f"{path} holds {own}, which no guest may write", hint=hint)


def private_place() -> str:
    """The directory for what is made and removed again (``own.private_place``): known to all other processes of this
    user before there is anything in it."""
    found = places.made()
    try:
        usual = places.usual_made(found)
        if usual:
            noted_roots.note(usual, real(found))
    except (OSError, SandboxError):  # somebody has taken that name, or there is no such directory
        note_root(real(found))
    return found


def keep_in(workspace: str, ours: tuple[str, ...]) -> None:
    """Make the directory: else a guest could make it, and a commit would carry it over with a key that the guest
    knows."""
    try:
        state_folder()
    except UsageError:
        return  # there is no home, and so no key
    if any(within(own, workspace) for own in ours):
        made()


def is_image_root(path: str) -> bool:
    """Whether it lies in the root of an image: the one thing of ours that guests work on, over a layer."""
    try:
        top = os.path.join(real(state_folder()), IMAGES)
    except UsageError:
        return False
    return path.startswith(f"{top}/") and len(path[len(top) + 1 :].split("/")) > 1


def note_root(path: str) -> None:
    """Remember a directory of ours that lies elsewhere, before anything is in it: from now on no guest sees it, no
    matter who runs one. UsageError if that fails."""
    top = made()
    if lies_in(path, real(top)):
        return
    try:
        noted_roots.note(top, path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint="set XDG_STATE_HOME to a directory of your own") from error


def forget_in(path: str) -> None:
    """Forget what was noted in a directory that has been removed: a guest may be given that place now."""
    top = state_folder()
    below = [root for root in noted_roots.noted(top) if within(root, path)]
    if below:
        noted_roots.forget(top, below)


def sandboxes_folder() -> str:
    return os.path.join(state_folder(), "sandboxes")


def made(name: str = "") -> str:
    """A directory in it, or itself, for us alone; made if it is missing."""
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
        raise UsageError(f"{top}: {error.strerror}", hint="set XDG_STATE_HOME to a directory of your own") from error
    return os.path.join(top, name) if name else top


def key() -> bytes:
    """The secret that seals records; made once for each state directory, and never shown to a guest."""
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
        raise UsageError(f"{path} is not a key of ringfence's own, or others can read it",
                         hint="remove it; then each kept sandbox must be trusted again")  # fmt: skip
    return found


def _is_ours_alone(status: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or (status.st_uid == os.geteuid() and not status.st_mode & 0o077)


def _new(top: str) -> bytes:
    """By a hard link, so that two processes that make a key at the same time get the same one."""
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
        raise UsageError(f"{path}: {error.strerror}", hint="set XDG_STATE_HOME to a directory of your own") from error
    return _read(top)
