"""Inspect finds our provider by its entry point, its own checks pass, and a real eval runs in it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.framework_environment import entry_points, framework_environment

if sys.platform != "linux":
    pytest.skip("needs isolation strict", allow_module_level=True)

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.unmeasured, pytest.mark.long]
ROOT = Path(__file__).resolve().parents[2]
CHECKS = 44
"""Of the version that was tried; newer ones may have more."""


def _environment(tmp_path: Path) -> dict[str, str]:
    """With the entry points as they would be installed."""
    return framework_environment("inspect", str(entry_points(tmp_path, "inspect_ai")))


def test_inspects_own_checks_pass(tmp_path: Path) -> None:
    words = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest", "-q", "-o", "asyncio_mode=auto")
    environment = _environment(tmp_path) | {"PYTEST_ADDOPTS": ""}
    checks = tmp_path / "test_checks.py"
    checks.write_text((ROOT / "tests/doors/inspect_checks.py").read_text())
    command = [sys.executable, "-m", "pytest", *words, "-c", os.devnull, f"--rootdir={tmp_path}", str(checks)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|xfailed)", done.stdout)}
    assert counts["passed"] >= CHECKS - 1 and counts["xfailed"] == 1, "users alone; the reason is beside the mark"


def _eval(tmp_path: Path, policy: str = "") -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.doors.inspect_program", policy, str(tmp_path / "logs")]
    done = subprocess.run(command, cwd=ROOT, env=_environment(tmp_path), capture_output=True, text=True, timeout=900,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return said


def test_an_eval_with_a_scripted_model_runs_to_its_score(tmp_path: Path) -> None:
    said = _eval(tmp_path)
    assert (said["status"], said["accuracy"]) == ("success", 1.0), said
    assert said["said"][0].startswith("a question") and "hidden\n42" in said["said"][1], "files stay between calls"


def test_a_policy_that_this_host_cannot_hold_fails_the_eval(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("isolation: container\nimage: no.such.registry.invalid/image:1\n")
    said = _eval(tmp_path, str(policy))
    assert said["status"] == "error" and said["accuracy"] is None
