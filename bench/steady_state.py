"""Once it runs, is work inside STRICT slower than outside? Start-up is left out: each work times itself.

Four kinds: only computing, starting processes, opening files, and a pytest suite. The last row of each kind is the
whole run as the caller sees it, start and end included.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.harness import Row, compare, report
from ringfence import Job, SandboxPolicy, run

QUESTION = "work inside STRICT against the same work outside, timed by the work itself"
TURNS = 5
POLICY = SandboxPolicy(isolation="strict", wall_time_s=300, cpu_time_s=300, mem_bytes=4 << 30, pids_max=256)

TIMED = "import time\nstart = time.perf_counter()\n{work}\nprint(time.perf_counter() - start)"
WORKS = {
    "computing": "import hashlib\nn = 0\nfor i in range(11_000_000): n = (n * 31 + i) % 1_000_003\n"
    "for i in range(200): hashlib.sha256(bytes(1_000_000)).digest()",
    "starting processes": "import subprocess\nfor _ in range(4000): subprocess.run(['/bin/true'])",
    "opening files": "import os\nfor i in range(300):\n    open(f'f{i}', 'w').write('x' * 100)\n"
    "for _ in range(4500):\n    for i in range(0, 300, 3):\n        os.close(os.open(f'f{i}', os.O_RDONLY))\n"
    "        os.stat('/usr/bin/env')",
    "pytest": "import pytest\nassert pytest.main(['-q', '-p', 'no:cacheprovider', 'test_work.py']) == 0",
}
SUITE = """
import json, os, pytest, subprocess
@pytest.mark.parametrize("n", range(600))
def test_json(n, tmp_path):
    (tmp_path / "f").write_text(json.dumps(list(range(3000))))
    assert json.loads((tmp_path / "f").read_text())[-1] == 2999
@pytest.mark.parametrize("n", range(20))
def test_process(n): assert subprocess.run(["true"]).returncode == 0
"""
FILES = {"test_work.py": SUITE.encode()}


def main() -> None:
    rows: list[Row] = []
    for name, work in WORKS.items():
        rows += _measured(name, TIMED.format(work=work))
    report("steady_state", QUESTION, rows)


def _measured(name: str, source: str) -> list[Row]:
    """Outside and inside take turns; each turn gives the work's own time and the whole."""
    own: dict[str, list[float]] = {f"{name}: outside": [], f"{name}: inside": []}
    whole: dict[str, list[float]] = {f"{name}: outside, whole": [], f"{name}: inside, whole": []}
    runners: tuple[Callable[[str], float], ...] = (_outside, _inside)
    for turn in range(TURNS + 1):
        for runner, times, wholes in zip(runners, own.values(), whole.values(), strict=True):
            start = time.perf_counter()
            took_s = runner(source)
            if turn:
                times.append(took_s * 1e3)
                wholes.append((time.perf_counter() - start) * 1e3)
    return [*compare(own), *compare(whole)[1:]]


def _outside(source: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in FILES.items():
            (Path(folder) / name).write_bytes(content)
        command = [sys.executable, "-c", source]
        environment = {"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"}
        done = subprocess.run(command, cwd=folder, capture_output=True, check=True, env=environment)
    return _last_number(done.stdout)


def _inside(source: str) -> float:
    outcome = run(Job(argv=(sys.executable, "-c", source), files=FILES), POLICY)
    assert outcome.rc == 0, outcome.reason
    return _last_number(outcome.stdout)


def _last_number(told: bytes) -> float:
    return float(told.split()[-1])


if __name__ == "__main__":
    main()
