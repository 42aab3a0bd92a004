"""Every example in a docstring is run, and gives what is written under it."""

from __future__ import annotations

import doctest
import importlib
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

SOURCE = Path(__file__).resolve().parents[2] / "src"
WITH_EXAMPLES = sorted(path for path in SOURCE.rglob("*.py") if ">>> " in path.read_text(encoding="utf-8"))


def _name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=_name)
def test_the_examples_of_a_docstring_give_what_is_written(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sys.platform != "linux" and path.parent.name == "engine":
        pytest.skip("these run jobs")
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(importlib.import_module(_name(path)))
    assert found.attempted and not found.failed
