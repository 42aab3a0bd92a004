"""Sandboxes on disk: a folder each, with metadata.json that says what it is; found again after a restart.

    sandbox_root/<id>/metadata.json, and what a transaction keeps beside it (workspace, layers, checkpoints, lock)

Every name in the root is looked at as a name: no link is followed, and what is not ours is left alone. What
metadata.json says is the word of whoever can write there: it is checked, and never more than data. Whether a sandbox is
in use is the lock's to say.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from ringfence.checkpoint.leaving import finish
from ringfence.checkpoint.lock import hold
from ringfence.errors import SandboxError, UsageError
from ringfence.posix.removal import remove_tree

METADATA = "metadata.json"
VERSION = 1
MAX_METADATA_BYTES = 4 << 20
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_LEAVING, _MAKING = ".leaving-", ".making-"
_MAKING_S = 600.0
_LATEST_S = 2**40


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """What is kept of a sandbox."""

    sandbox_id: str
    created_s: float
    isolation: str
    bases: tuple[str, ...] = ()
    """The folders of the host that it lies over; empty: only its own."""
    command: tuple[str, ...] = ()
    """What it was made for, where that was one command."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """A manager's, as ``SandboxConfig.to_dict`` gives it; empty: it was made by something else."""
    state_data: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        return {"version": VERSION, **plain}


@dataclass(frozen=True, kw_only=True)
class Damaged:
    """A folder whose metadata can't be read."""

    sandbox_id: str
    problem: str


def new_id() -> str:
    return f"sandbox_{os.urandom(6).hex()}"


class Registry:
    """One folder of sandboxes."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        try:
            self.root = os.path.realpath(root)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{root!r:.80} can be no folder of sandboxes") from error

    def folder(self, sandbox_id: str) -> str:
        if not isinstance(sandbox_id, str) or not _ID.fullmatch(sandbox_id):
            raise UsageError(f"{sandbox_id!r} is not the id of a sandbox")
        return os.path.join(self.root, sandbox_id)

    def add(self, metadata: Metadata) -> str:
        """Make its folder; nobody else may look into it."""
        making = self.making()
        folder = self.folder(metadata.sandbox_id)
        try:
            os.makedirs(self.root, mode=0o755, exist_ok=True)
            os.mkdir(making, 0o700)
            self.take(making, metadata)
        except OSError as error:
            hint = "choose a sandbox_root that can be written"
            raise SandboxError(f"{folder}: {error.strerror}", hint=hint) from error
        return folder

    def making(self) -> str:
        """A place for a folder that is to become a sandbox; ``sweep`` removes it if it never does."""
        return os.path.join(self.root, f"{_MAKING}{os.urandom(6).hex()}")

    def take(self, making: str, metadata: Metadata) -> str:
        """Make a sandbox of what has been made at such a place; FileExistsError where the id is taken."""
        folder = self.folder(metadata.sandbox_id)
        if os.path.lexists(folder):
            raise FileExistsError(17, "the id is taken", folder)
        _write(making, metadata)
        os.rename(making, folder)
        return folder

    def write(self, metadata: Metadata) -> None:
        folder = self.folder(metadata.sandbox_id)
        try:
            _write(folder, metadata)
        except OSError as error:
            raise SandboxError(f"{folder}: {error.strerror}") from error

    def read(self, sandbox_id: str) -> Metadata:
        """SandboxError says what is wrong with a damaged one; UsageError names the nearest where there is none."""
        folder = self.folder(sandbox_id)
        if not os.path.lexists(folder):
            raise UsageError(f"no sandbox {sandbox_id} in {self.root}", hint=self._nearest(sandbox_id))
        try:
            return _metadata(_text(folder), sandbox_id)
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            problem = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            place = os.path.join(folder, METADATA)
            raise SandboxError(f"{place} can't be read ({problem})", hint=f"mend it, or remove {folder}") from error

    def _nearest(self, sandbox_id: str) -> str:
        near = get_close_matches(sandbox_id, self._names(), n=1)
        return f"did you mean {near[0]}?" if near else ""

    def _names(self) -> Iterator[str]:
        try:
            with os.scandir(self.root) as found:
                names = [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]
        except OSError:
            names = []
        return (name for name in sorted(names) if _ID.fullmatch(name) and self._holds(name))

    def _holds(self, name: str) -> bool:
        """A folder with something in the place of metadata.json; others are somebody else's."""
        return os.path.lexists(os.path.join(self.root, name, METADATA))

    def all(self) -> Iterator[Metadata | Damaged]:
        """One damaged one does not stop the others."""
        for name in self._names():
            try:
                yield self.read(name)
            except SandboxError as error:
                yield Damaged(sandbox_id=name, problem=str(error))

    def touch(self, sandbox_id: str) -> None:
        """It was used just now."""
        try:
            os.utime(os.path.join(self.folder(sandbox_id), METADATA), follow_symlinks=False)
        except OSError:
            pass  # it is being removed

    def idle_hours(self, sandbox_id: str) -> float:
        """How long nobody has used it."""
        try:
            return _age_s(os.path.join(self.folder(sandbox_id), METADATA)) / 3600
        except OSError:
            return 0.0

    def remove_unused(self, sandbox_id: str, *, in_any_case: bool = True) -> None:
        """BusyError where somebody holds it; UsageError where it is none: nothing that is not ours is removed.

        A commit that was broken off is finished before. ``in_any_case``: it goes also where that is not possible.
        """
        folder = self.folder(sandbox_id)
        if os.path.islink(folder) or not os.path.isdir(folder):
            raise UsageError(f"no sandbox {sandbox_id} in {self.root}", hint=self._nearest(sandbox_id))
        if not self._is_ours(sandbox_id):
            raise UsageError(f"{folder} is no sandbox", hint="what else it is, remove by hand")
        finish(folder, if_possible=in_any_case)
        held = hold(folder)
        try:
            self.remove(sandbox_id)
        finally:
            held.release()

    def _is_ours(self, sandbox_id: str) -> bool:
        """Damaged metadata beside a transaction is ours; a metadata.json of which nothing is known need not be."""
        try:
            self.read(sandbox_id)
        except SandboxError:
            return os.path.isfile(os.path.join(self.folder(sandbox_id), "transaction.json"))
        return True

    def remove(self, sandbox_id: str) -> None:
        """It is gone at once, its contents as soon as that is done; what was broken off is finished by ``sweep``."""
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
                if name.startswith(_LEAVING) or (name.startswith(_MAKING) and _age_s(path) > _MAKING_S):
                    remove_tree(path)
            except OSError:
                pass  # another process is at it, or it isn't ours to remove

    def _listed(self) -> Iterable[str]:
        try:
            return os.listdir(self.root)
        except OSError:
            return ()


