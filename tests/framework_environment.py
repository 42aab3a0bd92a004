"""Other people's frameworks for tests: pip puts each into a cache directory of its own. Too large for a dev extra."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from tests.testable import not_testable_here

# Nothing that a framework would tell its makers leaves this machine: it is told not to, and finds no way to them.
SILENT = {
    **dict.fromkeys(("HARBOR_TELEMETRY", "RAY_USAGE_STATS_ENABLED"), "0"),
    **dict.fromkeys(("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2", "ANONYMIZED_TELEMETRY"), "false"),
    **dict.fromkeys(("DO_NOT_TRACK", "HF_HUB_DISABLE_TELEMETRY", "OPENAI_AGENTS_DISABLE_TRACING"), "1"),
    "INSPECT_TELEMETRY": "",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
_NO_WAY = {  # not for Ray, whose own calls would take it
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1,localhost,::1"),
}
SOURCE = Path(__file__).resolve().parents[1] / "src"
_PIP_S = 1200

# What a door is tested with: the newest that resolves, and no older than its extra allows.
WANTED: Mapping[str, tuple[str, ...]] = {
    "ray": ("ray>=2.52",),
    "mcp": ("mcp>=2.3,<3",),
    "smolagents": ("smolagents>=1.26",),
    "langchain": ("langchain-core>=1.7", "deepagents"),
    "openai-agents": ("openai-agents",),
    "openai": ("langchain-openai",),  # the model of an example, for LangChain; Inspect takes the client in it
    "inspect": ("inspect-ai>=0.3.285", "pytest<9", "pytest-asyncio"),
    "harbor": ("harbor>=0.24", "PyYAML", "cryptography", "h11", "rfc8785"),
    "docs": ("mkdocs>=1.6,<2", "mkdocs-material>=9.5,<10"),
    "jupyter": ("jupyter_client>=8", "ipykernel>=6", "matplotlib"),
    "cyclonedx": ("cyclonedx-python-lib[json-validation]>=11",),
}


def framework_environment(name: str, *also: str, python: str = sys.executable) -> dict[str, str]:
    """The environment in which an interpreter finds the framework and this source; «not testable here» where it can't
    be had. ``also``: more directories with modules."""
    found = environment_with(*also, str(packages_of(name, python)))
    return found | _NO_WAY | {"PYTHONDONTWRITEBYTECODE": "1"}


def environment_with(*folders: str) -> dict[str, str]:
    """This environment, in which an interpreter finds this source and the modules of these directories."""
    return {**os.environ, **SILENT, "PYTHONPATH": os.pathsep.join((str(SOURCE), str(SOURCE.parent), *folders))}


def entry_points(folder: Path, group: str) -> Path:
    """A directory with the entry points of one group as they would be installed; modules are looked for there."""
    points = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]["entry-points"][group]
    metadata = folder / "installed" / "ringfence_here-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: ringfence-here\nVersion: 0\n")
    lines = [f"[{group}]", *(f"{name} = {place}" for name, place in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return metadata.parent


def newer_python(least: tuple[int, int]) -> str:
    """An interpreter of this version or a later one; «not testable here» where there is none."""
    if sys.version_info[:2] >= least:
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    named = [f"/usr/bin/python3.{minor}" for minor in range(least[1], least[1] + 4)]
    programs = (*named, *map(str, sorted(pyenv.glob("3.*/bin/python3"))))
    found = (each for each in programs if os.access(each, os.X_OK) and version_of(each) >= least)
    return next(found, "") or not_testable_here(f"there is no Python {least[0]}.{least[1]} or later")


def version_of(python: str) -> tuple[int, ...]:
    asked = [python, "-c", "import sys, pip; print(*sys.version_info[:2])"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else ()


def packages_of(name: str, python: str = sys.executable) -> Path:
    """The directory that pip has put a framework into."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ringfence-tests"
    major, minor = sys.version_info[:2] if python == sys.executable else version_of(python)
    full = f"{name}-{major}.{minor}-{platform.machine()}"
    folder = base / full / "site-packages"  # by this name a sandbox knows packages
    base.mkdir(parents=True, exist_ok=True)
    with open(base / f"{full}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _install(python, WANTED[name], base / f"{full}.part", folder)
    return folder


def _install(python: str, wanted: tuple[str, ...], part: Path, folder: Path) -> None:
    """Whole or not at all."""
    shutil.rmtree(part, ignore_errors=True)
    command = [python, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "--target", str(part), *wanted]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_S, check=False)
        problem = (done.stderr.strip().splitlines() or ["it said nothing"])[-1] if done.returncode else ""
    except subprocess.TimeoutExpired:
        problem = "pip took too long"
    if problem:
        shutil.rmtree(part, ignore_errors=True)
        not_testable_here(f"{', '.join(wanted)} can't be had: {problem}")
    folder.parent.mkdir(exist_ok=True)
    part.rename(folder)
