"""The image of deploy/image, built by a real engine from this tree's own wheels; there is no registry.

The base has the name that the Dockerfile names, and this interpreter with pip in it, as ``python:3.x-slim`` has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
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
_PROGRAMS = (*container_image.PROGRAMS, "rm", "chown")
_SYSTEM = ("/lib", "/usr/lib")


def built(folder: Path, of_all_workers: Path) -> str:
    """Build it once with the engine that ``DOCKER_HOST`` names; its name. ``folder``: of this worker alone."""
    with container_image.lacking(NAME, of_all_workers) as is_missing:
        if is_missing:
            _build(folder)
    return NAME


def _build(folder: Path) -> None:
    """Without BuildKit and without a network."""
    _import_base(folder / "base")
    context = folder / "dist"
    context.mkdir()
    _gather(context)
    command = ["docker", "build", "--network=none", "--build-arg=PIP_NO_INDEX=1", f"--tag={NAME}",
               f"--file={DOCKERFILE}", str(context)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          env={**os.environ, "DOCKER_BUILDKIT": "0"})  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def _import_base(root: Path) -> None:
    container_image.lay(root, _PROGRAMS)
    library = root / "usr/local/lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copytree(Path(pip.__file__).parent, library / "pip", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "usr/lib").mkdir(exist_ok=True)
    # A sandbox shows the system's directories: a library of an interpreter that lies in a home is among them here.
    for path in libraries([Path(os.path.realpath(sys.executable))]):
        if not path.startswith(_SYSTEM):
            shutil.copy(os.path.realpath(path), root / "usr/lib" / os.path.basename(path))
    with subprocess.Popen(["tar", "-C", str(root), "--owner=0", "--group=0", "-cf", "-", "."],
                          stdout=subprocess.PIPE) as packed:  # fmt: skip
        subprocess.run(["docker", "import", "--change", "ENV PATH=/usr/local/bin:/usr/bin:/bin", "-", BASE],
                       stdin=packed.stdout, check=True, capture_output=True)  # fmt: skip
    assert packed.returncode == 0
    shutil.rmtree(root)


def _gather(folder: Path) -> None:
    """Every wheel of the release, as `make dist` leaves them, and what ours needs as pip finds it."""
    for path in release_folder().glob("*.whl"):
        shutil.copy(path, folder)
    own = folder / wheel_name(ringfence.__version__, os.uname().machine)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", f"--dest={folder}",
               f"{own}[service]"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        not_testable_here(f"pip can't fetch what ringfence needs: {done.stderr[-300:]}")
