"""Gets peers and compiled parts from where a user would get them, into a cache directory outside the tree.

Debian's packages are the exception: they are installed into the system, by root only. Nothing is installed with
``RINGFENCE_BENCH_INSTALL=0``. What can't be had is a ``NotHere`` that says why.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.harness import NotHere

SWITCH = "RINGFENCE_BENCH_INSTALL"
PATIENCE_S = 300
_APT = ("apt-get", "-qq", "-o", f"DPkg::Lock::Timeout={PATIENCE_S}")


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ringfence-bench"


@contextmanager
def temporary_folder(prefix: str) -> Iterator[str]:
    """A directory outside of /tmp and /var/tmp: for tasks in there the recorder of a proctored run is another one."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=cache_folder()) as folder:
        yield folder


def from_debian(program: str, packages: Sequence[str]) -> str:
    """The path of a program, from the system or, for root, from Debian's packages."""
    found = shutil.which(program)
    if found:
        return found
    by_hand = f"apt-get install {' '.join(packages)}"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise NotHere(f"{program} is not installed; as root: {by_hand}")
    with _alone("apt"):
        if not shutil.which(program):  # else another has installed it meanwhile
            _fetch([*_APT, "update"], what="apt-get update")
            _fetch([*_APT, "install", "-y", "--no-install-recommends", *packages], what=by_hand)
    return _present(shutil.which(program), program)


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Many tests ask at the same time, and the first who finds a package manager busy would go without."""
    with open(os.path.join(tempfile.gettempdir(), f"ringfence-{name}-{os.geteuid()}.lock"), "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def from_pypi(package: str) -> str:
    """The path of an interpreter of its own that has the package."""
    python = cache_folder() / package / "bin" / "python"
    ready = cache_folder() / package / ".ready"
    if not ready.exists():
        _fetch([sys.executable, "-m", "venv", str(python.parent.parent)], what="a venv")
        _fetch([str(python), "-m", "pip", "install", "-q", package], what=f"pip install {package}")
        ready.touch()
    return _present(str(python) if python.exists() else None, package)


def wheel_of(package: str) -> Path:
    """The wheel of a package (``name==version``). A source package would run its code here."""
    folder = cache_folder() / "wheels" / package
    if not any(folder.glob("*.whl")):
        wanted = ["--no-deps", "--only-binary=:all:", "--dest", str(folder), package]
        _fetch([sys.executable, "-m", "pip", "download", "-q", *wanted], what=f"pip download {package}")
    return Path(_present(next(map(str, folder.glob("*.whl")), None), package))


def from_npm(package: str, program: str) -> str:
    """The path of a program of an npm package."""
    folder = cache_folder() / program
    path = folder / "node_modules" / ".bin" / program
    if not path.exists():
        if not shutil.which("npm"):
            raise NotHere("npm is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        _fetch(["npm", "install", "--silent", "--prefix", str(folder), package], what=f"npm install {package}")
    return _present(str(path) if path.exists() else None, program)


def compiled(source: Path) -> str:
    """The path of a C program, compiled once for each text of it."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    program = cache_folder() / f"{source.stem}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    if program.exists():
        return str(program)
    if not compiler:
        raise NotHere("no C compiler is installed")
    program.parent.mkdir(parents=True, exist_ok=True)
    beside = program.with_suffix(f".{os.getpid()}")
    _run([compiler, "-O2", "-o", str(beside), str(source)], what=f"compiling {source.name}")
    beside.replace(program)
    return str(program)


def _fetch(command: list[str], *, what: str) -> None:
    if os.environ.get(SWITCH) == "0":
        raise NotHere(f"not installed, and {SWITCH}=0 forbids it")
    _run(command, what=what)


def _run(command: list[str], *, what: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            stdin=subprocess.DEVNULL, env=environment,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotHere(f"{what} failed: {type(error).__name__}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise NotHere(f"{what} failed: {said[-1][:200] if said else f'exit code {done.returncode}'}")


def _present(path: str | None, name: str) -> str:
    if not path:
        raise NotHere(f"{name} was installed and is not to be found")
    return path
