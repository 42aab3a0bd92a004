"""What a guest is made of: Debian's kernel, a disk with Debian's interpreter and pytest, an initramfs with the project.

Owns which files go in, the ext4 image and the cpio archive. Does not own where packages come from (guest_packages.py)
or how the guest is run (guest.py). Nothing is mounted from the host, so the guest can change nothing there, and
nothing of the guest is run here: it may be of another architecture.
"""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import lzma
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator

import guest_packages

HERE = os.path.dirname(os.path.abspath(__file__))
DISK_MIB = 1024
PACKAGES = ("python3-minimal", "libpython3-stdlib", "dash", "coreutils", "busybox-static", "linux-libc-dev")
MODULES = ("virtio_pci", "virtio_blk", "overlay", "fuse")
"""Debian's kernels have these apart; what is not there is built in."""
TEST_MODULES = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments", "seccompy", "landlockpy")
TEST_MODULES_HOME = "/usr/lib/python3/dist-packages"
NOT_ON_DISK = ("boot", "usr/lib/modules", "usr/share/doc", "usr/share/locale", "usr/share/man")
PROJECT_PARTS = ("src", "tests/escape", "tests/hosts", "tests/unit/kernel", "tests/unit/sandbox", "pyproject.toml")

Pairs = Iterable[tuple[str, str]]
"""Paths in the guest and paths on the host."""


def parts(architecture: str, kernel_package: str) -> str:
    """A directory with vmlinuz, the modules in the order in which they are loaded, busybox and the disk."""
    packages = (*PACKAGES, kernel_package)
    sources = [path for _, path in test_modules()]
    states = [(path, os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in sources]
    own = _content(f"{HERE}/guest_image.py") + _content(f"{HERE}/guest_packages.py")
    key = hashlib.sha256(own + repr(states).encode()).hexdigest()[:16]
    found = os.path.join(guest_packages.CACHE, f"guest-{architecture}-{key}")
    if not os.path.exists(found):
        for old in glob.glob(os.path.join(guest_packages.CACHE, f"guest-{architecture}-*")):
            shutil.rmtree(old)
        with tempfile.TemporaryDirectory(prefix="building-", dir=guest_packages.CACHE) as scratch:
            _build(architecture, packages, scratch)
            os.rename(f"{scratch}/parts", found)
    return found


def _build(architecture: str, packages: tuple[str, ...], scratch: str) -> None:
    root, made = f"{scratch}/root", f"{scratch}/parts"
    os.makedirs(f"{made}/modules")
    guest_packages.unpack(architecture, packages, root)
    (vmlinuz,) = glob.glob(f"{root}/boot/vmlinuz-*")
    os.rename(vmlinuz, f"{made}/vmlinuz")
    shutil.copy(f"{root}/bin/busybox", f"{made}/busybox")
    _write_modules(root, f"{made}/modules")
    with open(f"{made}/python", "w", encoding="ascii") as file:
        file.write(os.readlink(f"{root}/usr/bin/python3"))
    for part in NOT_ON_DISK:
        shutil.rmtree(f"{root}/{part}", ignore_errors=True)
    put(root, test_modules())
    compile_all(root, made)
    mke2fs = [guest_packages.program("mke2fs", "e2fsprogs"), "-q", "-t", "ext4", "-d", root]
    subprocess.run([*mke2fs, f"{made}/disk", f"{DISK_MIB}M"], check=True, capture_output=True)


def _write_modules(root: str, target: str) -> None:
    found: dict[str, bytes] = {}
    for name in MODULES:
        _find_module(f"{root}/usr/lib/modules", name, found)
    for number, (name, content) in enumerate(found.items()):
        with open(f"{target}/{number:02}-{name}.ko", "wb") as file:
            file.write(content)


def _find_module(place: str, name: str, found: dict[str, bytes]) -> None:
    """A module after all that it depends on, as its own header tells."""
    places = glob.glob(f"{place}/**/{name}.ko*", recursive=True)
    if name in found or not places:
        return
    with (lzma.open if places[0].endswith(".xz") else open)(places[0], "rb") as file:
        content = file.read()
    told = re.search(rb"\0depends=([^\0]*)\0", content)
    for needed in filter(None, told[1].decode().split(",") if told else ()):
        _find_module(place, needed, found)
    found[name] = content


def test_modules() -> list[tuple[str, str]]:
    """pytest and what else the tests load, which is all pure Python, out of the environment that runs this."""
    found: list[str] = []
    for module in TEST_MODULES:
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin:
            found += _tree(os.path.dirname(spec.origin)) if spec.submodule_search_locations else [spec.origin]
    home = os.path.dirname(os.path.dirname(os.path.abspath(sys.modules["pytest"].__file__ or "")))
    return [(TEST_MODULES_HOME + path[len(home) :], path) for path in found]


def project_files(project: str) -> list[tuple[str, str]]:
    """The project at its own path, with the modules that all tests share."""
    shared = [path for path in sorted(glob.glob(f"{project}/tests/*.py")) if not path.endswith("/conftest.py")]
    places = [*(f"{project}/{part}" for part in PROJECT_PARTS), *shared]
    found = [path for place in places for path in (_tree(place) if os.path.isdir(place) else [place])]
    return [(path, path) for path in found]


def _tree(directory: str) -> list[str]:
    found: list[str] = []
    for here, inner, names in os.walk(directory):
        inner[:] = sorted(set(inner) - {"__pycache__"})
        found += [os.path.join(here, name) for name in sorted(names)]
    return found


def put(root: str, files: Pairs) -> None:
    """Copy these below ``root``; every directory is 0755, so that an ordinary user of the guest can use them."""
    before = os.umask(0o022)
    for inside, outside in files:
        os.makedirs(os.path.dirname(root + inside), exist_ok=True)
        shutil.copyfile(outside, root + inside)
        os.chmod(root + inside, 0o755 if os.access(outside, os.X_OK) else 0o644)
    os.umask(before)


def compile_all(root: str, made: str) -> None:
    """Byte code that holds whatever a file's time, for compiling is slow under emulation.

    It takes an interpreter of this host of the guest's version. Files that are no Python are of no concern.
    """
    name = _content(f"{made}/python").decode()
    own = name == f"python{sys.version_info.major}.{sys.version_info.minor}"
    python = sys.executable if own else guest_packages.program(name, f"{name}-minimal")
    options = ["-q", "-q", "--invalidation-mode", "unchecked-hash", "-s", root, "-p", "/"]
    subprocess.run([python, "-I", "-m", "compileall", *options, root], check=False, capture_output=True)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def archive(root: str) -> bytes:
    """A newc cpio archive of a directory."""
    return b"".join([*_records(root), _record("TRAILER!!!", 0, b"")])


def _records(root: str) -> Iterator[bytes]:
    for here, inner, names in os.walk(root):
        inner.sort()
        if here != root:
            yield _record(here[len(root) :], stat.S_IFDIR | 0o755, b"")
        for path in (os.path.join(here, name) for name in sorted(names)):
            yield _record(path[len(root) :], os.stat(path).st_mode, _content(path))


def _record(path: str, mode: int, content: bytes) -> bytes:
    name = path.lstrip("/").encode() + b"\0"
    links = 2 if stat.S_ISDIR(mode) else 1
    fields = (0, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(name), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields) + name
    return header + b"\0" * (-len(header) % 4) + content + b"\0" * (-len(content) % 4)
