"""The parts in C are built where a compiler is found, and missed nowhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = [pytest.mark.system, pytest.mark.skipif(sys.platform != "linux", reason="Linux only")]


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The build hook, with a copy of the sources."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sources = tmp_path / "native"
    sources.mkdir()
    for path in (ROOT / "src" / "ringfence" / "native").glob("*.[ch]"):
        shutil.copy(path, sources)
    monkeypatch.setattr(module, "NATIVE", sources)
    monkeypatch.setattr(module, "filters", list)
    return module


def _hook(builder: ModuleType) -> dict[str, object]:
    data: dict[str, object] = {"force_include": {}}
    builder.CustomBuildHook.initialize(object(), "standard", data)
    return data


@pytest.mark.skipif(shutil.which("cc") is None and shutil.which("gcc") is None, reason="needs a compiler")
def test_with_a_compiler_the_wheel_has_both_parts(builder: ModuleType) -> None:
    data = _hook(builder)
    machine = os.uname().machine
    assert data["pure_python"] is False and machine in str(data["tag"])
    packed = data["force_include"]
    assert isinstance(packed, dict)
    assert sorted(packed.values()) == [f"ringfence/native/{part}-{machine}{end}"
                                      for part, end in (("calls", ".so"), ("first", ""), ("init", ""), ("visits", ""))]
    # On aarch64 GNU's linker fills the library up to a page of 64 KiB; Zig's does not.
    assert all(0 < Path(path).stat().st_size < 65536 + 16384 for path in packed)


def test_every_wheel_has_the_filters(builder: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Path("programs-x86_64.bin")
    monkeypatch.setattr(builder, "filters", lambda: [made])
    monkeypatch.setattr(builder, "compiler", lambda _: None)
    assert _hook(builder) == {"force_include": {str(made): f"ringfence/kernel/seccomp/{made}"}}


@pytest.mark.skipif(shutil.which("readelf") is None or shutil.which("cc") is None, reason="needs binutils")
def test_no_part_has_memory_that_is_written_and_executed_or_asks_for_a_library(builder: ModuleType) -> None:
    for part in builder.build(os.uname().machine):
        told = subprocess.run(["readelf", "-lWd", part], capture_output=True, text=True, check=True).stdout
        assert "RWE" not in told and "NEEDED" not in told and "INTERP" not in told


def test_without_a_compiler_the_wheel_is_pure(builder: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "compiler", lambda _: None)
    assert _hook(builder) == {"force_include": {}}


def test_a_compiler_that_fails_leaves_nothing(builder: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "compiler", lambda _: ["false"])
    assert _hook(builder) == {"force_include": {}}
    assert {path.suffix for path in builder.NATIVE.iterdir()} == {".c", ".h"}


def test_a_pure_wheel_can_be_asked_for(builder: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGFENCE_PURE", "1")
    assert "tag" not in _hook(builder)


def test_what_an_earlier_build_left_is_never_packed(builder: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    (builder.NATIVE / "calls-x86_64.so").write_bytes(b"old")
    monkeypatch.setattr(builder, "compiler", lambda _: None)
    _hook(builder)
    assert not (builder.NATIVE / "calls-x86_64.so").exists()