def _write(folder: str, metadata: Metadata) -> None:
    """Beside its place, and renamed: a reader finds the old text or the new one."""
    text = json.dumps(metadata.to_dict(), indent=1)
    if len(text) > MAX_METADATA_BYTES:
        problem = f"{METADATA} of {len(text)} bytes would never be read again; {MAX_METADATA_BYTES} are the most"
        raise UsageError(problem, hint="keep less in state_data, and the rest in a file")
    place = os.path.join(folder, METADATA)
    beside = f"{place}.{os.urandom(4).hex()}"
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(beside, place)


def _age_s(path: str) -> float:
    return time.time() - os.lstat(path).st_mtime


def _text(folder: str) -> str:
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    if not stat.S_ISDIR(os.lstat(folder).st_mode):
        raise ValueError("its place is taken by something that is no folder")
    with open(os.open(os.path.join(folder, METADATA), flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("no regular file")
        raw = file.read(MAX_METADATA_BYTES + 1)
    if len(raw) > MAX_METADATA_BYTES:
        raise ValueError(f"larger than {MAX_METADATA_BYTES} bytes")
    return raw.decode("utf-8")


def _metadata(text: str, sandbox_id: str) -> Metadata:
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError("no JSON object")
    version = values.pop("version", None)
    if version != VERSION:
        raise ValueError(f"version {version!r}, {VERSION} is known here")
    for name, kind in _KINDS.items():
        if not isinstance(values.get(name, _EMPTY.get(name)), kind):
            raise ValueError(f"{name}: {values.get(name)!r}")
    if isinstance(values["created_s"], bool) or not 0 <= values["created_s"] < _LATEST_S:
        raise ValueError("created_s is no time")
    if values["sandbox_id"] != sandbox_id:
        raise ValueError(f"it is the metadata of {values['sandbox_id']!r}")
    texts = {name: tuple(map(str, values.get(name, ()))) for name in ("bases", "command")}
    return Metadata(**{**values, **texts})


_KINDS: dict[str, Any] = {
    "sandbox_id": str, "created_s": int | float, "isolation": str, "bases": list, "command": list, "config": dict,
    "state_data": dict,
}  # fmt: skip
_EMPTY: dict[str, object] = {"bases": [], "command": [], "config": {}, "state_data": {}}
