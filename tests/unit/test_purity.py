"""What conftest.py holds of every test: no process where none is meant (``make quick`` rests on it), and an end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unmeasured


def test_a_pure_test_can_not_start_a_program() -> None:
    with pytest.raises(AssertionError, match=r"mark it with pytest\.mark\.system"):
        subprocess.run(["true"], check=True)


def test_a_pure_test_can_not_fork() -> None:
    with pytest.raises(AssertionError, match=r"os\.fork"):
        if os.fork() == 0:
            os._exit(0)


@pytest.mark.system
def test_a_test_that_says_so_can() -> None:
    assert subprocess.run(["true"], check=False).returncode == 0


@pytest.mark.timeout(300)
@pytest.mark.system
def test_a_test_that_hangs_ends_its_worker_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_runtest_protocol\n")
    (tmp_path / "test_it.py").write_text("import time\ndef test_hangs(): time.sleep(600)\ndef test_ends(): pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-p", "no:cacheprovider", str(tmp_path)]
    variables = os.environ | {"RINGFENCE_TEST_HANGS_S": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout and "test_it.py::test_hangs" in done.stdout
    assert "in test_hangs" in done.stderr
