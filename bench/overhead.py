"""What do real pytest suites cost under ``run_pytests_v2``, against plain ``python -m pytest``?"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.harness import Answer, Effort, Table, race, timed_ms
from ringfence import SandboxPolicy, run_pytests_v2

QUESTION = "a pytest suite under run_pytests_v2 against plain python -m pytest"
ROOT = Path(__file__).resolve().parent.parent
# Suites that come with the packages themselves, and the project's own.
OWN = ("tests/unit/model", "tests/unit/engine/test_verdict.py")

WORKING = """
import hashlib, json, os, subprocess, sys, pytest
@pytest.mark.parametrize("n", range(60))
def test_hash(n): assert len(hashlib.sha256(os.urandom(200_000)).hexdigest()) == 64
@pytest.mark.parametrize("n", range(60))
def test_json(n): assert json.loads(json.dumps(list(range(5000)))) == list(range(5000))
@pytest.mark.parametrize("n", range(20))
def test_files(n, tmp_path):
    for i in range(50): (tmp_path / str(i)).write_text("x" * 1000)
    assert len(list(tmp_path.iterdir())) == 50
@pytest.mark.parametrize("n", range(8))
def test_subprocess(n): assert subprocess.run(["true"]).returncode == 0
"""


def ask(effort: Effort) -> Answer:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_working.py").write_text(WORKING)
        suites = {"own unit tests": [str(ROOT / name) for name in OWN if (ROOT / name).exists()],
                  "hashing, JSON, files, processes": [folder]}  # fmt: skip
        if effort is Effort.TINY:
            suites.pop("own unit tests")
        return Answer(tables=tuple(_compare(name, paths, effort.pick(15, 5)) for name, paths in suites.items()))


def _compare(name: str, paths: list[str], turns: int) -> Table:
    policy = SandboxPolicy(wall_time_s=300, cpu_time_s=300, mem_bytes=2 << 30, pids_max=256)
    environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}

    def plain() -> None:
        with tempfile.TemporaryDirectory() as cache:  # as a user has it, but no run finds the last one's
            command = [sys.executable, "-m", "pytest", "-q", "-o", f"cache_dir={cache}", *paths]
            subprocess.run(command, stdout=subprocess.DEVNULL, cwd=ROOT, env=environment, check=True)

    def sandboxed() -> None:
        result = run_pytests_v2(paths, policy, arguments=["-q"])
        assert result["status"] == "OK", result["reason"]

    contenders = {"plain pytest": timed_ms(plain), "ringfence run_pytests_v2": timed_ms(sandboxed)}
    return race(name, contenders, turns=turns)
