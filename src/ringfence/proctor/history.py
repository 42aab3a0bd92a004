"""A repository at one commit: its true ancestors and nothing later, neither reachable nor lying about.

It is built anew out of objects, never by removing from a copy: one pack with what the commit leads to, one branch, a
working tree. Nothing else of the source is read but the directory of its objects, so none of its settings, hooks,
filters or references has an effect, on the host or on the result. The source may be hostile. """

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing

from ringfence.errors import SandboxError, UsageError
from ringfence.model.files import read_file
from ringfence.model.paths import quoted
from ringfence.model.record import record
from ringfence.model.ways.walk import real
from ringfence.proctor.git_plumbing import BRANCH, Repository

MAX_FILES = 1_000_000
MAX_BYTES = 64 << 30
"""Of a working tree. A few hundred bytes of trees that refer to each other again and again can expand to more than any
disk holds."""
MAX_NESTED = 8
"""Submodules in submodules."""
_POINTER_BYTES = 4096
_LFS_BYTES = 1024
"""By the definition of Git LFS, a longer file is not a pointer."""
_LFS_START = b"version https://git-lfs.github.com/spec/"
_LISTING = ("cat-file", "--batch-all-objects", "--unordered", "--batch-check=%(objecttype) %(objectname)")
_FILE, _SUBMODULE = ("100644", "100755"), "160000"


@record
class _Row:
    """One path of a commit's tree."""

    mode: str
    name: str
    size: int
    path: str


def materialise(repository: str, commit: str, target: str) -> None:
    """Make ``target``, a new directory, the repository at a commit. UsageError says what the source lacks; then, and
    after any other error, there is no target."""
    _materialise(repository, commit, target, 0)


def remembers(objects: str, path: str) -> bool:
    """Whether any commit in a directory of objects, reachable or not, has something at a path. They are mere data: the
    settings of their repository have no effect."""
    with tempfile.TemporaryDirectory() as folder:
        ours = Repository(folder, objects)
        ours.create()
        told = ours.run(*_LISTING, borrowing=True)
        commits = [line.split()[1] for line in told.splitlines() if line.startswith(b"commit ")]
        asked = b"".join(each + b":" + os.fsencode(path) + b"\n" for each in commits)
        return b"found" in ours.run("cat-file", "--batch-check=found", data=asked, borrowing=True).splitlines()


def objects_of(repository: str) -> str:
    """The directory with the objects of what has a ``.git``; empty: it leads to no repository."""
    try:
        return _objects(repository)
    except (UsageError, OSError):
        return ""


def _materialise(repository: str, commit: str, target: str, depth: int) -> None:
    objects = _objects(repository)
    _refuse_special(objects)
    try:
        os.mkdir(target, 0o700)
    except FileExistsError:
        raise UsageError(f"{target} already exists", hint="name a new directory") from None
    try:
        ours = Repository(real(target), objects)
        ours.create()
        _check_commit(ours, repository, commit)
        _take(ours, repository, commit)
        _check_whole(ours, commit)
        rows = _rows(ours, commit)
        _refuse_tangled(rows, commit)
        _check_out(ours, commit)
        _refuse_lfs(ours, rows)
        for row in rows:
            if row.mode == _SUBMODULE:
                _submodule(repository, target, row, depth)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


# ---- the source


def _objects(repository: str) -> str:
    """Return the directory with a repository's objects: of a clone, a bare one, or a working tree of another."""
    folder = _git_folder(repository)
    shared = os.path.join(folder, "commondir")
    if os.path.lexists(shared):
        folder = os.path.join(folder, _line(shared))
    objects = os.path.join(folder, "objects")
    if not os.path.isdir(objects):
        raise UsageError(f"{repository} is not a git repository", hint="with git.base_commit it must be one")
    return real(objects)


def _git_folder(repository: str) -> str:
    inside = os.path.join(repository, ".git")
    if os.path.isdir(inside):
        return inside
    if not os.path.lexists(inside):
        return repository
    text = _line(inside)
    if not text.startswith("gitdir: "):
        raise UsageError(f"{inside} does not point to a repository", hint="such a file must contain gitdir: and a path")
    return os.path.join(repository, text.removeprefix("gitdir: "))


def _line(path: str) -> str:
    return os.fsdecode(read_file(path, _POINTER_BYTES).rstrip(b"\n"))


def _refuse_special(objects: str) -> None:
    """Git would wait for ever on a FIFO in place of an object."""
    for folder, _, names in os.walk(objects):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.exists(path) and not os.path.isfile(path):
                raise UsageError(f"{quoted(path)} is not a file", hint="git's objects directory must have files only")


def _check_commit(ours: Repository, repository: str, commit: str) -> None:
    """A tag or a tree has an id of the same form."""
    try:
        kind = ours.run("cat-file", "-t", commit, borrowing=True).strip().decode()
    except SandboxError as error:
        raise UsageError(f"{repository} has no commit {commit}", hint=_why_missing(repository)) from error
    if kind != "commit":
        raise UsageError(f"{commit} in {repository} is a {kind}, not a commit")


