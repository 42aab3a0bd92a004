"""Where a run writes, and the workspace that it works in: new directories, without anything of an earlier run or of the
task's own files.

The workspace is copied by descriptors: no link is followed, and no FIFO is waited for. Nothing of the copy is joined to
the original.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from ringfence.checkpoint import content
from ringfence.checkpoint.entry import ancestors
from ringfence.checkpoint.tree import NEW_FILE_FLAGS, Tree
from ringfence.errors import SandboxError, UsageError
from ringfence.model.own_files import check_private, make_private, set_mode, set_time
from ringfence.model.paths import quoted, within
from ringfence.model.ways.walk import absolute, itself, real
from ringfence.proctor.place.holding import source_of
from ringfence.proctor.task import Task
from ringfence.proctor.task_policy import OWN_PLACES, TaskPolicy

MAX_ENTRIES = 2_000_000
MAX_DEPTH, MAX_PATH_BYTES = 500, 4000
STAGED = "workspace"
_KINDS = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
_MODE = 0o777
"""What is kept of a mode: no set-id bit, which gives rights, and no sticky bit."""


def refuse_pytest_in_root(task: Task) -> None:
    """UsageError: that grader runs in Python, and an image need not have a trustworthy one. SWE-bench instances have
    theirs in the image, and are graded on its root as it was before the agent."""
    if task.root is not None and task.grader is not None and task.grader.pytest:
        raise UsageError(f"task {task.id} has a root, and the grader for pytest runs in an interpreter of the host",
                         hint="grade it with a script that runs the image's own pytest")  # fmt: skip


def refuse_output_in(task: Task, out: str) -> None:
    """UsageError where the output would lie in the task: a run works beside its output, and the agent's copy of the
    workspace must neither hold a signing key nor lie in what is hidden."""
    place = real(out)
    root = task.root.folder if task.root is not None else ""
    for path in (task.folder, task.workspace, root, *(path for _, path in task.own_paths())):
        if path and within(place, real(path)):
            raise UsageError(f"{out} is in the task, in {path}", hint="name an output directory elsewhere")


def fresh_output(path: str) -> str:
    """Make the directory that a run writes into and return its absolute path; UsageError where something is there
    already, except an empty directory of ours: results of an earlier run must never be taken for this one's."""
    whole = itself(absolute(path))
    try:
        make_private(os.path.dirname(whole))
        os.mkdir(whole, 0o700)
    except FileExistsError:
        _check_empty(whole)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint="name a new directory where you may create one") from error
    os.chmod(whole, 0o700)
    return whole


def _check_empty(path: str) -> None:
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise UsageError(f"{path} is a link or a file, not a directory", hint="name a new directory")
    check_private(status, path)
    if os.listdir(path):
        raise UsageError(f"{path} is not empty; each run needs its own output directory", hint="name a new directory")


def stage(task: Task, folder: str) -> str:
    """Return a private copy of the task's workspace, in a directory of the run's own; empty: it has only a root.
    With a base commit it is the repository at that commit, and nothing else of the workspace."""
    if not task.workspace:
        return ""
    place = real(folder)
    if within(place, real(task.workspace)):
        raise UsageError(f"{folder} is in the workspace {task.workspace}", hint="name an output directory elsewhere")
    target = os.path.join(place, STAGED)
    if os.path.lexists(target):
        raise UsageError(f"{target} already exists", hint="use a new directory for each run")
    if task.policy.base_commit:
        from ringfence.proctor.history import materialise

        materialise(task.workspace, task.policy.base_commit, target)
    else:
        os.mkdir(target, 0o700)
    try:
        _fill(task, target)
        os.chmod(target, 0o755)  # the directory that it lies in is private
    except BaseException:
        import shutil

        shutil.rmtree(target, ignore_errors=True)
        raise
    return target


def _fill(task: Task, target: str) -> None:
    """With a base commit everything is there, and is only looked at."""
    copy = _Copy(task, target)
    try:
        if task.policy.base_commit:
            copy.check_links()
        else:
            copy.copy_all()
        _check_forbidden(task.policy, target)
    except OSError as error:
        where = f" {quoted(error.filename)}:" if isinstance(error.filename, str) else ""
        raise SandboxError(f"the workspace {task.workspace} can't be copied:{where} {error.strerror}") from error
    finally:
        copy.close()


def _check_forbidden(policy: TaskPolicy, target: str) -> None:
    """UsageError where the agent may not read a file, but git would show it all the same."""
    from ringfence.proctor.history import remembers

    top = policy.mount_at
    for path in (path for path in policy.forbidden_reads if within(path, top)):
        inside = path[len(top) + 1 :]
        told = any(remembers(objects, rest) for objects, rest in _histories(policy, target, inside))
        if told or (policy.base_commit and os.path.lexists(os.path.join(target, inside))):
            raise UsageError(f"forbidden.reads has {path}, which the history of a repository has: git would show it",
                             hint="make a base commit without it, and keep it in the oracle")  # fmt: skip


