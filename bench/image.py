"""An image for container engines, made of this host's own files: no registry is needed, and all run the same program.

Holds the interpreter, its standard library, the shared objects they need and /bin/true; nothing else.
"""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

from bench.harness import NotHere

NAME = "localhost/ringfence-bench:1"
PATIENCE_S = 120


def ensure(engine: str, python: str) -> None:
    """Import the image unless the engine has it."""
    try:
        if _quiet([engine, "image", "inspect", NAME]).returncode == 0:
            return
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "image.tar")
            _pack(path, python)
            done = _quiet([engine, "import", path, NAME])
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotHere(f"no answer: {type(error).__name__}") from error
    if done.returncode:
        raise NotHere(f"it takes no image: {done.stderr.strip().splitlines()[-1][:200]}")


def _quiet(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def _pack(path: str, python: str) -> None:
    library = Path(subprocess.check_output([python, "-c", "import os; print(os.__file__)"], text=True).strip()).parent
    programs = [python, "/bin/true"]
    linked = [*programs, *map(str, library.glob("lib-dynload/*.so"))]
    files = {*programs, *(needed for name in linked for needed in _shared_objects(name))}
    with tarfile.open(path, "w") as tar:
        for name in sorted(files):
            tar.add(os.path.realpath(name), arcname=name)
        tar.add(library, arcname=str(library), filter=_without_packages)


def _shared_objects(program: str) -> list[str]:
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return re.findall(r"(/\S+)\s+\(0x", told)


def _without_packages(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    left_out = ("/test", "/dist-packages", "/site-packages", "/idlelib", "/lib2to3")
    return None if entry.name.endswith(left_out) else entry
