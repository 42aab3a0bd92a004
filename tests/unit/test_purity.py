"""``make quick`` rests on this: a test in tests/unit starts no process unless it is marked ``system``."""

from __future__ import annotations

import os
import subprocess

import pytest


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
