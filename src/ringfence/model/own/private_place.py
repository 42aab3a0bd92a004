"""The one directory for all that ringfence makes for itself and removes again: private directories of boxes, layers of
runs, texts that are merged, evidence before it is signed.

``TMPDIR/ringfence-UID``, 0700. It is never used if it is a link, somebody else's or open to others, and no guest sees
it, no matter whose box it is (``state_folder.own_places``). It stays when it is empty, so that nobody else takes its
name. A process with another ``TMPDIR`` learns of it in the usual place.
"""

from __future__ import annotations

import os
import stat

from ringfence.errors import SetupError, is_of_a_call
from ringfence.model.own import noted_roots
from ringfence.model.paths import lies_in
from ringfence.model.ways.walk import absolute, itself

BOX = "box-"
"""Prefix of the names of private directories of boxes."""
_USUAL = "/tmp"
_PRIVATE, _REACHED = 0o700, 0o711
_STEP = "make the private directory"
_ELSEWHERE = "set TMPDIR to another directory of your own"


def above() -> str:
    """The directory that it lies in, which the user chooses."""
    if os.name == "nt":
        return absolute(os.environ.get("TEMP") or os.environ.get("TMP") or os.path.expanduser("~"))
    return absolute(os.environ.get("TMPDIR") or _USUAL)


def path() -> str:
    """Where it is, or will be. On Windows the temporary directory itself, which is its owner's only."""
    return above() if os.name == "nt" else _in(above())


def _in(folder: str) -> str:
    return os.path.join(folder, f"ringfence-{os.geteuid()}")


def usual() -> str:
    """The place without a variable set; there other processes learn of this one. Empty: there is no such place."""
    return "" if os.name == "nt" else _in(_USUAL)


def known() -> list[str]:
    """This place, and those of other processes of this user. For a process that runs inside such a directory, e.g. a
    job that starts sandboxes itself: its own alone."""
    if os.name == "nt":
        return []
    # Not through a link of that name: anybody may have made it, and its target is not ours.
    own, others = itself(path()), itself(usual())
    if own != others and lies_in(own, others):
        return [own]
    return list(dict.fromkeys((own, others, *(noted_roots.noted(others) if _is_ours(others) else ()))))


def _is_ours(folder: str) -> bool:
    """Whether nobody else has taken the name: directories that they noted there would be hidden from all guests, and
    left out of all commits."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def made() -> str:
    """Its path; made if it is missing. SetupError if it can't be trusted. Other processes do not know of it yet: use
    ``state_folder.private_place`` to put something into it."""
    found = path()
    if os.name != "nt":
        _make(found)
    return found


def usual_made(found: str) -> str:
    """Make the usual place too, where others learn of this one; empty if they need not: it is the same, or above."""
    others = usual()
    if not others or lies_in(itself(found), itself(others)):
        return ""
    _make(others)
    return others


def let_others_through() -> None:
    """If root's job has an id of its own, it reaches its directory in here by the path. No name in here can be listed
    or guessed, and each is for one id alone."""
    os.chmod(made(), _REACHED)


def _make(folder: str) -> None:
    try:
        os.mkdir(folder, _PRIVATE)
        os.chmod(folder, _PRIVATE)  # whatever the umask
    except FileExistsError:
        _check(folder, os.lstat(folder))
    except OSError as error:
        if not is_of_a_call(error):
            raise
        raise SetupError(_STEP, f"{error.strerror}: {folder}", hint="set TMPDIR to a directory with room") from error


def _check(folder: str, status: os.stat_result) -> None:
    modes = (_PRIVATE, _REACHED) if os.geteuid() == 0 else (_PRIVATE,)
    if not stat.S_ISDIR(status.st_mode):
        raise SetupError(_STEP, f"{folder} is a link or a file, not a directory", hint=f"remove it, or {_ELSEWHERE}")
    if status.st_uid != os.geteuid():
        raise SetupError(_STEP, f"{folder} belongs to another user ({status.st_uid})", hint=_ELSEWHERE)
    if stat.S_IMODE(status.st_mode) not in modes:
        hint = f"look at what is in it, then chmod 700 {folder}"
        raise SetupError(_STEP, f"{folder} is open to other users, or closed to this one", hint=hint)