def _take(ours: Repository, repository: str, commit: str) -> None:
    try:
        ours.take(commit)
    except SandboxError as error:
        raise UsageError(f"{repository} has not all that {commit} leads to: {error}",
                         hint=_why_missing(repository)) from error  # fmt: skip


def _why_missing(repository: str) -> str:
    """How to complete a clone that leaves something out on purpose."""
    objects = _objects(repository)
    if os.path.lexists(os.path.join(os.path.dirname(objects), "shallow")):
        return "it is a shallow clone; git fetch --unshallow gets the rest"
    packs = os.path.join(objects, "pack")
    if os.path.isdir(packs) and any(name.endswith(".promisor") for name in os.listdir(packs)):
        return "it is a partial clone; git fetch --refetch --no-filter gets the rest"
    return "fetch that commit first; ids of 40 digits name one in repositories of SHA-1 only"


# ---- the target


def _check_whole(ours: Repository, commit: str) -> None:
    """Every object of the target belongs to the commit, and none is missing. A source can hold an object under the name
    of another: here each has the name of its own bytes."""
    pieces = ours.pieces("rev-list", "--objects", "--no-object-names", commit)
    needed = sum(piece.count(b"\n") for piece in pieces)
    counted = dict(line.split(": ") for line in ours.run("count-objects", "-v").decode().splitlines())
    if (counted["count"], counted["in-pack"]) != ("0", str(needed)):
        raise SandboxError(f"after {counted['in-pack']} objects, {commit} still refers to {needed}")


def _rows(ours: Repository, commit: str) -> list[_Row]:
    """Everything in the commit's tree; UsageError where that is unreasonably much."""
    rows: list[_Row] = []
    total = 0
    with closing(ours.pieces("ls-tree", "-r", "-l", "-z", "--full-tree", commit)) as pieces:
        for line in _lines(pieces):
            rows.append(_row(line))
            total += rows[-1].size
            if len(rows) > MAX_FILES or total > MAX_BYTES:
                raise UsageError(f"{commit} has more than {MAX_FILES:,} files, or {MAX_BYTES >> 30} GiB of them")
    return rows


def _row(line: bytes) -> _Row:
    facts, _, path = line.partition(b"\t")
    mode, _, name, size = facts.decode().split()
    return _Row(mode=mode, name=name, size=0 if size == "-" else int(size), path=os.fsdecode(path))


def _refuse_tangled(rows: list[_Row], commit: str) -> None:
    """UsageError where a name stands for two things: git writes one of them, and if that is a link, what we write below
    the other would follow it out of the target."""
    paths = {row.path for row in rows}
    above = {row.path[:end] for row in rows for end, letter in enumerate(row.path) if letter == "/"}
    if len(paths) < len(rows) or paths & above:
        raise UsageError(f"{commit} has two entries with the same name",
                         hint="run git fsck to see which tree is broken")  # fmt: skip


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """What stands between NULs."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\0")
        yield from whole


def _check_out(ours: Repository, commit: str) -> None:
    """Write the working tree. No filter runs: only settings define filters, and the settings are ours."""
    ours.run("update-ref", f"refs/heads/{BRANCH}", commit)
    ours.run("read-tree", commit)
    ours.run("checkout-index", "--all", "--index", "--quiet")


def _refuse_lfs(ours: Repository, rows: list[_Row]) -> None:
    """Files whose content Git LFS keeps elsewhere would arrive as three lines of text."""
    small = [row for row in rows if row.mode in _FILE and len(_LFS_START) < row.size <= _LFS_BYTES]
    pointers = [row.path for row in small if _is_pointer(os.path.join(ours.folder, row.path))]
    if not pointers:
        return
    asked = b"".join(os.fsencode(path) + b"\0" for path in pointers)
    words = ours.run("check-attr", "-z", "--stdin", "filter", data=asked).split(b"\0")
    found = [os.fsdecode(path) for path, value in zip(words[::3], words[2::3], strict=False) if value == b"lfs"]
    if found:
        raise UsageError(
            f"Git LFS keeps {quoted(found[0])}, {len(found)} files in all: their contents are not in the repository",
            hint="make a base commit that has the files themselves (git lfs migrate export)",
        )


def _is_pointer(path: str) -> bool:
    """A link on the way is not possible: git wrote this tree, and no name in it stands for two things."""
    with open(path, "rb") as file:
        return file.read(len(_LFS_START)) == _LFS_START


def _submodule(repository: str, target: str, row: _Row, depth: int) -> None:
    """At the commit that the tree names, in the same way. One that the source has not fetched stays an empty directory,
    as git leaves it."""
    source = os.path.join(repository, row.path)
    for top in (repository, target):
        if real(os.path.join(top, row.path)) != os.path.join(real(top), row.path):
            raise UsageError(f"submodule {quoted(row.path)}: a link is in the way in {top}")
    if not os.path.lexists(os.path.join(source, ".git")):
        return
    if depth >= MAX_NESTED:
        raise UsageError(f"submodule {quoted(row.path)}: more than {MAX_NESTED} nested submodules")
    place = os.path.join(target, row.path)
    os.rmdir(place)
    _materialise(source, row.name, place, depth + 1)
