"""What do hidden paths cost where no tripwire can be mounted, and every call that names a file is told?

The same work inside STRICT with nothing hidden and with one hidden path that it never touches, timed by the work
itself. A notification costs two changes of process and a look; a call that names a file costs 1 or 2 µs. So the
ratio says how much of the work is naming files.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from unittest import mock

from bench.harness import Answer, Effort, race
from ringfence import IsolationLevel, Job, SandboxPolicy, run
from ringfence.sandbox import host

QUESTION = "Work inside STRICT with a hidden path under open notification against the same with nothing hidden"

PLAIN = SandboxPolicy(isolation=IsolationLevel.STRICT, wall_time_s=300, cpu_time_s=300, mem_bytes=4 << 30)
WATCHED = PLAIN.with_changes(hidden_paths=("/srv/answers",))
TIMED = "import os, subprocess, time\nstart = time.perf_counter()\n{work}\nprint(time.perf_counter() - start)"
WORKS = {
    "computing": "n = 0\nfor i in range(3_000_000): n = (n * 31 + i) % 1_000_003",
    "importing packages": "import asyncio, http.server, xml.dom.minidom, email.mime.text, unittest.mock, sqlite3",
    "grep -r": "subprocess.run(['grep', '-rc', 'no such word', '.'], stdout=subprocess.DEVNULL)",
    "git status": "subprocess.run(['git', '-c', 'safe.directory=*', 'status', '--short'], check=True)",
    "only open and stat": "for i in range(5000): os.close(os.open('0/0', os.O_RDONLY)); os.stat('/usr/bin/env')",
}
FILES_PER_FOLDER = 100


def ask(effort: Effort) -> Answer:
    has_git = shutil.which("git") is not None
    works = {name: work for name, work in WORKS.items() if has_git or "git" not in name}
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(host, "has_fuse", lambda: False):
        _tree(Path(folder), effort.pick(20, 20), with_git=has_git)
        tables = tuple(
            race(name, {"nothing hidden": partial(_took_ms, work, folder, PLAIN),
                        "open notification": partial(_took_ms, work, folder, WATCHED)}, turns=effort.pick(5, 3))
            for name, work in works.items()
        )  # fmt: skip
    return Answer(tables=tables, skipped={} if has_git else {"git status": "git is not installed"})


def _tree(place: Path, folders: int, *, with_git: bool) -> None:
    """Some thousand small files, committed."""
    place.chmod(0o755)
    for number in range(folders):
        (place / str(number)).mkdir()
        for file in range(FILES_PER_FOLDER):
            (place / str(number) / str(file)).write_text("some words of text\n" * 40)
    if with_git:
        author = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
        for words in (("init", "-q"), ("add", "."), (*author, "commit", "-qm", "tree")):
            subprocess.run(["git", *words], cwd=place, check=True)


def _took_ms(work: str, folder: str, policy: SandboxPolicy) -> float:
    outcome = run(Job(argv=(sys.executable, "-c", TIMED.format(work=work)), cwd=folder), policy)
    assert outcome.rc == 0, outcome.stderr
    return float(outcome.stdout.split()[-1]) * 1e3
