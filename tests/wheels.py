"""Wheels of other people for tests, fetched into a directory: what a test installs from there asks no index."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.testable import not_testable_here


def download(folder: Path, *wanted: str, python: str = "") -> None:
    """Have pip fetch these and all that they need; «not testable here» where it can't. ``python``: another version than
    this interpreter's, for this machine."""
    machine = os.uname().machine
    platforms = [f"--platform=manylinux{each}_{machine}" for each in ("2014", "_2_28", "_2_34")]
    other = [f"--python-version={python}", *platforms] if python else []
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", f"--dest={folder}", *other,
               *wanted]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        not_testable_here(f"pip can't fetch {', '.join(wanted)}: {done.stderr[-300:]}")
