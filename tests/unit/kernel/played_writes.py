"""A kernel that is played by plain files takes writes to groups as a test says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ringfence.kernel.cgroup import tree as cgroup_tree


def play(monkeypatch: pytest.MonkeyPatch, write: Callable[[str, str], object]) -> None:
    def write_back(path: str, text: str) -> str:
        write(path, text)
        return Path(path).read_text()

    monkeypatch.setattr(cgroup_tree, "write", write)
    monkeypatch.setattr(cgroup_tree, "write_back", write_back)
