"""The image of deploy/image, built by a real engine from this tree's own wheels; there is no registry.

The base has the name that the Dockerfile names, and this interpreter with pip in it, as ``python:3.x-slim`` has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pip
from release.dist import wheel_name

import ringfence
from tests import container_image
from tests.examples import filled, program, shell
from tests.image_folder import libraries
from tests.release_files import release_folder
from tests.wheels import download

ROOT = Path(__file__).resolve().parent.parent
BASE, NAME = "python:3.12-slim", "ringfence"
_PROGRAMS = (*container_image.PROGRAMS, "bash", "rm", "chown", "chmod", "find")
_LIBRARIES = ("libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1", "libstdc++.so.6", "libgcc_s.so.1",
              "libz.so.1")  # fmt: skip
_SYSTEM = ("/lib", "/usr/lib")


def built(folder: Path, of_all_workers: Path, text: str) -> str:
    """Build it once with the engine that ``DOCKER_HOST`` names; its name. ``folder``: of this worker alone; ``text``:
    the commands of the documents."""
    with container_image.lacking(NAME, of_all_workers) as is_missing:
        if is_missing:
            build_with(folder, text, "service")
    return NAME


def build_with(folder: Path, text: str, extras: str, *also: str) -> None:
    """Run such commands in ``folder/work``, where a clone would be, without BuildKit and without a network."""
    import_base(folder / "base")
    work = folder / "work"
    work.mkdir()
    (work / "deploy").symlink_to(ROOT / "deploy")
    _gather(work / "dist", extras, *also)
    # tests/release/test_dist.py runs `make dist`, and what it leaves is in dist already.
    program(folder, "make", 'test "$*" = dist')
    offline = {"docker build": "docker build --network=none --build-arg=PIP_NO_INDEX=1"}
    shell(filled(text, **offline), folder, {"DOCKER_BUILDKIT": "0"})


def import_base(root: Path, name: str = BASE, *, wheels: Sequence[str] = ()) -> None:
    """``root``: where it is laid out. ``wheels``: what pip finds inside, instead of an index."""
    container_image.lay(root, _PROGRAMS)
    library = root / "usr/local/lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copytree(Path(pip.__file__).parent, library / "pip", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "usr/local/bin/pip").write_text('#!/bin/sh\nexec python3 -m pip "$@"\n')
    (root / "usr/local/bin/pip").chmod(0o755)
    # A sandbox shows the system's directories: a library of an interpreter that lies in a home is among them here.
    for path in libraries([Path(os.path.realpath(sys.executable))]):
        if not path.startswith(_SYSTEM):
            _copy(path, root / "usr/lib" / os.path.basename(path))
    for path in _of_every_debian():
        _copy(path, root / path.lstrip("/"))
    if wheels:
        download(root / "wheels", *wheels)
    container_image.pack(root, name, *(["ENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels"] if wheels else []))


def _of_every_debian() -> list[str]:
    """Libraries that wheels expect of a system."""
    known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    found = {line.split()[0]: line.split()[-1] for line in reversed(known.splitlines()) if " => " in line}
    return [found[name] for name in _LIBRARIES if name in found]


def _copy(source: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(os.path.realpath(source), target)


def _gather(folder: Path, extras: str, *also: str) -> None:
    """Every wheel of the release, as `make dist` leaves them, and what ours needs as pip finds it."""
    folder.mkdir()
    for path in release_folder().glob("*.whl"):
        shutil.copy(path, folder)
    download(folder, f"{folder / wheel_name(ringfence.__version__, os.uname().machine)}[{extras}]", *also)
