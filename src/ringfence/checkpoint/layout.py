"""Where the parts of a transaction lie in its directory, what it is about, and which of its bases a path is in.

Plain data and checks of what the caller gives. Bases are real paths: links on the way to them are resolved once.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from ringfence.checkpoint.late import LATE_FILE
from ringfence.checkpoint.records.documents import Documents
from ringfence.checkpoint.records.seal import JOURNAL_FILE, Seal
from ringfence.checkpoint.store import Store
from ringfence.checkpoint.tree import LAYER_MODE, Tree
from ringfence.errors import CheckpointError, UsageError
from ringfence.model.mounted_names import every_name
from ringfence.model.own_files import check_private, make_private
from ringfence.model.paths import within
from ringfence.model.record import record
from ringfence.model.state_folder import is_image_root, note_root, own_places
from ringfence.model.ways.walk import absolute, itself, real

OVERLAY, SNAPSHOT = "overlay", "snapshot"
_VERSION = 1
_DOCUMENT, _WORKSPACE = "transaction.json", "workspace"
_STORES = "checkpoints"
_FOLDERS = (_WORKSPACE, "layers", _STORES)
Parts = dict[int, tuple[str, ...] | None]
"""Number of a base: paths relative to it, or None for all of it."""


@record
class Layout:
    """A transaction's directory and what it is about."""

    folder: str
    kind: str
    bases: tuple[str, ...]
    hidden: tuple[str, ...]
    """Absolute paths below bases that no job could see: nothing that a job did may reach them."""
    documents: Documents
    """The documents of the directory itself, by the descriptor from which everything in it is opened."""
    root: str = ""
    """The directory that holds it among others; no job sees any of them. Empty: it stands alone."""

    @property
    def ours(self) -> tuple[str, ...]:
        """What is hidden from jobs wherever it lies."""
        return _ours(self.root or self.folder)

    @property
    def tree(self) -> Tree:
        return self.documents.tree

    def is_begun(self) -> bool:
        """Whether an operation was broken off in it."""
        return is_begun(self.documents)

    def open_store(self, number: int) -> Store:
        name = f"{_STORES}/{number}"
        self.tree.make(name)
        return Store(self.tree.below(name), self.documents.seal, f"{name}/")

    def open_upper(self, number: int) -> Tree:
        """The directory that overlayfs writes; its top is what a job sees as the base itself."""
        for name in ("upper", "work"):
            self.tree.make(f"layers/{number}/{name}", LAYER_MODE)
        return self.tree.below(f"layers/{number}/upper")

    def layer(self, number: int) -> str:
        """The directory of an overlay's ``upper`` and ``work``."""
        return f"{self.folder}/layers/{number}"

    def store(self, number: int) -> str:
        return f"{self.folder}/{_STORES}/{number}"

    def place(self, number: int) -> str:
        """Where a job finds a base."""
        return self.bases[number] if self.kind == OVERLAY else f"{self.store(number)}/work"

    def save(self) -> None:
        document = {"version": _VERSION, "kind": self.kind, "bases": self.bases, "hidden": self.hidden,
                    "root": self.root}  # fmt: skip
        try:
            self.documents.write(_DOCUMENT, document)
        except OSError as error:
            raise CheckpointError(f"{self.folder}: {error.strerror}") from error

    def number(self, base: str) -> int:
        for candidate in (base, _real(base)):
            if candidate in self.bases:
                return self.bases.index(candidate)
        raise UsageError(f"{base!r} is not one of its directories", hint=f"they are {', '.join(self.bases)}")

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
                raise UsageError(f"{path!r} is ambiguous: it may be in several directories",
                                 hint="give an absolute path")  # fmt: skip
            path = os.path.join(self.bases[0], path)
        plain = _slashed(os.path.normpath(path))
        resolved = _itself(plain)
        tops = [*enumerate(self.bases), *((number, self.place(number)) for number in range(len(self.bases)))]
        for candidate in (plain, resolved):
            for number, top in tops:
                if within(candidate, top):
                    return number, candidate[len(top) + 1 :]
        raise UsageError(f"{path!r} is in none of its directories", hint=f"they are {', '.join(self.bases)}")

    def absolute(self, number: int, path: str) -> str:
        return f"{self.bases[number]}/{path}"


def make(folder: str, bases: Iterable[str], kind: str, hidden: Iterable[str], root: str = "") -> Layout:
    """A new directory, which must not exist yet, or be empty and ours; its document is not written yet."""
    if kind not in (OVERLAY, SNAPSHOT):
        raise UsageError(f"{kind!r} is not a kind of transaction", hint=f"choose {OVERLAY} or {SNAPSHOT}")
    place, root = _itself(folder), _real(root) if root else ""
    real = tuple(_checked_base(os.fspath(base), (place, *_ours(root or place))) for base in bases)
    _refuse_overlap(real)
    try:
        make_private(place)
        documents = _opened(place)
        if not set(documents.tree.names("")) <= {"metadata.json"}:
            documents.tree.close()
            raise UsageError(f"{place} is not empty", hint="choose another directory")
        note_root(root or place)
        for each in (*_FOLDERS, *(f"layers/{n}" for n in range(len(real) or 1))):
            documents.tree.make(each)
    except OSError as error:
        raise CheckpointError(f"{place}: {error.strerror}") from error
    paths = [_slashed(absolute(path)) for path in hidden]
    return _layout(documents, kind, real or (f"{place}/{_WORKSPACE}",), paths, root)


