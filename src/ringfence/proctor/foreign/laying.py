"""Lays what a Dockerfile copies into a new directory, which becomes the workspace: from the task's context alone.

A task may come from anybody: no link is followed, and nothing but files, directories and links is copied.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence

from ringfence.errors import UsageError
from ringfence.evidence.digest import sha256_hex
from ringfence.evidence.inputs import tree_input
from ringfence.model import state_folder
from ringfence.model.paths import within
from ringfence.model.ways.walk import real
from ringfence.proctor.foreign.dockerfile import Dockerfile
from ringfence.proctor.foreign.rootfs import Copied, Laid, Made
from ringfence.roles.removal import remove_tree

WORKSPACES = "workspaces"
IGNORE_FILE = ".dockerignore"
_MAX_ENTRIES = 200_000
_MODES = {"r": 0o444, "w": 0o222, "x": 0o111}
_WHO = {"u": 0o700, "g": 0o070, "o": 0o007, "a": 0o777}


def workspace_of(dockerfile: Dockerfile, laid: Laid, context: str, without: Sequence[str] = ()) -> str:
    """A directory of ours with what is copied, in the state directory by its content; made once.

    ``without``: names in the context that are the task's own, such as its tests: copying one is refused."""
    _refuse_ignored(dockerfile, laid, context)
    top = state_folder.made(WORKSPACES)
    place = tempfile.mkdtemp(prefix=".", dir=top)
    try:
        made = os.path.join(place, "workspace")
        os.mkdir(made, 0o755)
        lay = _Laying(dockerfile, laid, context, made, without)
        for step in laid.steps:
            lay.carry_out(step)
        os.chmod(made, 0o755)
        final = os.path.join(top, sha256_hex(tree_input("task", "workspace", made).sha256.encode())[:32])
        _move(made, final)
        return final
    except OSError as error:
        raise UsageError(f"{dockerfile.path}: can't copy: {error.strerror}") from error
    finally:
        remove_tree(place)


def _move(made: str, final: str) -> None:
    """Where the same content is there already, that stays."""
    try:
        os.rename(made, final)
    except OSError:
        if not os.path.isdir(final):
            raise


def _refuse_ignored(dockerfile: Dockerfile, laid: Laid, context: str) -> None:
    if any(isinstance(step, Copied) for step in laid.steps) and os.path.lexists(os.path.join(context, IGNORE_FILE)):
        raise UsageError(f"{os.path.join(context, IGNORE_FILE)}: COPY with such a file is not supported here",
                         hint="--image builds the image with an engine instead")  # fmt: skip


