"""An instance of SWE-bench as a ``Task``: a pure function except for the leak scan, which reads the host.

The agent gets the repository at its base commit, at ``/testbed``, and the problem statement. The test patch, the names
of the tests and the solution stay with the grader.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping

from ringfence.errors import UsageError
from ringfence.model.paths import within
from ringfence.model.record import replace
from ringfence.model.ways.walk import real
from ringfence.proctor.foreign import leak_scan
from ringfence.proctor.foreign.image_build import lay_build
from ringfence.proctor.foreign.instance import Instance, checked_patch, instance_of, read_instance
from ringfence.proctor.foreign.leak_scan import Leak
from ringfence.proctor.foreign.patches import read_patch
from ringfence.proctor.foreign.predictions import PATCH, PROGRAM, written
from ringfence.proctor.foreign.repositories import IMAGE_PYTHON, TestedRepository, image_of, repository_of
from ringfence.proctor.task import Grader, Root, Task
from ringfence.proctor.task_policy import TaskPolicy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.container.engine import Engine

TESTBED = "/testbed"
HOST, IMAGE = "host", "image"
_ANONYMOUS = "the data set"


def load(
    instance: str | Mapping[str, object] | Instance, repo: str, *, rootfs: str, grade: bool, place: str = "",
    python: str = "", policy: TaskPolicy | None = None, image: str = "", engine: Engine | None = None,
) -> Task:  # fmt: skip
    """Return the task. ``instance``: a file, a row of the data set, or one that was read. ``repo``: a clone that has
    the base commit. ``rootfs``: ``host`` or ``image``, never guessed. ``place``: an empty private directory that
    outlasts the run, for what is written for it; absent: one that goes with this process. ``python``: the interpreter
    with what the repository needs. ``image``: in place of the row's own, or the data set's. ``engine``: absent: the
    host's."""
    row = _row(instance)
    _check(row, repo, rootfs, grade)
    root = _root(image or row.image or image_of(row.instance_id), row, engine) if rootfs == IMAGE else None
    repository = repository_of(row.repo)
    interpreter = python or (IMAGE_PYTHON if root else sys.executable)
    rules = replace(policy or TaskPolicy(), mount_at=TESTBED, base_commit=row.base_commit)
    leaks = _leaks(row, repository, repo, interpreter, root)
    hidden = (*rules.forbidden_reads, *_own(row, repo), *leak_scan.hidden_by(leaks, TESTBED))
    rules = replace(rules, forbidden_reads=tuple(dict.fromkeys(hidden)))
    grader = Grader(argv=(interpreter,), instance=row, wall_time_s=rules.grader_wall_time_s)
    folder = place or _own_place()
    return Task(
        id=row.instance_id, workspace=repo, grader=grader if grade else None, instruction=row.problem_statement,
        folder=folder, sources=_sources(row, repo), policy=rules, kind="swebench", root=root,
        solution=_solution(row, folder, root),
        setup="" if root else _setup(row, repository, interpreter, folder),
        notes=tuple(f"hidden from the agent: {leak.path}, {leak.why}" for leak in leaks),
    )  # fmt: skip


def _row(instance: str | Mapping[str, object] | Instance) -> Instance:
    if isinstance(instance, str):
        return read_instance(instance)
    return replace(instance_of(instance, _ANONYMOUS), source="") if isinstance(instance, Mapping) else instance


def _root(image: str, row: Instance, engine: Engine | None) -> Root:
    """The root of its image, by an engine; UnavailableError where there is none."""
    from ringfence.proctor.foreign.environment import Described, prepare

    said = Described(where=row.where, name=row.instance_id, context="", image=image, workdir=TESTBED)
    root = prepare(said, IMAGE, engine=engine).root
    assert root is not None
    return root


def _check(row: Instance, repo: str, rootfs: str, grade: bool) -> None:
    if rootfs not in (HOST, IMAGE):
        raise UsageError("an instance needs a root: its image, or the host's", hint="add --image or --rootfs host")
    if not os.path.isdir(repo):
        raise UsageError(f"{repo} is not a directory", hint=f"--repo names a clone of {row.repo}")
    if grade and not row.patch.strip():
        raise UsageError(f"{row.where}: patch: is missing, and grading needs it",
                         hint="without it nobody can tell which tests must pass")  # fmt: skip
    if grade and not row.fail_to_pass:
        raise UsageError(f"{row.where}: FAIL_TO_PASS: must not be empty: only these tests show a solution")


def _own(row: Instance, repo: str) -> list[str]:
    """Files of the host that no agent may read: the clone has later commits, and the data set the answers."""
    return list(_sources(row, repo))


def _sources(row: Instance, repo: str) -> tuple[str, ...]:
    paths = [real(path) for path in (repo, row.source) if path]
    return tuple(path for path in paths if not within(path, TESTBED))


def _leaks(row: Instance, repository: TestedRepository, repo: str, python: str, root: Root | None) -> tuple[Leak, ...]:
    """What else gives the answer away, as the agent sees it."""
    patches = checked_patch(row.patch, f"{row.where}: patch")
    if root is None:
        roots, sites = leak_scan.host_roots(python), leak_scan.host_sites()
        return leak_scan.scan(repository, patches, roots, apart=(real(repo),), sites=sites)
    top = real(root.folder)
    found = leak_scan.scan(repository, patches, (top,), apart=(top + TESTBED,))
    return tuple(replace(leak, path=leak.path[len(top) :]) for leak in found)


def lay_image_build(task: Task, staged: str) -> list[str]:
    """Copy what the image of a task has built in its repository into the staged one; return the paths."""
    assert task.root is not None
    patches = []
    if task.solution:
        with open(os.path.join(os.path.dirname(task.solution), PATCH), "rb") as file:
            patches = read_patch(file.read())
    return lay_build(real(task.root.folder) + TESTBED, staged, patches)


def _own_place() -> str:
    made = tempfile.mkdtemp(prefix="ringfence-swebench-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def _solution(row: Instance, place: str, root: Root | None) -> str:
    """Write what the oracle runs; empty: the instance has no solution. In an image git applies the patch, with nobody's
    settings: the image's Python may be too old for our reader."""
    if not row.patch.strip():
        return ""
    folder = os.path.join(place, "solution")
    os.mkdir(folder, 0o755)
    os.chmod(folder, 0o755)
    written(folder, PATCH, row.patch)
    shutil.copyfile(PROGRAM, os.path.join(folder, "patches.py"))
    ours = f'{shlex.quote(sys.executable)} -I -S "$here/patches.py" "$here/{PATCH}" {TESTBED}'
    git = f'cd {TESTBED} && GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 git apply "$here/{PATCH}"'
    return written(folder, "solve.sh", f'here=${{0%/*}}\n{git if root else ours}\n')


def _setup(row: Instance, repository: TestedRepository, python: str, place: str) -> str:
    """Write what builds the package in place; empty: nothing has to be built."""
    if not repository.install:
        return ""
    begin = f'set -e\nVERSION={shlex.quote(row.version)}\npython3() {{ {shlex.quote(python)} "$@"; }}\n'
    return written(place, "setup.sh", f"{begin}{repository.install}\n")
