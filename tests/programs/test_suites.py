"""The test suites of real packages end inside STRICT as they end without a sandbox, test by test."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence import SandboxPolicy, run_pytests_v2
from tests.programs.workshop import POLICY

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured, pytest.mark.long, pytest.mark.once]

# Packages that bring their tests along; of joblib the parts that finish in seconds: processes, locks, races, files.
SUITES = {
    "toolz": ("toolz",),
    "simplejson": ("simplejson",),
    "joblib": tuple(f"joblib/test/test_{name}.py" for name in ("disk", "memory", "store_backends", "testing")),
}


@pytest.fixture(scope="session")
def packages() -> Iterator[Path]:
    """Where they lie: in this environment, or fetched into a directory of their own."""
    found = importlib.util.find_spec("joblib")
    if found and found.origin:
        yield Path(found.origin).parent.parent
        return
    with tempfile.TemporaryDirectory(prefix="suites-", dir="/var/tmp") as folder:
        command = [sys.executable, "-m", "pip", "install", "-q", "--target", folder, *SUITES]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        yield Path(folder)


def _ends(packages: Path, paths: tuple[str, ...], policy: SandboxPolicy) -> dict[str, str]:
    result = run_pytests_v2([packages / path for path in paths], policy, arguments=["-q", "-p", "no:randomly"])
    assert result["tests"], result["reason"] + result["stdout"][-2000:] + result["stderr"][-2000:]
    return {test["test"]: test["outcome"] for test in result["tests"]}


@pytest.mark.parametrize("name", SUITES)
def test_a_real_suite_ends_as_it_does_outside(
    name: str, packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = POLICY.with_changes(environment={"PYTHONPATH": str(packages)}, readable_paths=(str(packages),))
    inside = _ends(packages, SUITES[name], shown)
    plain = SandboxPolicy(isolation="none", wall_time_s=300, environment=shown.environment, allow_partial=True)
    assert inside == _ends(packages, SUITES[name], plain)
    assert list(inside.values()).count("passed") > 40
    assert os.listdir(tmp_path) == []
