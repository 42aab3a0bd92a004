"""Sandboxes on disk: a directory each, with metadata.json that says what it is; found again after a restart.

    sandbox_root/<id>/metadata.json, and what a transaction keeps beside it (workspace, layers, checkpoints, lock)

The root is ours or root's, and nobody else can replace what is in it. Every name in it is looked at as a name: no link
is followed, and another user's directory is not even opened. A sandbox whose records have no seal of ours is listed as
damaged, and touched only when somebody says so. Listing and cleaning up carry nothing out. The lock tells whether a
sandbox is in use.
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ringfence.checkpoint import layout
from ringfence.checkpoint.finish_interrupted import finish, is_begun
from ringfence.checkpoint.lock import hold
from ringfence.checkpoint.tree import Tree
from ringfence.errors import CheckpointError, ForeignError, SandboxError, UsageError
from ringfence.model import state_folder
from ringfence.model.own_files import check_private, check_shared, make_private, read_regular, write_whole
from ringfence.model.paths import lies_in
from ringfence.model.record import made_by, record
from ringfence.model.system_text import is_system_text
from ringfence.model.ways.walk import real
from ringfence.roles.removal import remove_tree

METADATA = "metadata.json"
QUESTION = "question.txt"
VERSION = 1
MAX_METADATA_BYTES = 4 << 20
_MOST_BYTES = MAX_METADATA_BYTES + 100
"""With the seal."""
_MOST_QUESTION_BYTES = 1 << 30
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_LEAVING, _MAKING = ".leaving-", ".making-"
_MAKING_S = 600.0
_LATEST_S = 2**40
_CLOSED = "check its mode, and those of the directories above it"


@record
class Metadata:
    """What is kept of a sandbox."""

    sandbox_id: str
    created_s: float
    isolation: str
    bases: tuple[str, ...] = ()
    """The directories of the host that it lies over; empty: only its own."""
    command: tuple[str, ...] = ()
    """What it was made for, where that was one command."""
    config: Mapping[str, Any] = made_by(default_factory=dict)
    """A manager's config, as ``SandboxConfig.to_dict`` gives it; empty: it was made by something else."""
    state_data: Mapping[str, Any] = made_by(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        return {"version": VERSION, **plain}


@record
class Damaged:
    """A directory whose metadata can't be read."""

    sandbox_id: str
    problem: str


def new_id() -> str:
    return f"sandbox_{os.urandom(6).hex()}"


class Registry:
    """One directory of sandboxes."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        if not isinstance(root, str | os.PathLike) or not is_system_text(os.fspath(root)):
            raise UsageError(f"{root!r:.80} is not a valid sandbox root")
        if os.fspath(root).startswith("~"):
            raise UsageError(f"{root}: there is no home directory", hint="set HOME or XDG_STATE_HOME, or name a root")
        self.root = real(root)
        if os.path.isdir(self.root):
            check_shared(os.stat(self.root), self.root)

    def _make(self) -> None:
        """The directory itself, for us alone."""
        if lies_in(self.root, real(state_folder.state_folder())):
            state_folder.made()
        make_private(self.root)
        check_shared(os.stat(self.root), self.root)
        state_folder.note_root(self.root)

    def folder(self, sandbox_id: str) -> str:
        if not isinstance(sandbox_id, str) or not _ID.fullmatch(sandbox_id):
            raise UsageError(f"{sandbox_id!r} is not the id of a sandbox")
        return os.path.join(self.root, sandbox_id)

    def add(self, metadata: Metadata) -> str:
        """Make its directory; nobody else may look into it."""
        making = self.making()
        folder = self.folder(metadata.sandbox_id)
        try:
            self._make()
            make_private(making)
            self.take(making, metadata)
        except OSError as error:
            hint = "choose a sandbox_root that you can write to"
            raise SandboxError(f"{folder}: {error.strerror}", hint=hint) from error
        return folder

    def making(self) -> str:
        """A place for a directory that will become a sandbox; ``sweep`` removes it if it never does."""
        return os.path.join(self.root, f"{_MAKING}{os.urandom(6).hex()}")

    def take(self, making: str, metadata: Metadata) -> str:
        """Make a sandbox of what was made at such a place; FileExistsError if the id is taken."""
        folder = self.folder(metadata.sandbox_id)
        if os.path.lexists(folder):
            raise FileExistsError(17, "the id is already in use", folder)
        tree = Tree(making, resolve=False)
        try:
            _write(tree, metadata)
        finally:
            tree.close()
        os.rename(making, folder)
        return folder

    def write(self, metadata: Metadata) -> None:
        with self._open(metadata.sandbox_id) as tree:
            try:
                _write(tree, metadata)
            except OSError as error:
                raise SandboxError(f"{tree.path}: {error.strerror}") from error

    def opened(self, sandbox_id: str) -> Tree:
        """The directory of a sandbox, from which everything in it is opened; UsageError if it is not ours alone."""
        folder = self.folder(sandbox_id)
        if not os.path.lexists(folder):
            raise UsageError(f"no sandbox {sandbox_id} in {self.root}", hint=self._nearest(sandbox_id))
        check_shared(os.stat(self.root), self.root)
        tree = Tree(folder, resolve=False)
        try:
            check_private(os.stat(tree.top), folder)
        except BaseException:
            tree.close()
            raise
        return tree

    @contextmanager
    def _open(self, sandbox_id: str) -> Iterator[Tree]:
        tree = self.opened(sandbox_id)
        try:
            yield tree
        finally:
            tree.close()

    def read(self, sandbox_id: str) -> Metadata:
        """SandboxError says what is wrong with a damaged one; UsageError names the nearest id if there is none."""
        with self._open(sandbox_id) as tree:
            return self.read_in(tree, sandbox_id)

    def read_in(self, tree: Tree, sandbox_id: str, *, trust: bool = False) -> Metadata:
        """The same by a directory that is open; ForeignError if we did not write it, unless it is trusted."""
        seal = layout.documents_of(tree).seal
        try:
            text = _text(tree)
            return _metadata(text if trust else seal.opened(METADATA, text), sandbox_id, tree)
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            problem = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            place = os.path.join(tree.path, METADATA)
            raise SandboxError(f"{place} can't be read ({problem})", hint=f"fix it, or remove {tree.path}") from error

    def trust(self, sandbox_id: str) -> Metadata:
        """Treat what is there as ours from now on, including what was interrupted in it. Only if a person says so."""
        with self._open(sandbox_id) as tree:
            metadata = self.read_in(tree, sandbox_id, trust=True)
            held = hold(tree)
            try:
                layout.reseal(layout.documents_of(tree))
                _write(tree, metadata)
            except OSError as error:
                raise SandboxError(f"{tree.path}: {error.strerror}") from error
            finally:
                held.release()
        return metadata

    def _nearest(self, sandbox_id: str) -> str:
        from difflib import get_close_matches

        try:
            near = get_close_matches(sandbox_id, self._names(), n=1)
        except SandboxError:
            near = []  # there is another problem to tell
        return f"did you mean {near[0]}?" if near else ""

    def _names(self) -> Iterator[str]:
        """SandboxError if that can't be told: a root that is closed to us is not an empty one."""
        try:
            with os.scandir(self.root) as found:
                names = [entry.name for entry in found if entry.is_dir(follow_symlinks=False) and _is_owned(entry)]
        except FileNotFoundError:
            names = []
        except OSError as error:
            raise SandboxError(f"{self.root}: {error.strerror}", hint=_CLOSED) from error
        return (name for name in sorted(names) if _ID.fullmatch(name) and self._holds(name))

    def _holds(self, name: str) -> bool:
        """A directory that has something at metadata.json; other directories are somebody else's. One that is closed to
        us may have it: reading it reports that."""
        try:
            os.lstat(os.path.join(self.root, name, METADATA))
        except OSError as error:
            return error.errno == errno.EACCES
        return True

    def all(self) -> Iterator[Metadata | Damaged]:
        """A damaged sandbox does not stop the others."""
        for name in self._names():
            try:
                yield self.read(name)
            except ForeignError as error:
                yield Damaged(sandbox_id=name, problem=f"{error} ({error.hint})")
            except SandboxError as error:
                yield Damaged(sandbox_id=name, problem=str(error))

    def touch(self, sandbox_id: str) -> None:
        """Note that it was used just now."""
        try:
            os.utime(os.path.join(self.folder(sandbox_id), METADATA), follow_symlinks=os.name == "nt")
        except OSError:
            pass  # it is being removed

    def keep_question(self, sandbox_id: str, text: str) -> None:
        """Keep the whole text that an operator is asked about beside the metadata, as long as the sandbox exists."""
        with self._open(sandbox_id) as tree:
            name, where = tree.at(QUESTION)
            write_whole(name, text.encode("utf-8", "replace"), **where)

    def question(self, sandbox_id: str) -> str:
        """The last text that was kept; empty: there was none."""
        with self._open(sandbox_id) as tree:
            name, where = tree.at(QUESTION)
            try:
                data, _ = read_regular(name, _MOST_QUESTION_BYTES, **where)
            except FileNotFoundError:
                return ""
        return data.decode("utf-8", "replace")

    def idle_hours(self, sandbox_id: str) -> float:
        """How long nobody has used it."""
        try:
            return _age_s(os.path.join(self.folder(sandbox_id), METADATA)) / 3600
        except OSError:
            return 0.0

    def remove_unused(self, sandbox_id: str, *, force: bool = True) -> bool:
        """BusyError if somebody holds it; UsageError if it is not a sandbox: nothing that is not ours is removed.

        One in which something was broken off stays. ``force``: remove it anyway, on request; what we began ourselves is
        finished first, if possible, and the return value says so.
        """
        folder = self.folder(sandbox_id)
        if os.path.islink(folder) or not os.path.isdir(folder):
            raise UsageError(f"no sandbox {sandbox_id} in {self.root}", hint=self._nearest(sandbox_id))
        with self._open(sandbox_id) as tree:
            if not self._is_ours(sandbox_id):
                raise UsageError(f"{folder} is not a sandbox", hint="remove it by hand if it is not needed")
            finished = force and finish(folder)
            if not force and is_begun(folder):
                raise CheckpointError(f"an operation was interrupted in {folder}", hint="attach or destroy the sandbox")
            held = hold(tree)
            if os.name == "nt":
                held.release()  # nobody has it; what is open can't be moved there
            try:
                self.remove(sandbox_id)
            finally:
                held.release()
        return finished

    def _is_ours(self, sandbox_id: str) -> bool:
        """Damaged metadata beside a transaction is ours; a metadata.json alone need not be."""
        try:
            self.read(sandbox_id)
        except SandboxError:
            return os.path.isfile(os.path.join(self.folder(sandbox_id), "transaction.json"))
        return True

    def remove(self, sandbox_id: str) -> None:
        """It is gone at once, its contents as soon as they are removed; ``sweep`` finishes what was broken off."""
        leaving = os.path.join(self.root, f"{_LEAVING}{os.urandom(6).hex()}")
        try:
            os.rename(self.folder(sandbox_id), leaving)
            remove_tree(leaving)
        except FileNotFoundError:
            return
        except OSError as error:
            problem = f"{leaving} could not be removed ({error.strerror})"
            raise SandboxError(problem, hint="remove it by hand") from error

    def sweep(self) -> None:
        """Finish what was broken off: removals, and sandboxes that never were."""
        for name in self._listed():
            path = os.path.join(self.root, name)
            try:
                if name.startswith(_LEAVING) or _age_s(path) > _MAKING_S:
                    remove_tree(path)
            except OSError:
                pass  # another process is working on it, or it isn't ours to remove

    def _listed(self) -> Iterable[str]:
        """Unfinished directories that are ours: in a shared root others have theirs."""
        try:
            with os.scandir(self.root) as found:
                return [each.name for each in found if each.name.startswith((_LEAVING, _MAKING)) and _is_owned(each)]
        except OSError:
            return ()


def _write(tree: Tree, metadata: Metadata) -> None:
    text = json.dumps(metadata.to_dict(), indent=1)
    if len(text) > MAX_METADATA_BYTES:
        problem = f"{METADATA} of {len(text)} bytes would never be read again; {MAX_METADATA_BYTES} are the most"
        raise UsageError(problem, hint="keep less in state_data, and the rest in a file")
    seal = layout.documents_of(tree).seal
    name, where = tree.at(METADATA)
    write_whole(name, seal.sealed(METADATA, text).encode(), **where)


def _age_s(path: str) -> float:
    return time.time() - os.lstat(path).st_mtime


def _is_owned(entry: os.DirEntry[str]) -> bool:
    """Checked first, so that another user's directory costs nothing."""
    try:
        return not hasattr(os, "geteuid") or entry.stat(follow_symlinks=False).st_uid == os.geteuid()
    except FileNotFoundError:
        return False


def _text(tree: Tree) -> str:
    name, where = tree.at(METADATA)
    raw, _ = read_regular(name, _MOST_BYTES, **where)
    if len(raw) > _MOST_BYTES:
        raise ValueError(f"larger than {_MOST_BYTES} bytes")
    return raw.decode("utf-8")


def _metadata(text: str, sandbox_id: str, tree: Tree) -> Metadata:
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError("not a JSON object")
    values.pop("seal", None)
    layout.refuse_other_format(os.path.join(tree.path, METADATA), values.pop("version", None), VERSION)
    for name, kind in _KINDS.items():
        if not isinstance(values.get(name, _EMPTY.get(name)), kind):
            raise ValueError(f"{name}: {values.get(name)!r}")
    if isinstance(values["created_s"], bool) or not 0 <= values["created_s"] < _LATEST_S:
        raise ValueError("created_s must be a number of seconds")
    if values["sandbox_id"] != sandbox_id:
        raise ValueError(f"it is the metadata of {values['sandbox_id']!r}")
    texts = {name: tuple(map(str, values.get(name, ()))) for name in ("bases", "command")}
    return Metadata(**{**values, **texts})


_KINDS: dict[str, Any] = {
    "sandbox_id": str, "created_s": int | float, "isolation": str, "bases": list, "command": list, "config": dict,
    "state_data": dict,
}  # fmt: skip
_EMPTY: dict[str, object] = {"bases": [], "command": [], "config": {}, "state_data": {}}
