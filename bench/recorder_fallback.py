"""What do hidden paths cost where no tripwire can be mounted, and every call that names a file is told?

The same work inside STRICT with nothing hidden and with one hidden path that it never touches, timed by the work
itself. A notification costs two changes of process and a look; a call that names a file costs 1 or 2 µs. So the
ratio says how much of the work is naming files.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from bench.harness import Row, compare, report
from ringfence import Job, SandboxPolicy, run
from ringfence.linux import host

QUESTION = "work inside STRICT with a hidden path under open notification against the same with nothing hidden"
TURNS = 5
TIMED = "import os, subprocess, time\nstart = time.perf_counter()\n{work}\nprint(time.perf_counter() - start)"
WORKS = {
    "computing": "n = 0\nfor i in range(3_000_000): n = (n * 31 + i) % 1_000_003",
    "importing packages": "import asyncio, http.server, xml.dom.minidom, email.mime.text, unittest.mock, sqlite3",
    "grep -r": "subprocess.run(['grep', '-rc', 'no such word', '.'], stdout=subprocess.DEVNULL)",
    "git status": "subprocess.run(['git', 'status', '--short'], check=True)",
    "only open and stat": "for i in range(5000): os.close(os.open('0/0', os.O_RDONLY)); os.stat('/usr/bin/env')",
}
FOLDERS, FILES = 20, 100


def main() -> None:
    host.has_fuse = lambda device="": False  # a host without FUSE
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/var/tmp") as name:
        _tree(Path(name))
        for work, source in WORKS.items():
            rows += _measured(work, TIMED.format(work=source), name)
    report("recorder_fallback", QUESTION, rows)


def _tree(place: Path) -> None:
    """A repository of some thousand small files, committed."""
    place.chmod(0o755)
    for folder in range(FOLDERS):
        (place / str(folder)).mkdir()
        for file in range(FILES):
            (place / str(folder) / str(file)).write_text("some words of text\n" * 40)
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=place, check=True)


def _measured(work: str, source: str, folder: str) -> list[Row]:
    base = SandboxPolicy(isolation="strict", wall_time_s=300, cpu_time_s=300, mem_bytes=4 << 30)
    policies = {f"{work}: nothing hidden": base, f"{work}: watched": _hiding(base)}
    times: dict[str, list[float]] = {name: [] for name in policies}
    for turn in range(TURNS + 1):
        for name, policy in policies.items():
            outcome = run(Job(argv=(sys.executable, "-c", source), cwd=folder), policy)
            assert outcome.rc == 0, outcome.stderr
            if turn:
                times[name].append(float(outcome.stdout.split()[-1]) * 1e3)
    return compare(times)


def _hiding(policy: SandboxPolicy) -> SandboxPolicy:
    from ringfence.model.record import replace

    return replace(policy, hidden_paths=("/srv/answers",))


if __name__ == "__main__":
    main()
