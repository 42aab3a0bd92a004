"""Who may import whom, what loads what at run time, and what must not exist."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ringfence

PACKAGE = Path(__file__).resolve().parent.parent.parent / "src" / "ringfence"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Low to high; a layer may import those below it and itself, never its neighbours.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"errors"}),
    frozenset({"model"}),
    frozenset({"linux", "posix", "windows", "container", "machine", "network", "validation", "evidence", "checkpoint"}),
    frozenset({"monitor"}),
    frozenset({"backends"}),
    frozenset({"engine"}),
    frozenset({"pytest_runner", "docker_executor", "manager", "proctor"}),
    frozenset({"cli", "service", "mcp_server", "integrations"}),
)
# posix is what Linux and macOS share; on Linux it uses the kernel mechanisms beside it.
ALLOWED_SIDEWAYS = {("posix", "linux")}
FORBIDDEN_NAMES = {"utils", "helpers", "common", "core", "base", "misc"}


def _layer(name: str) -> int:
    return next(number for number, names in enumerate(LAYERS) if name in names)


def _package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imported(path: Path) -> set[str]:
    """The ringfence packages that a module imports anywhere, type checking included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module == "ringfence":
            names = [f"ringfence.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("ringfence.")}
    return found - {"__version__"}


@pytest.mark.parametrize("path", [m for m in MODULES if _package_of(m) not in ("__init__", "__main__")],
                         ids=lambda path: str(path.relative_to(PACKAGE)))  # fmt: skip
def test_no_module_imports_upwards_or_sideways(path: Path) -> None:
    own = _package_of(path)
    for other in _imported(path):
        allowed = other == own or _layer(other) < _layer(own) or (own, other) in ALLOWED_SIDEWAYS
        assert allowed, f"{path.relative_to(PACKAGE)} imports ringfence.{other}"


def test_the_layer_check_sees_an_import_upwards(tmp_path: Path) -> None:
    module = tmp_path / "bad.py"
    module.write_text("def f():\n    from ringfence.engine.run import run\n")
    assert _imported(module) == {"engine"}


def test_no_module_is_named_after_nothing() -> None:
    assert not [path for path in MODULES if path.stem in FORBIDDEN_NAMES]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module_says_what_it_owns(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_and_no_function_is_too_long_to_read(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
    assert text.count("\n") <= 400
    assert not [node.name for node in functions if (node.end_lineno or 0) - node.lineno >= 60]


def _loaded_by(code: str) -> set[str]:
    report = "; import sys; print('\\n'.join(sys.modules))"
    start = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); "
    command = [sys.executable, "-I", "-S", "-c", start + code + report]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.system
def test_the_spawner_loads_only_what_it_forks_with() -> None:
    loaded = _loaded_by("import ringfence.posix.forker")
    ours = {name for name in loaded if name.startswith("ringfence.")}
    names = ("forker", "job_start", "job_tree", "layer_room", "passing", "plan", "processor_time", "rlimits", "standby",
             "visit", "watchdog", "wire")  # fmt: skip
    by_linux = {"ringfence.linux", "ringfence.linux.processes", "ringfence.linux.syscalls"}  # every fork uses them
    assert ours == {"ringfence.posix", *(f"ringfence.posix.{name}" for name in names), *by_linux}
    assert not loaded & {"dataclasses", "typing", "json", "subprocess", "threading", "asyncio", "yaml"}


def test_a_star_import_leaves_the_open_of_python_alone() -> None:
    names: dict[str, object] = {}
    exec("from ringfence import *", names)
    assert "Pool" in names and "open" not in names
    assert "open" in dir(ringfence) and callable(ringfence.open)


@pytest.mark.system
def test_importing_ringfence_loads_nothing_else_of_it() -> None:
    assert {name for name in _loaded_by("import ringfence") if name.startswith("ringfence.")} == set()


@pytest.mark.system
def test_the_main_path_does_not_load_what_is_slow_to_load() -> None:
    loaded = _loaded_by("import ringfence.cli.run, ringfence.backends.process")
    assert not loaded & {"dataclasses", "inspect", "typing", "json", "subprocess", "asyncio", "yaml", "tempfile"}
