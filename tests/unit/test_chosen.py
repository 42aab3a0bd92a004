"""Which files a pass reads: all that have a test of it, and the pure ones each in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import chosen


@pytest.mark.parametrize(("name", "text", "left_out"), [
    ("system", "def test_a(): ...", True), ("system", "pytestmark = pytest.mark.system", False),
    ("user", "pytestmark = pytest.mark.system", True), ("user", "@pytest.mark.privileges", False),
    ("", "def test_a(): ...", False), ("another", "def test_a(): ...", False),
])  # fmt: skip
def test_a_pass_reads_no_file_without_its_mark(
    name: str, text: str, left_out: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chosen, "UNIT", tmp_path)
    monkeypatch.setenv(chosen.VARIABLE, name)
    for file in ("test_it.py", "conftest.py", "of_tests.py"):
        (tmp_path / file).write_text(text)
        assert chosen.is_left_out(tmp_path / file) is (left_out and file == "test_it.py")
    assert not chosen.is_left_out(tmp_path)


def test_what_is_not_in_the_folder_of_pure_tests_is_never_pure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_it.py").write_text("def test_a(): ...")
    monkeypatch.setenv(chosen.VARIABLE, chosen.SYSTEM)
    assert not chosen.is_left_out(tmp_path / "test_it.py")


def test_no_mark_comes_from_elsewhere() -> None:
    """A file that names no mark has none: so no conftest.py gives these."""
    files = [path for path in (chosen.ROOT / "tests").rglob("conftest.py") if path.parent != chosen.ROOT / "tests"]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    assert files and not [path for path, text in texts.items() if "pytest.mark" in text or "add_marker" in text]


@pytest.mark.parametrize("count", [1, 2, 3, 16])
def test_each_file_is_in_one_part(count: int) -> None:
    parts = chosen.parts(count)
    files = sorted(map(str, chosen.UNIT.rglob("test_*.py")))
    assert sorted(name for part in parts for name in part) == files and len(parts) == count
    assert len({place for place, part in enumerate(parts) for name in part if Path(name).parent == chosen.UNIT}) == 1
