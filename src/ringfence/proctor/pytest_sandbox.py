"""One run of pytest in the grader's sandbox: what it is shown, and where. The worker inside is ``pytest_worker``.

The oracle's directory is copied without anything that would tell tests and twins apart: the original files, their
compiled forms, the history of a repository and the reference solution. """

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence

from ringfence.engine.run import run
from ringfence.errors import UsageError
from ringfence.model.job import Job
from ringfence.model.outcome import Outcome
from ringfence.model.record import record
from ringfence.model.ways.walk import real

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.model.events import OnEvent
    from ringfence.proctor.task import Grader, Task

ORACLE = "/oracle"
WORKER = "/grader/pytest_worker.py"
_WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pytest_worker.py")
_INI_FILES = (("pytest.ini", ""), (".pytest.ini", ""), ("pyproject.toml", "[tool.pytest"), ("tox.ini", "[pytest]"),
              ("setup.cfg", "[tool:pytest]"))  # fmt: skip
_OWN_INI = ".ringfence-pytest.ini"
RUNNER_PARTS = frozenset({"pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments"})
_LEFT_OUT = ("__pycache__", "*.pyc", "*.pyo", ".git", ".hg", ".pytest_cache")


@record
class Imports:
    """Which names the tests import from the oracle and never from the workspace, and where in the oracle they lie."""

    names: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    """Directories, relative to the oracle."""


def grader_of(task: Task) -> Grader:
    """Return the task's grader, which must be one for pytest."""
    if task.grader is None or not task.grader.pytest or not task.oracle:
        raise UsageError(f"task {task.id} names no tests of an oracle", hint="name test files in task.yaml")
    return task.grader


def run_worker(
    task: Task,
    workspace: str,
    texts: Mapping[str, str],
    imports: Imports,
    *,
    interpreter: str = "",
    times: int = 2,
    on_event: OnEvent | None = None,
) -> Outcome:
    """Run these test files on a workspace. Nothing of it is changed. ``times``: how much longer than the tests alone it
    may take, since twins run beside them."""
    grader = grader_of(task)
    with tempfile.TemporaryDirectory(prefix="ringfence-grader-") as folder:
        oracle = os.path.join(folder, "oracle")
        ini = _copy_oracle(task.oracle, oracle, texts, grader.reference)
        shown = {workspace: task.policy.mount_at, oracle: ORACLE, _WORKER: WORKER}
        policy = task.policy.sandbox_policy(
            "grader", wall_time_s=grader.wall_time_s * times, shown_at=shown, environment=dict(grader.environment)
        )
        job = _job(task.policy.mount_at, workspace, ini, texts, imports, interpreter or sys.executable)
        return run(job, policy, on_event=on_event)


def _job(mount_at: str, workspace: str, ini: str, files: Sequence[str] | Mapping[str, str], imports: Imports,
         interpreter: str) -> Job:  # fmt: skip
    settings = {
        "workspace": mount_at,
        "oracle": ORACLE,
        "ini": os.path.join(ORACLE, ini),
        "files": [os.path.join(ORACLE, path) for path in files],
        "places": [os.path.normpath(os.path.join(ORACLE, path)) for path in imports.places],
        "names": list(imports.names),
    }
    return Job(argv=(interpreter, "-I", "-B", WORKER, json.dumps(settings)), cwd=workspace, channel=True)


def _copy_oracle(oracle: str, target: str, texts: Mapping[str, str], reference: str) -> str:
    """Return the name of the file with pytest's options in the copy."""
    left_out = shutil.ignore_patterns(*_LEFT_OUT)
    hidden = real(reference) if reference else ""

    def ignored(folder: str, names: list[str]) -> set[str]:
        own = {name for name in names if real(os.path.join(folder, name)) == hidden}
        return {*left_out(folder, names), *own}

    shutil.copytree(oracle, target, symlinks=True, ignore=ignored)
    for path, text in texts.items():
        place = os.path.join(target, path)
        os.unlink(place)  # a link would be written through
        with open(place, "x", encoding="utf-8") as file:
            file.write(text)
    _open_to_all(target)
    return _options_file(target)


def _options_file(folder: str) -> str:
    for name, section in _INI_FILES:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                if section in file.read():
                    return name
    with open(os.path.join(folder, _OWN_INI), "x", encoding="utf-8") as file:
        file.write("[pytest]\n")
    return _OWN_INI


def _open_to_all(folder: str) -> None:
    """Inside, the job is another user; outside, the private directory around it keeps everybody out."""
    for place, _, files in os.walk(folder):
        os.chmod(place, 0o755)
        for name in files:
            path = os.path.join(place, name)
            if not os.path.islink(path):
                os.chmod(path, os.stat(path).st_mode & 0o111 | 0o644)


def imports_of(task: Task, staged: str) -> Imports:
    """Return what the tests may import from the oracle: what lies beside them and is not the workspace's.

    A package that a test file lies in is the oracle's, whatever the workspace has under that name.
    """
    grader = grader_of(task)
    places = dict.fromkeys(("", *(os.path.dirname(path) for path in grader.pytest)))
    theirs = {name for root in (staged, grader.reference) if root for name in _modules(root, os.path.join(root, "src"))}
    if theirs & RUNNER_PARTS:
        part = min(theirs & RUNNER_PARTS)
        raise UsageError(f"task {task.id}: {part} is a part of pytest, which would test itself and not the submission",
                         hint="grade it with a grade.sh")  # fmt: skip
    ours = _modules(*(os.path.join(task.oracle, place) for place in places))
    packages = {path.split("/")[0] for path in grader.pytest if "/" in path}
    return Imports(names=tuple(sorted((ours - theirs) | packages)), places=tuple(places))


def _modules(*folders: str) -> set[str]:
    """The names that can be imported from these directories."""
    found: set[str] = set()
    for folder in folders:
        for entry in os.scandir(folder) if os.path.isdir(folder) else ():
            name = entry.name.removesuffix(".py")
            if name.isidentifier() and (entry.is_dir() or name != entry.name):
                found.add(name)
    return found - {"__init__", "__pycache__", "conftest"}


def with_reference(task: Task, staged: str, folder: str) -> str:
    """Return the staged workspace with the reference solution laid over it, in a new directory; without one,
    unchanged."""
    reference = grader_of(task).reference
    if not reference:
        return staged
    if not os.path.isdir(reference):
        raise UsageError(f"{reference}: the reference solution is not a directory")
    shutil.copytree(staged, folder, symlinks=True)
    shutil.copytree(reference, folder, symlinks=True, dirs_exist_ok=True)
    return folder