def _histories(policy: TaskPolicy, target: str, inside: str) -> Iterator[tuple[str, str]]:
    """The objects of each repository that a path lies in, as far as the agent may read them, with the path in it."""
    from ringfence.proctor.history import objects_of

    for folder in ("", *ancestors(inside), *filter(None, [inside])):
        place = os.path.join(target, folder)
        objects = objects_of(place) if os.path.lexists(os.path.join(place, ".git")) else ""
        shown = os.path.join(policy.mount_at, objects[len(target) + 1 :])
        if within(objects, target) and not any(within(shown, each) for each in policy.forbidden_reads):
            yield objects, inside[len(folder) :].lstrip("/")


class _Copy:
    """One workspace on its way into a new directory."""

    def __init__(self, task: Task, target: str) -> None:
        self._workspace = real(task.workspace)
        self._policy = task.policy
        own = (task.folder, task.setup, *(path for _, path in task.own_paths()))
        self._own = [real(path) for path in own if path]
        self._target = Tree(target)
        self._source = Tree(target) if task.policy.base_commit else source_of(task, task.workspace)

    def close(self) -> None:
        self._source.close()
        self._target.close()

    def copy_all(self) -> None:
        """Directories get their modes and times last, the deepest first: writing into a directory changes its time."""
        folders: list[tuple[str, os.stat_result]] = []
        for path, status in self._walk():
            if stat.S_ISDIR(status.st_mode):
                self._target.make(path)
                folders.append((path, status))
            elif stat.S_ISLNK(status.st_mode):
                self._copy_link(path)
            else:
                self._copy_file(path, status)
        for path, status in reversed(folders):
            self._target.allow(path, status.st_mode & _MODE | 0o700)
            name, where = self._target.at(path)
            os.utime(name, ns=(status.st_mtime_ns, status.st_mtime_ns), **where)

    def check_links(self) -> None:
        for path, status in self._walk():
            if stat.S_ISLNK(status.st_mode):
                self._link(path)

    def _walk(self) -> Iterator[tuple[str, os.stat_result]]:
        """Everything in the workspace, each directory before what is in it. A repository of ours is left out."""
        waiting, count = [""], 0
        while waiting:
            folder = waiting.pop()
            for name in sorted(self._source.names(folder, MAX_ENTRIES - count + 1)):
                count += 1
                if count > MAX_ENTRIES:
                    raise UsageError(f"{self._workspace} has more than {MAX_ENTRIES:,} files and directories")
                path = f"{folder}/{name}" if folder else name
                status = self._source.status(path)
                if status is None or (name == ".git" and self._policy.base_commit):
                    continue
                self._check(path, name, status)
                yield path, status
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(path)

    def _check(self, path: str, name: str, status: os.stat_result) -> None:
        """UsageError where something can't be a part of a workspace."""
        if name == ".git" and not self._policy.keep_git:
            raise UsageError(
                f"{self._shown(path)} is a git repository, with all its history, references and settings",
                hint="name git.base_commit in the policy, or set git.keep: true if the history is part of the task",
            )
        if path.count("/") >= MAX_DEPTH or len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise UsageError(f"{self._shown(path)[:200]}…: the path has more than {MAX_DEPTH} levels "
                             f"or {MAX_PATH_BYTES} bytes")  # fmt: skip
        if stat.S_IFMT(status.st_mode) not in _KINDS:
            raise UsageError(f"{self._shown(path)} is a FIFO, a socket or a device",
                             hint="a workspace may only have files, directories and links")  # fmt: skip

    def _shown(self, path: str) -> str:
        return quoted(os.path.join(self._workspace, path))

    def _copy_file(self, path: str, status: os.stat_result) -> None:
        reader = self._source.read(path)
        try:
            name, where = self._target.at(path)
            writer = os.open(name, NEW_FILE_FLAGS, 0o600, **where)
            try:
                content.fill(reader, writer)
                set_mode(writer, status.st_mode & _MODE)
                set_time(writer, name, status.st_mtime_ns)
            finally:
                os.close(writer)
        finally:
            os.close(reader)

    def _copy_link(self, path: str) -> None:
        text = self._link(path)
        name, where = self._target.at(path)
        os.symlink(text, name, **where)

    def _link(self, path: str) -> str:
        """Return what a link says; UsageError where that names the task's own files, on the host or in a sandbox."""
        name, where = self._source.at(path)
        text = os.readlink(name, **where)
        above = os.path.dirname(path)
        place = real(os.path.join(self._workspace, above, text))
        relative = not os.path.isabs(text)
        # In a sandbox it starts from another place. Its text and its real target may be two places, because of another
        # link.
        said = (os.path.join(above, text), *((os.path.relpath(place, self._workspace),) if relative else ()))
        inside = [os.path.normpath(os.path.join(self._policy.mount_at, each)) for each in said]
        at_home = relative and within(place, self._workspace)
        taken = any(within(each, shown) for each in inside for shown in OWN_PLACES)
        if taken or (not at_home and any(within(place, own) for own in self._own)):
            raise UsageError(f"{self._shown(path)} is a link to the task's own files",
                             hint="put the file itself there, or a link that stays in the workspace")  # fmt: skip
        return text
