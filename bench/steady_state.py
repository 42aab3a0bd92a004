"""Once it runs, is work inside STRICT slower than outside? Start-up is left out: each work times itself.

Four kinds of work by themselves, and three over a large tree with something hidden beside it, so that the recorder
is on while nothing hidden is touched. The last two rows of each are the whole runs as the caller sees them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.harness import Answer, Effort, Table, compare
from ringfence import IsolationLevel, Job, SandboxPolicy, run

INSIDE = "inside, ringfence strict"
QUESTION = "Work inside STRICT against the same work outside, timed by the work itself"

POLICY = SandboxPolicy(
    isolation=IsolationLevel.STRICT, wall_time_s=300, cpu_time_s=300, mem_bytes=4 << 30, pids_max=256
)

TIMED = "import time\nSIZE = {size}\n{before}\nstart = time.perf_counter()\n{work}\nprint(time.perf_counter() - start)"
SUITE = """
import json, os, pytest, subprocess
@pytest.mark.parametrize("n", range(60 * int(os.environ["SIZE"])))
def test_json(n, tmp_path):
    (tmp_path / "f").write_text(json.dumps(list(range(3000))))
    assert json.loads((tmp_path / "f").read_text())[-1] == 2999
@pytest.mark.parametrize("n", range(2 * int(os.environ["SIZE"])))
def test_process(n): assert subprocess.run(["true"]).returncode == 0
"""
GIT = "['git', '-c', 'safe.directory=*', 'status', '--short']"


@dataclass(frozen=True, kw_only=True)
class Work:
    name: str
    work: str
    before: str = ""
    """Done first and not timed."""
    files: Mapping[str, bytes] | None = None
    """Absent: it works on the large tree, with the recorder on."""


WORKS = (
    Work(
        name="computing",
        before="import hashlib",
        work="n = 0\nfor i in range(1_100_000 * SIZE): n = (n * 31 + i) % 1_000_003\n"
        "for i in range(20 * SIZE): hashlib.sha256(bytes(1_000_000)).digest()",
        files={},
    ),
    Work(
        name="starting processes",
        before="import subprocess",
        work="for _ in range(400 * SIZE): subprocess.run(['/bin/true'])",
        files={},
    ),
    Work(
        name="opening files",
        before="import os\nfor i in range(300): open(f'f{i}', 'w').write('x' * 100)",
        work="for _ in range(450 * SIZE):\n    for i in range(0, 300, 3):\n"
        "        os.close(os.open(f'f{i}', os.O_RDONLY))\n        os.stat('/usr/bin/env')",
        files={},
    ),
    Work(
        name="pytest",
        before="import os, pytest\nos.environ['SIZE'] = str(SIZE)",
        work="assert pytest.main(['-q', '-p', 'no:cacheprovider', 'test_work.py']) == 0",
        files={"test_work.py": SUITE.encode()},
    ),
    Work(
        name="beside something hidden: git status",
        # Once before: the index learns what the files look like in this place.
        before=f"import subprocess\nsubprocess.run({GIT}, check=True)",
        work=f"for _ in range(3 * SIZE): subprocess.run({GIT}, check=True)",
    ),
    Work(
        name="beside something hidden: grep -r",
        before="import subprocess",
        work="for _ in range(2 * SIZE): assert subprocess.run(['grep', '-rq', 'not to be found', '.']).returncode == 1",
    ),
    Work(
        name="beside something hidden: importing a large package",
        before="import subprocess, sys",
        work="package = 'import hypothesis.strategies'\n"
        "for _ in range(SIZE): subprocess.run([sys.executable, '-c', package], check=True)",
    ),
)


def ask(effort: Effort) -> Answer:
    size, turns = effort.pick(10, 3), effort.pick(5, 3)
    with tempfile.TemporaryDirectory() as folder:
        skipped = {} if shutil.which("git") else {"git status": "git is not installed"}
        tree = large_tree(Path(folder), effort.pick(10_000, 3_000, 50), with_git=not skipped)
        works = [work for work in WORKS if "git" not in work.name or not skipped]
        tables = tuple(measured(work, tree, size, turns) for work in works)
        return Answer(tables=tables, skipped=skipped, findings=(_who_hides(tree),))


def large_tree(top: Path, count: int, *, with_git: bool) -> Path:
    """A directory of many files, and beside it something to hide."""
    tree, oracle = top / "tree", top / "oracle"
    oracle.mkdir()
    (oracle / "answer.txt").write_text("42\n")
    for number in range(count):
        path = tree / f"package_{number // 100}" / f"module_{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"value = {number}\n" * 40)
    if with_git:
        author = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
        for words in (("init", "-q"), ("add", "."), (*author, "commit", "-qm", "tree")):
            # Else git packs the objects in the background, and files vanish while they are read.
            subprocess.run(["git", "-c", "gc.auto=0", "-c", "maintenance.auto=false", *words], cwd=tree, check=True)
    top.chmod(0o755)
    return tree


def measured(work: Work, tree: Path, size: int, turns: int) -> Table:
    """Outside and inside take turns; each turn gives the work's own time and the whole."""
    source = TIMED.format(size=size, before=work.before, work=work.work)
    runners: dict[str, Callable[[str, Work, Path], float]] = {"outside": _outside, INSIDE: _inside}
    own: dict[str, list[float]] = {name: [] for name in runners}
    whole: dict[str, list[float]] = {f"{name}: whole": [] for name in runners}
    for turn in range(turns + 1):
        for runner, times, wholes in zip(runners.values(), own.values(), whole.values(), strict=True):
            start = time.perf_counter()
            took_s = runner(source, work, tree)
            if turn:
                times.append(took_s * 1e3)
                wholes.append((time.perf_counter() - start) * 1e3)
    return Table(title=work.name, unit="ms", rows=(*compare(own), *compare(whole)))


def _outside(source: str, work: Work, tree: Path) -> float:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (work.files or {}).items():
            (Path(folder) / name).write_bytes(content)
        cwd = tree if work.files is None else folder
        environment = {"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"}
        command = [sys.executable, "-c", source]
        done = subprocess.run(command, cwd=cwd, capture_output=True, check=True, env=environment)
    return _last_number(done.stdout)


def _inside(source: str, work: Work, tree: Path) -> float:
    policy = _policy(tree) if work.files is None else POLICY
    cwd = os.fspath(tree) if work.files is None else None
    outcome = run(Job(argv=(sys.executable, "-c", source), cwd=cwd, files=work.files or {}), policy)
    assert outcome.rc == 0, f"{outcome.reason} {outcome.stderr!r}"
    return _last_number(outcome.stdout)


def _policy(tree: Path) -> SandboxPolicy:
    """Something beside the tree is hidden, and would be seen otherwise."""
    top = os.fspath(tree.parent)
    return POLICY.with_changes(readable_paths=(top,), hidden_paths=(f"{top}/oracle",))


def _who_hides(tree: Path) -> str:
    """The figures are of this mechanism: a host without it uses another."""
    held = run(["/bin/true"], _policy(tree)).enforced["hidden_paths"]
    return f"hidden paths are held by: {held.mechanism}{f' ({held.details})' if held.details else ''}"


def _last_number(told: bytes) -> float:
    return float(told.split()[-1])