def load(place: Documents) -> Layout:
    """The layout of an existing directory; ForeignError if somebody else has written its document."""
    document = place.read(_DOCUMENT)
    if document is None:
        raise CheckpointError(f"{place.tree.path} is not a transaction",
                              hint="it may have been interrupted while it was made")  # fmt: skip
    refuse_other_format(place.path(_DOCUMENT), document.get("version"), _VERSION)
    try:
        if document["kind"] not in (OVERLAY, SNAPSHOT):
            raise ValueError("an unknown kind")
        bases, hidden = (tuple(map(_text, document[name])) for name in ("bases", "hidden"))
        return _layout(place, document["kind"], bases, hidden, str(document.get("root", "")))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{place.tree.path}: {_DOCUMENT} is damaged ({error})") from error


def refuse_other_format(path: str, found: object, known: int) -> None:
    """What another version stored in its own way is not guessed at, but it can be thrown away."""
    if found != known or isinstance(found, bool):
        problem = f"{path} is of format {found!r}, and this ringfence reads format {known}: another version wrote it"
        raise CheckpointError(problem, hint="commit it with that version, or discard it")


def opened(folder: str) -> Documents:
    """The documents of a transaction's directory, by a descriptor: it is not a link, and nobody else can write it."""
    return _opened(_itself(folder))


def hide_from_guests(plan: Layout) -> None:
    """For an existing directory: it may have been moved here, or be known to another state directory only."""
    note_root(plan.root if plan.root and within(plan.folder, plan.root) else plan.folder)


def is_begun(place: Documents) -> bool:
    """Whether there is a journal, ours or not."""
    status = place.tree.status(_STORES)
    numbers = place.tree.names(_STORES) if status is not None and stat.S_ISDIR(status.st_mode) else []
    return any(map(place.holds, (JOURNAL_FILE, *(f"{_STORES}/{each}/{JOURNAL_FILE}" for each in numbers))))


def documents_of(tree: Tree) -> Documents:
    """The same for a directory that is open."""
    return Documents(tree, Seal(tree.path, tree.identity[1]))


def reseal(place: Documents) -> None:
    """Treat everything in it as if we had written it, including an operation that was broken off."""
    for name in (_DOCUMENT, JOURNAL_FILE, LATE_FILE):
        place.reseal(name)
    plan = load(place)
    for number in range(len(plan.bases)):
        store = plan.open_store(number)
        store.reseal()
        store.close()


def _layout(
    documents: Documents, kind: str, bases: tuple[str, ...], hidden: Iterable[str], root: str
) -> Layout:
    """Our own directories are no part of a base that they lie in."""
    place = documents.tree.path
    itself = (ours for ours in (place, *_ours(root or place)) for base in bases if within(ours, base))
    return Layout(folder=place, kind=kind, bases=bases, hidden=tuple(dict.fromkeys((*hidden, *itself))), root=root,
                  documents=documents)  # fmt: skip


def _ours(root: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*every_name(root), *map(_slashed, own_places()))))


def _slashed(path: str) -> str:
    """Windows has another separator, and takes this one too."""
    return path if os.sep == "/" else path.replace(os.sep, "/")


def _real(path: str) -> str:
    return _slashed(real(path))


def _itself(path: str) -> str:
    """A path whose last part is not resolved: a link there is seen as one."""
    return _slashed(itself(absolute(path)))


def _text(value: object) -> str:
    if not isinstance(value, str) or not os.path.isabs(value):
        raise ValueError(f"{value!r} is not an absolute path")
    return value


def _opened(place: str) -> Documents:
    """Somebody else's directory, or a link in its place, is not to be trusted with what commits write."""
    try:
        if not stat.S_ISDIR(os.lstat(place).st_mode):
            raise UsageError(f"{place} is a link or a file, not a directory", hint="give the directory itself")
    except FileNotFoundError:
        raise CheckpointError(f"there is no transaction at {place}") from None
    tree = Tree(place, resolve=False)
    try:
        check_private(os.stat(tree.top), place)
    except BaseException:
        tree.close()
        raise
    return documents_of(tree)


def _checked_base(base: str, ours: tuple[str, ...]) -> str:
    real = _real(base)
    if not os.path.isdir(real):
        raise _no_folder(base, real)
    for each in ours:
        if within(real, each) and not is_image_root(real):
            raise UsageError(f"{base} is in a directory of ringfence's own ({each})",
                             hint="choose another place for one of them")  # fmt: skip
    return real


def _no_folder(base: str, real: str) -> UsageError:
    """With what is there, or the nearest name."""
    above, name = os.path.split(real)
    if os.path.lexists(real):
        hint = f"give the directory that it is in, {above}; a file that is only read needs no layer"
        return UsageError(f"{base} is a file, and a layer is based on directories", hint=hint)
    from difflib import get_close_matches

    try:
        near = get_close_matches(name, os.listdir(above), n=1)
    except OSError:
        near = []
    hint = f"did you mean {os.path.join(above, near[0])}?" if near else "a transaction needs directories that exist"
    return UsageError(f"{base}: no such directory", hint=hint)


def _refuse_overlap(bases: tuple[str, ...]) -> None:
    for number, base in enumerate(bases):
        for other in bases[number + 1 :]:
            if base == other:
                raise UsageError(f"{base} is given twice", hint="give each directory once")
            if within(base, other) or within(other, base):
                inner, outer = (base, other) if within(base, other) else (other, base)
                raise UsageError(f"{inner} is in {outer}", hint="give the outer directory only")
