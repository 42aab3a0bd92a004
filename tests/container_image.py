"""The image ``python:3.10-slim`` of tests: this interpreter with its library, imported once: there is no registry.

The version inside is that of whoever runs the tests; the name is what users have by default.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.image_folder import libraries

NAME = "python:3.10-slim"
PROGRAMS = ("sh", "cat", "ls", "id", "env", "sleep", "true", "false", "head", "touch", "mkdir", "ln", "mount", "yes")
_UNWANTED = ("test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "site-packages", "dist-packages",
             "lib2to3", "pydoc_data", "__pycache__", "distutils")  # fmt: skip


def imported(folder: Path) -> str:
    """Return its name, once the engine that ``DOCKER_HOST`` names has it; ``folder``: the same for all workers."""
    with lacking(NAME, folder) as is_missing:
        if is_missing:
            _import(folder / "python-root")
    return NAME


@contextmanager
def lacking(name: str, folder: Path) -> Iterator[bool]:
    """Whether the engine has no image of this name yet. Until the end of the block no other worker looks: two that make
    one image at once would take its name from each other."""
    with open(folder / "image-lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield subprocess.run(["docker", "image", "inspect", name], capture_output=True, check=False).returncode != 0


def _import(root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)  # of a worker that was ended in the middle
    lay(root)
    pack(root, NAME, 'CMD ["python3"]')


def pack(root: Path, name: str, *changes: str) -> None:
    """Make an image of this directory, which is gone afterwards."""
    words = [word for change in ("ENV PATH=/usr/local/bin:/usr/bin:/bin", *changes) for word in ("--change", change)]
    packed = subprocess.Popen(["tar", "-C", str(root), "--owner=0", "--group=0", "-cf", "-", "."],
                              stdout=subprocess.PIPE)  # fmt: skip
    subprocess.run(["docker", "import", *words, "-", name], stdin=packed.stdout, check=True, capture_output=True)
    assert packed.wait() == 0
    shutil.rmtree(root)


def lay(root: Path, programs: tuple[str, ...] = PROGRAMS) -> None:
    """Write its files: /usr/local/bin/python3, a shell and a few programs."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = Path(os.__file__).resolve().parent
    program = root / "usr/local/bin" / version
    for name in ("usr/local/bin", "usr/bin", "etc", "tmp", "root", "proc", "sys", "dev", "var", "home", "input",
                 "output", "workspace"):  # fmt: skip
        (root / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(os.path.realpath(sys.executable), program)
    for name in ("python", "python3"):
        (root / "usr/local/bin" / name).symlink_to(version)
    shutil.copytree(library, root / "usr/local/lib" / version, symlinks=True,
                    ignore=shutil.ignore_patterns(*_UNWANTED, "config-*", "*.a"))  # fmt: skip
    (root / "tmp").chmod(0o1777)
    (root / "bin").symlink_to("usr/bin")
    found = [path for path in map(shutil.which, programs) if path]
    for path in found:
        shutil.copy(os.path.realpath(path), root / "usr/bin" / os.path.basename(path))
    modules = [*(library / "lib-dynload").glob("*.so")]
    for each in libraries([program, *map(Path, found), *modules]):
        place = root / each.lstrip("/")
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.path.realpath(each), place)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    setuid = root / "usr/bin/setuid-id"
    shutil.copy(os.path.realpath(shutil.which("id") or "/usr/bin/id"), setuid)
    setuid.chmod(0o4755)
    for path in (root / "usr").rglob("*"):  # the library may lie in a directory that only its user may enter
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
