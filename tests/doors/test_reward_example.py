"""The example of many machine-written programs in parallel, in a short form: each is told for what it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.privileges, pytest.mark.unmeasured]

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "reward_500.py"


def test_each_program_gets_the_reward_that_it_deserves(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(PROGRAM), "16"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *rows, mean = done.stdout.splitlines()
    told = {row[7:19].strip(): row[20:] for row in rows}
    # A group refuses tasks and lets the bomb try on until its time is over; where there is none, a watchdog ends it.
    assert told.pop("fork bomb") in ("reward 0  TIMEOUT", "reward 0  PIDS_LIMIT")
    assert told == {
        "right": "reward 1  value",
        "wrong": "reward 0  value",
        "syntax error": "reward 0  SyntaxError",
        "exit": "reward 0  it ended without returning a value",
        "forged": "reward 0  what it wrote into its channel is not a message of this version",
        "memory": "reward 0  MEM_LIMIT",
        "loop": "reward 0  TIMEOUT",
    }
    assert len(rows) == len(told) + 1 and mean == "mean reward 0.37 of 19 programs"
