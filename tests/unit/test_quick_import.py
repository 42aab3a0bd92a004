"""The finder of the command line takes compiled files of the sources as they are, and no others."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path
from types import SimpleNamespace

import pytest

from ringfence.cli import quick_import
from ringfence.cli.quick_import import QuickFinder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "module.py").write_text("VALUE = 1\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("VALUE = 2\n")
    for source in tmp_path.rglob("*.py"):
        py_compile.compile(str(source), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP)
    return tmp_path


def _value(folder: Path, name: str = "ringfence.module") -> object:
    spec = QuickFinder.find_spec(name, [str(folder)])
    if spec is None:
        return None
    module = type(sys)(name)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    assert module.__file__ == spec.origin
    return module.VALUE


def test_what_was_compiled_is_taken(folder: Path) -> None:
    assert _value(folder) == 1
    spec = QuickFinder.find_spec("ringfence.package", [str(folder)])
    assert spec is not None and spec.submodule_search_locations == [str(folder / "package")]
    assert _value(folder, "ringfence.package") == 2


def test_files_beside_modules_are_found_as_ever(folder: Path) -> None:
    """A report is made of such files, and was empty where the loader had none."""
    spec = QuickFinder.find_spec("ringfence.package", [str(folder)])
    assert spec is not None and spec.loader is not None
    (folder / "package" / "style.css").write_bytes(b"p { }")
    assert spec.loader.get_data(str(folder / "package" / "style.css")) == b"p { }"  # type: ignore[attr-defined]


@pytest.mark.system
def test_the_command_line_prints_a_whole_page(ringfence_command: list[str]) -> None:
    done = subprocess.run([*ringfence_command, "verify-page"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("<!DOCTYPE html>") and "--paper" in done.stdout


def test_modules_of_others_are_left_alone(folder: Path) -> None:
    assert _value(folder, "another.module") is None and QuickFinder.find_spec("ringfence", None) is None


def test_a_source_that_has_changed_since_is_left_to_python(folder: Path) -> None:
    source = folder / "module.py"
    source.write_text("VALUE = 3  # longer\n")
    assert _value(folder) is None


def test_a_source_with_another_time_is_left_to_python(folder: Path) -> None:
    os.utime(folder / "module.py", (1, 1))
    assert _value(folder) is None


@pytest.mark.parametrize("damage", [b"", b"abcd", b"\0" * 16], ids=["empty", "another Python", "no magic"])
def test_a_file_of_another_python_is_left_to_python(folder: Path, damage: bytes) -> None:
    compiled = Path(cache_from_source(str(folder / "module.py")))
    compiled.write_bytes(damage + compiled.read_bytes()[len(damage) :] if damage else b"")
    assert _value(folder) is None


def test_a_file_that_is_cut_is_left_to_python(folder: Path) -> None:
    compiled = Path(cache_from_source(str(folder / "module.py")))
    compiled.write_bytes(compiled.read_bytes()[:30])
    assert _value(folder) is None


def test_one_that_is_checked_by_its_content_is_left_to_python(folder: Path) -> None:
    mode = py_compile.PycInvalidationMode.CHECKED_HASH
    py_compile.compile(str(folder / "module.py"), doraise=True, invalidation_mode=mode)
    assert _value(folder) is None


@pytest.mark.system
def test_the_command_line_has_it_and_importing_ringfence_does_not(ringfence_command: list[str]) -> None:
    code = "import sys, ringfence, ringfence.engine.run; print([str(each) for each in sys.meta_path])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "QuickFinder" not in found
    done = subprocess.run([*ringfence_command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ringfence ")


@pytest.mark.parametrize(("system", "used"), [("posix", True), ("nt", False)])
def test_windows_has_other_paths_and_its_own_finder_only(
    system: str, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quick_import, "os", SimpleNamespace(name=system))
    monkeypatch.setattr(sys, "meta_path", [])
    monkeypatch.setattr(sys, "pycache_prefix", None)
    quick_import.install()
    assert sys.meta_path == ([QuickFinder] if used else [])
