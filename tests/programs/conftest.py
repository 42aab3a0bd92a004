"""Workspaces for real programs."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs.workshop import listing

CLOSED_FOLDER, CLOSED_FILE = 0o700, 0o600


@pytest.fixture
def workspace() -> Iterator[Path]:
    """A directory that only its owner can enter, with some files; whatever a test does, it is the same afterwards."""
    with tempfile.TemporaryDirectory(prefix="workshop-", dir="/var/tmp") as name:
        folder = Path(name) / "project"
        for path in ("src/deep/er", "docs"):
            (folder / path).mkdir(parents=True)
        for path in ("README", "src/one.c", "src/deep/two.txt", "src/deep/er/three.txt", "docs/page"):
            (folder / path).write_text(f"content of {path}\n")
        for path in (folder, *folder.rglob("*")):
            path.chmod(CLOSED_FOLDER if path.is_dir() else CLOSED_FILE)
        before = listing(folder)
        yield folder
        assert listing(folder) == before


@pytest.fixture
def repository() -> Iterator[Path]:
    """A git repository with two commits and packed objects, made on the host."""
    with tempfile.TemporaryDirectory(prefix="workshop-", dir="/var/tmp") as name:
        folder = Path(name) / "repository"
        commands = (
            ["init", "-q", "-b", "main", str(folder)],
            ["-C", str(folder), "commit", "-q", "--allow-empty", "-m", "first"],
            ["-C", str(folder), "commit", "-q", "--allow-empty", "-m", "second"],
            ["-C", str(folder), "gc", "-q"],
        )
        for command in commands:
            identity = ["-c", "user.name=Someone", "-c", "user.email=someone@localhost"]
            subprocess.run(["git", *identity, *command], check=True, capture_output=True)
        (folder / "notes").mkdir()
        (folder / "notes" / "a").write_text("a\n")
        before = listing(folder)
        yield folder
        assert listing(folder) == before