class _Laying:
    def __init__(self, dockerfile: Dockerfile, laid: Laid, context: str, top: str, without: Sequence[str]) -> None:
        self._file, self._laid, self._top = dockerfile, laid, top
        self._context = real(context)
        self._own = [os.path.join(self._context, name) for name in without]
        self._count = 0

    def carry_out(self, step: Copied | Made) -> None:
        if isinstance(step, Copied):
            self._copy(step)
        elif step.mode:
            self._set_mode(step)
        else:
            self._make_folder(self._inside(step.path))

    def _inside(self, path: str) -> str:
        """Where a path of the workspace lies on the host; UsageError if a link on the way leads out of it."""
        rest = os.path.normpath(path)[len(self._laid.workdir) :].strip("/")
        place = os.path.join(self._top, rest) if rest else self._top
        above = place if not os.path.islink(place) else os.path.dirname(place)
        if not within(real(above), real(self._top)):
            raise UsageError(f"{self._file.path}: {path} points outside the workspace through a link")
        return place

    def _make_folder(self, place: str) -> None:
        """An earlier COPY may have put a link anywhere: nothing is written where a link leads out."""
        if not within(real(place), real(self._top)):
            raise UsageError(f"{self._file.path}: {place[len(self._top) :]} points outside the workspace "
                             "through a link")  # fmt: skip
        os.makedirs(place, exist_ok=True)

    def _set_mode(self, step: Made) -> None:
        place = self._inside(step.path)
        if os.path.islink(place) or not os.path.exists(place):
            raise UsageError(f"{self._file.path}: {step.path} is not in the workspace; so its mode can't be set")
        os.chmod(place, _mode(step.mode, stat.S_IMODE(os.stat(place).st_mode)))

    def _copy(self, step: Copied) -> None:
        found = [path for source in step.sources for path in self._found(step, source)]
        target = self._inside(step.target)
        is_folder = step.target.endswith("/") or len(found) > 1 or os.path.isdir(target)
        for path in found:
            if os.path.isdir(path) and not os.path.islink(path):
                self._tree(step, path, target)
            else:
                place = os.path.join(target, os.path.basename(path)) if is_folder else target
                self._one(step, path, place)

    def _found(self, step: Copied, source: str) -> list[str]:
        """What a source names in the context."""
        plain = os.path.normpath(source.lstrip("/"))
        if plain == ".." or plain.startswith("../"):
            raise self._file.problem(step.where, f"{source!r} is outside the context")
        matches = sorted(_matching(self._context, plain.split("/"))) if plain != "." else [self._context]
        if not matches:
            raise self._file.problem(step.where, f"{source!r} is not in the context {self._context}")
        for path in matches:
            self._refuse(step, path)
        return matches

    def _refuse(self, step: Copied, path: str) -> None:
        if not within(real(os.path.dirname(path) if path != self._context else path), self._context):
            raise self._file.problem(step.where, f"{path} points outside the context through a link")
        if any(within(own, path) or within(path, own) for own in self._own if os.path.lexists(own)):
            raise self._file.problem(step.where, f"{path} has the task's own files in it: the agent would see them")

    def _tree(self, step: Copied, source: str, target: str) -> None:
        self._make_folder(target)
        for folder, folders, files in os.walk(source):
            place = os.path.normpath(os.path.join(target, os.path.relpath(folder, source)))
            for name in [each for each in folders if os.path.islink(os.path.join(folder, each))] + files:
                self._one(step, os.path.join(folder, name), os.path.join(place, name))
            for name in (each for each in folders if not os.path.islink(os.path.join(folder, each))):
                self._make_folder(os.path.join(place, name))

    def _one(self, step: Copied, source: str, place: str) -> None:
        self._count += 1
        kind = os.lstat(source).st_mode
        if self._count > _MAX_ENTRIES or not (stat.S_ISREG(kind) or stat.S_ISLNK(kind)):
            raise self._file.problem(step.where, f"{source} is not a file, or there are more than {_MAX_ENTRIES:,}")
        self._make_folder(os.path.dirname(place))
        if os.path.islink(place):
            os.unlink(place)
        shutil.copy2(source, place, follow_symlinks=False)
        if stat.S_ISREG(kind):
            os.chmod(place, (step.mode if step.mode is not None else stat.S_IMODE(kind)) & 0o777 | 0o600)


def _matching(top: str, parts: list[str]) -> Iterator[str]:
    """Paths below a directory by patterns, one for each part."""
    first, *rest = parts
    names: Iterable[str] = os.listdir(top) if re.search(r"[*?\[]", first) else [first]
    for name in names:
        path = os.path.join(top, name)
        if fnmatch.fnmatchcase(name, first) and os.path.lexists(path):
            if not rest:
                yield path
            elif os.path.isdir(path) and not os.path.islink(path):
                yield from _matching(path, rest)


def _mode(text: str, before: int) -> int:
    """``755`` or ``u+x``, as chmod reads them."""
    if text.isdigit():
        return int(text, 8) & 0o777 | 0o600
    who, _, rights = text.partition("+")
    mask = 0
    for each in who or "a":
        mask |= _WHO[each]
    for each in rights:
        before |= _MODES[each] & mask
    return before & 0o777
