"""The image of deploy/image, built by a real engine from this tree's own wheels; there is no registry.

The base has the name that the Dockerfile names, and this interpreter with pip in it, as ``python:3.x-slim`` has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pip
from release.dist import wheel_name

import ringfence
from tests import container_image
from tests.image_folder import libraries
from tests.release_files import release_folder
from tests.testable import not_testable_here

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE = ROOT / "deploy" / "image" / "Dockerfile"
BASE, NAME = "python:3.12-slim", "ringfence"
_PROGRAMS = (*container_image.PROGRAMS, "rm", "chown", "chmod", "find")
_SYSTEM = ("/lib", "/usr/lib")


def built(folder: Path, of_all_workers: Path) -> str:
    """Build it once with the engine that ``DOCKER_HOST`` names; its name. ``folder``: of this worker alone."""
    with container_image.lacking(NAME, of_all_workers) as is_missing:
        if is_missing:
            _build(folder)
    return NAME


def _build(folder: Path) -> None:
    """Without BuildKit and without a network."""
    import_base(folder / "base")
    context = folder / "dist"
    context.mkdir()
    _gather(context)
    command = ["docker", "build", "--network=none", "--build-arg=PIP_NO_INDEX=1", f"--tag={NAME}",
               f"--file={DOCKERFILE}", str(context)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          env={**os.environ, "DOCKER_BUILDKIT": "0"})  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def import_base(root: Path, name: str = BASE, *, wheels: Sequence[str] = ()) -> None:
    """``root``: where it is laid out. ``wheels``: what pip finds inside, instead of an index."""
    container_image.lay(root, _PROGRAMS)
    library = root / "usr/local/lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copytree(Path(pip.__file__).parent, library / "pip", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "usr/local/bin/pip").write_text('#!/bin/sh\nexec python3 -m pip "$@"\n')
    (root / "usr/local/bin/pip").chmod(0o755)
    (root / "usr/lib").mkdir(exist_ok=True)
    # A sandbox shows the system's directories: a library of an interpreter that lies in a home is among them here.
    for path in libraries([Path(os.path.realpath(sys.executable))]):
        if not path.startswith(_SYSTEM):
            shutil.copy(os.path.realpath(path), root / "usr/lib" / os.path.basename(path))
    if wheels:
        _offer(root, wheels)
    container_image.pack(root, name, *(["ENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels"] if wheels else []))


def _offer(root: Path, wheels: Sequence[str]) -> None:
    """With the libraries of the system that they need, which every image of Debian's has."""
    download(root / "wheels", *wheels)
    with tempfile.TemporaryDirectory() as folder:
        for path in (root / "wheels").glob("*.whl"):
            shutil.unpack_archive(path, folder, "zip")
        needed = libraries([*Path(folder).rglob("*.so")])
        for each in (path for path in needed if not path.startswith(folder)):
            place = root / each.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.path.realpath(each), place)


def _gather(folder: Path) -> None:
    """Every wheel of the release, as `make dist` leaves them, and what ours needs as pip finds it."""
    for path in release_folder().glob("*.whl"):
        shutil.copy(path, folder)
    download(folder, f"{folder / wheel_name(ringfence.__version__, os.uname().machine)}[service]")


def download(folder: Path, *wanted: str) -> None:
    """Have pip fetch wheels for this interpreter; «not testable here» where it can't."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", f"--dest={folder}", *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        not_testable_here(f"pip can't fetch {', '.join(wanted)}: {done.stderr[-300:]}")
