"""An ordinary user with an interpreter and a copy of the project that it can read: for root, who is bound by less."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests import packages, shared_host

ROOT = Path(__file__).resolve().parent.parent
NAME = "ringfence-test"
PARTS = (".github", "src", "tests", "examples", "bench", "corpus", "docs", "config", "deploy", "release")
PARTS += ("pyproject.toml", "Makefile", "hatch_build.py", "LICENSE", "action.yml")
# Of the development packages the ordinary user's tests need all but the checkers.
_CHECKERS = ("mypy", "ruff", "types-")
# What tests/programs installs with, packages whose suites it runs, and clients; root's tests fetch those themselves.
_FOR_PROGRAMS = ("pip", "toolz", "simplejson", "joblib", "requests", "aiohttp")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where that user's tests run, and with which interpreter."""

    project: Path
    python: tuple[str, ...]
    """The command that becomes the user and starts its interpreter."""
    base: str
    """An argument of pytest's: temporary directories lie where root removes them, for layers have some that their owner
    can't. The path is short, for sockets."""

    def with_variables(self, variables: Mapping[str, str]) -> tuple[str, ...]:
        """The same command with more in its environment, which is not the caller's."""
        *become, interpreter = self.python
        return (*become, *(f"{name}={value}" for name, value in variables.items()), interpreter)


@contextmanager
def prepared() -> Iterator[Callable[[], Place]]:
    """Prepare it beside other work; what is yielded waits for it. Nothing is prepared unless the caller is root."""
    if os.geteuid() != 0:
        yield _refuse
        return
    with (
        tempfile.TemporaryDirectory(prefix="user-", dir="/var/tmp") as folder,
        tempfile.TemporaryDirectory(prefix="u", dir="/tmp") as temporary,
        ThreadPoolExecutor(1) as beside,
    ):
        yield beside.submit(_prepare, Path(folder), temporary).result


def _refuse() -> Place:
    raise SystemExit("only root can become an ordinary user")


def _prepare(folder: Path, temporary: str) -> Place:
    folder.chmod(0o755)
    shared_host.make_user(NAME)
    python, project = _interpreter(), folder / "project"
    documents = [document.name for document in ROOT.glob("*.md")]
    for part in (*PARTS, *documents):
        _copy(ROOT / part, project / part)
    subprocess.run(["chown", "-R", NAME, str(project)], check=True)
    become = ("setpriv", f"--reuid={NAME}", f"--regid={NAME}", "--init-groups", "--reset-env")
    subprocess.run([*become, str(python), "-m", "compileall", "-q", str(project / "src")], check=True)
    variables = ("env", f"PYTHONPATH={project}/src")
    shutil.chown(temporary, NAME)
    return Place(project=project, python=(*become, *variables, str(python)), base=f"--basetemp={temporary}/t")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "results"))
    elif source.exists():
        shutil.copy(source, target)


def _interpreter() -> Path:
    """An environment that another user can read: an interpreter below root's home is not."""
    base = next((path for path in _interpreters() if _readable_by_all(path)), None)
    if base is None:
        raise SystemExit("no Python 3.11 or later that an ordinary user could read; install python3")
    packages.test_package(base)
    wanted = _packages()
    kept = _kept_place(base, wanted)
    with shared_host.alone("venv"):
        if not (kept / "bin" / "python").exists():
            part = kept.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            _make(base, part, wanted)
            part.rename(kept)
    return kept / "bin" / "python"


def _make(base: Path, environment: Path, wanted: list[str]) -> None:
    subprocess.run([str(base), "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *wanted]
    subprocess.run(install, check=True, stderr=subprocess.DEVNULL)
    environment.chmod(0o755)


def _kept_place(base: Path, wanted: list[str]) -> Path:
    """Where the environment is kept for the next run."""
    # Not with our prefix: attacks look for that in the mount table, where the interpreter stands too.
    key = hashlib.sha256(repr((str(base), sys.version, wanted)).encode()).hexdigest()[:16]
    return shared_host.folder() / f"venv-{key}"


def _packages() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    return [*(package for package in wanted if not package.startswith(_CHECKERS)), *_FOR_PROGRAMS]


def _interpreters() -> list[Path]:
    own = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    return [own, *(Path(f"/usr/bin/python3.{minor}") for minor in (13, 12, 11))]


def _readable_by_all(path: Path) -> bool:
    if not path.exists():
        return False
    return all(parent.stat().st_mode & 0o005 == 0o005 for parent in (path.resolve(), *path.resolve().parents))
