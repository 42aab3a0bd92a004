"""Copies of everything that grades a task, owned by the run: what was hashed is what is used, whoever owns the task.

A task's owner may exchange files while a run goes on, for hours. Set-up, oracle, script and reference are copied by
descriptors before the agent begins, no link of the task's directory is followed to them, and each copy has the digest
that the evidence binds. So does the copy of the workspace, which was made before. """

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence

from ringfence.checkpoint import content
from ringfence.checkpoint.tree import NEW_FILE_FLAGS, Tree
from ringfence.errors import CheckpointError, SandboxError, UsageError
from ringfence.evidence.digest import file_digest, tree_digest
from ringfence.evidence.inputs import Input
from ringfence.model.own_files import set_mode, set_time
from ringfence.model.paths import quoted, within
from ringfence.model.record import replace
from ringfence.proctor.task import Task

HELD = "held"
MAX_ENTRIES = 2_000_000
_HINT = "do not change it while a run starts"


def source_of(task: Task, path: str) -> Tree:
    """A directory of the task's. In the task's own directory no link is followed: there was none when it was read, and
    one that is there now may lead to files of the operator's."""
    try:
        return Tree(path, resolve=not (task.folder and within(path, task.folder)))
    except CheckpointError as error:
        raise UsageError(f"{path} was replaced after the task was read", hint=_HINT) from error


def hold(task: Task, given: Sequence[Input], staged: str, place: str) -> Task:
    """The task with copies of what grades it, in a directory of the run's own. UsageError where something is not what
    was hashed as ``given``, or is not a file. ``staged``: the copy of the workspace; empty: there is none."""
    digests = {(each.role, each.name): each.sha256 for each in given}
    if staged and not task.policy.base_commit:
        _compare(staged, task.workspace, digests["task", "workspace"])
    folder = os.path.join(place, HELD)
    os.mkdir(folder, 0o700)
    try:
        return _held(task, digests, folder)
    except OSError as error:
        where = f" {quoted(error.filename)}:" if isinstance(error.filename, str) else ""
        raise SandboxError(f"task {task.id} can't be copied:{where} {error.strerror}") from error


def _held(task: Task, digests: Mapping[tuple[str, str], str], folder: str) -> Task:
    def copied(path: str, role: str, name: str) -> str:
        if not path:
            return ""
        target = os.path.join(folder, f"{role}-{os.path.basename(path)}", os.path.basename(path))
        os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
        if os.path.isdir(path):
            _copy_tree(task, path, target)
        else:
            _copy_file(task, path, target)
        _compare(target, path, digests[role, name])
        return target

    grader = task.grader
    oracle = copied(task.oracle, "oracle", "oracle")
    if grader is not None:
        script = copied(grader.script, "grader", grader.script)
        inside = bool(grader.reference and oracle) and within(grader.reference, task.oracle)
        reference = (oracle + grader.reference[len(task.oracle) :] if inside
                     else copied(grader.reference, "grader", grader.reference))  # fmt: skip
        grader = replace(grader, script=script, reference=reference)
    os.chmod(folder, 0o755)  # the directory that it lies in is private
    return replace(task, oracle=oracle, grader=grader, setup=copied(task.setup, "other", "setup.sh"))


def _compare(copy: str, path: str, digest: str) -> None:
    found = tree_digest(copy).sha256 if os.path.isdir(copy) else file_digest(copy).sha256
    if found != digest:
        raise UsageError(f"{path} changed while the run started, so it no longer matches the evidence", hint=_HINT)


def _copy_file(task: Task, path: str, target: str) -> None:
    source = source_of(task, os.path.dirname(path))
    try:
        _fill(source, os.path.basename(path), target, path)
    finally:
        source.close()


def _copy_tree(task: Task, path: str, target: str) -> None:
    source = source_of(task, path)
    try:
        os.mkdir(target, 0o755)
        for inside, status in _walk(source):
            place = os.path.join(target, inside)
            if stat.S_ISDIR(status.st_mode):
                os.mkdir(place, 0o755)
            elif stat.S_ISLNK(status.st_mode):
                name, where = source.at(inside)
                os.symlink(os.readlink(name, **where), place)
            else:
                _fill(source, inside, place, os.path.join(path, inside))
    finally:
        source.close()


def _walk(source: Tree) -> Iterator[tuple[str, os.stat_result]]:
    """Everything in a directory, each directory before what is in it."""
    waiting, count = [""], 0
    while waiting:
        folder = waiting.pop()
        for name in source.names(folder, MAX_ENTRIES - count + 1):
            count += 1
            if count > MAX_ENTRIES:
                raise UsageError(f"{source.path} has more than {MAX_ENTRIES:,} files and directories")
            path = f"{folder}/{name}" if folder else name
            status = source.status(path)
            if status is None:
                continue  # gone meanwhile: the digest tells
            yield path, status
            if stat.S_ISDIR(status.st_mode):
                waiting.append(path)


def _fill(source: Tree, inside: str, target: str, shown: str) -> None:
    """Everybody may read the copy, and execute what was executable: the grader is another user, in a sandbox that can't
    write to it."""
    name, where = source.at(inside)
    status = os.stat(name, follow_symlinks=False, **where)
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{quoted(shown)} is a FIFO, a socket, a device or a link", hint=_HINT)
    reader = source.read(inside)
    try:
        writer = os.open(target, NEW_FILE_FLAGS, 0o600)
        try:
            content.fill(reader, writer)
            set_mode(writer, 0o755 if os.fstat(reader).st_mode & stat.S_IXUSR else 0o644)
            set_time(writer, target, status.st_mtime_ns)
        finally:
            os.close(writer)
    finally:
        os.close(reader)
