"""Where the parts of a transaction lie in its folder, what it is about, and which of its bases a path is in.

Plain data and checks of what the caller gives. Bases are real paths: links on the way to them are resolved once.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from ringfence.checkpoint.store import read_document, write_document
from ringfence.errors import CheckpointError, UsageError
from ringfence.model.paths import within
from ringfence.model.record import record

OVERLAY, SNAPSHOT = "overlay", "snapshot"
_VERSION = 1
_DOCUMENT, _JOURNAL, _WORKSPACE = "transaction.json", "journal.json", "workspace"
_FOLDERS = (_WORKSPACE, "layers", "checkpoints")
Parts = dict[int, tuple[str, ...] | None]
"""Number of a base: paths relative to it, or None for all of it."""


@record
class Layout:
    """A transaction's folder and what it is about."""

    folder: str
    kind: str
    bases: tuple[str, ...]
    hidden: tuple[str, ...]
    """Absolute paths below bases that no job could see: nothing that one did may reach them."""

    @property
    def journal(self) -> str:
        return f"{self.folder}/{_JOURNAL}"

    def layer(self, number: int) -> str:
        """The folder of an overlay's ``upper`` and ``work``."""
        return f"{self.folder}/layers/{number}"

    def store(self, number: int) -> str:
        return f"{self.folder}/checkpoints/{number}"

    def place(self, number: int) -> str:
        """Where a job finds a base."""
        return self.bases[number] if self.kind == OVERLAY else f"{self.store(number)}/work"

    def save(self) -> None:
        document = {"version": _VERSION, "kind": self.kind, "bases": self.bases, "hidden": self.hidden}
        try:
            write_document(f"{self.folder}/{_DOCUMENT}", document)
        except OSError as error:
            raise CheckpointError(f"{self.folder}: {error.strerror}") from error

    def number(self, base: str) -> int:
        for candidate in (base, _real(base)):
            if candidate in self.bases:
                return self.bases.index(candidate)
        raise UsageError(f"{base!r} is none of its folders", hint=f"they are {', '.join(self.bases)}")

    def parts(self, paths: Iterable[str | os.PathLike[str]] | None) -> Parts:
        """Which paths are in which base; without paths, all of all."""
        if paths is None:
            return dict.fromkeys(range(len(self.bases)))
        found: Parts = {}
        for path in paths:
            number, inside = self._find(os.fspath(path))
            before = found.get(number, ())
            found[number] = None if before is None or not inside else (*before, inside)
        return dict(sorted(found.items()))

    def _find(self, path: str) -> tuple[int, str]:
        if not os.path.isabs(path):
            if len(self.bases) > 1:
                raise UsageError(f"{path!r}: which of the folders is it in?", hint="give an absolute path")
            path = os.path.join(self.bases[0], path)
        plain = _slashed(os.path.normpath(path))
        resolved = _itself(plain)
        tops = [*enumerate(self.bases), *((number, self.place(number)) for number in range(len(self.bases)))]
        for candidate in (plain, resolved):
            for number, top in tops:
                if within(candidate, top):
                    return number, candidate[len(top) + 1 :]
        raise UsageError(f"{path!r} is in none of its folders", hint=f"they are {', '.join(self.bases)}")

    def absolute(self, number: int, path: str) -> str:
        return f"{self.bases[number]}/{path}"


def make(folder: str, bases: Iterable[str], kind: str, hidden: Iterable[str]) -> Layout:
    """A new folder, which must not be there yet or be empty and ours; what it is about is not written yet."""
    if kind not in (OVERLAY, SNAPSHOT):
        raise UsageError(f"{kind!r} is no kind of transaction", hint=f"choose {OVERLAY} or {SNAPSHOT}")
    place = _itself(folder)
    real = tuple(_checked_base(os.fspath(base), place) for base in bases)
    _refuse_overlap(real)
    try:
        for each in (os.path.dirname(place), place):  # a new folder of many is nobody else's business either
            os.makedirs(each, mode=0o700, exist_ok=True)
        _refuse_foreign(place)
        if os.listdir(place) and not set(os.listdir(place)) <= {"metadata.json"}:
            raise UsageError(f"{place} is not empty", hint="choose another folder")
        for each in (*_FOLDERS, *(f"layers/{n}" for n in range(len(real) or 1))):
            os.mkdir(f"{place}/{each}", 0o700)
    except OSError as error:
        raise CheckpointError(f"{place}: {error.strerror}") from error
    secrets = _with_itself((_slashed(os.path.abspath(path)) for path in hidden), place, real)
    return Layout(folder=place, kind=kind, bases=real or (f"{place}/{_WORKSPACE}",), hidden=secrets)


def load(folder: str) -> Layout:
    """Of a folder that is there."""
    place = _itself(folder)
    _refuse_foreign(place)
    document = read_document(f"{place}/{_DOCUMENT}")
    if document is None:
        raise CheckpointError(f"{place} is no transaction", hint="it may have been broken off while it was made")
    try:
        if document["version"] != _VERSION or document["kind"] not in (OVERLAY, SNAPSHOT):
            raise ValueError("another version")
        bases, hidden = (tuple(map(_text, document[name])) for name in ("bases", "hidden"))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{place}: {_DOCUMENT} is damaged or of another version ({error})") from error
    return Layout(folder=place, kind=document["kind"], bases=bases, hidden=_with_itself(hidden, place, bases))


def _with_itself(hidden: Iterable[str], place: str, bases: tuple[str, ...]) -> tuple[str, ...]:
    """A transaction that lies in its own base is no part of it."""
    itself = (place for base in bases if within(place, base))
    return tuple(dict.fromkeys((*hidden, *itself)))


def _slashed(path: str) -> str:
    """Windows has another separator, and takes this one too."""
    return path if os.sep == "/" else path.replace(os.sep, "/")


def _real(path: str) -> str:
    return _slashed(os.path.realpath(path))


def _itself(path: str) -> str:
    """A path whose last part is not resolved: a link there is seen as one."""
    above, name = os.path.split(os.path.abspath(path))
    return f"{_real(above).rstrip('/')}/{name}"


def _text(value: object) -> str:
    if not isinstance(value, str) or not os.path.isabs(value):
        raise ValueError(f"{value!r} is no absolute path")
    return value


def _refuse_foreign(place: str) -> None:
    """Somebody else's folder, or a link in its place, is not to be trusted with what commits write."""
    try:
        status = os.lstat(place)
    except FileNotFoundError:
        raise CheckpointError(f"there is no transaction at {place}") from None
    if not stat.S_ISDIR(status.st_mode):
        raise UsageError(f"{place} is a link or a file, no folder", hint="give the folder itself")
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise UsageError(f"{place} belongs to another user ({status.st_uid})")


def _checked_base(base: str, place: str) -> str:
    real = _real(base)
    if not os.path.isdir(real):
        raise UsageError(f"{base}: no such folder", hint="a transaction lies over folders that exist")
    if within(real, place):
        raise UsageError(f"{base} lies in the transaction's own folder", hint="choose another folder for one of them")
    return real


def _refuse_overlap(bases: tuple[str, ...]) -> None:
    for number, base in enumerate(bases):
        for other in bases[number + 1 :]:
            if base == other:
                raise UsageError(f"{base} is given twice", hint="give each folder once")
            if within(base, other) or within(other, base):
                inner, outer = (base, other) if within(base, other) else (other, base)
                raise UsageError(f"{inner} lies in {outer}", hint="give the outer folder only")
