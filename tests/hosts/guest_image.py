"""What the guest is made of: a disk with this interpreter and pytest, an initramfs with the project.

Owns which files go in, the ext4 image and the cpio archive. Does not own the kernel or how the guest is run
(guest.py). Nothing is mounted from the host, so the guest can change nothing there; every folder is 0755, so an
ordinary user inside can use an interpreter that lies under somebody's private home.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import marshal
import os
import re
import stat
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Iterable, Iterator

PYTEST_MODULES = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")
FOLDERS_LEFT_OUT = frozenset({"test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip",
                              "site-packages", "dist-packages", "pydoc_data", "distutils",
                              "__pycache__"})  # fmt: skip
FILES_LEFT_OUT = re.compile(r"\.(a|exe|pyc)$|^(_tkinter|_test\w*|xxlimited\w*)\.")
UNCHECKED_HASH = (1).to_bytes(4, "little")
PROGRAMS = ("/bin/sh", "/bin/sleep", "/bin/true")


def interpreter_files() -> list[str]:
    """The real interpreter, its standard library, pytest, a few programs, and the libraries all of them load."""
    executable = os.path.realpath(sys.executable)
    paths = sysconfig.get_paths(vars={"base": sys.base_prefix, "platbase": sys.base_exec_prefix})
    found = [executable, *PROGRAMS]
    for folder in sorted({paths["stdlib"], paths["platstdlib"]}):
        found += _tree(folder)
    for module in PYTEST_MODULES:
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin:
            found += _tree(os.path.dirname(spec.origin)) if spec.submodule_search_locations else [spec.origin]
    return found + _libraries([executable, *PROGRAMS, *(path for path in found if path.endswith(".so"))])


def boot_files() -> list[str]:
    """What guest_boot.py needs before there is a disk: the interpreter and the modules that this one would load."""
    executable = os.path.realpath(sys.executable)
    loaded = "[getattr(module, '__file__', '') for module in sys.modules.values()]"
    listing = f"import __future__, ctypes, json, sys; print(json.dumps({loaded}))"
    said = subprocess.run([executable, "-I", "-S", "-c", listing], capture_output=True, check=True).stdout
    modules = sorted({path for path in json.loads(said) if path and os.path.exists(path)})
    # Where the interpreter recognises its own prefix.
    landmark = os.path.join(sysconfig.get_paths(vars={"base": sys.base_prefix})["stdlib"], "os.py")
    found = sorted({executable, landmark, *modules})
    return found + _libraries([executable, *(path for path in found if path.endswith(".so"))])


def project_files(project: str) -> list[str]:
    folders = [f"{project}/{name}" for name in ("src", "tests/escape", "tests/hosts", "tests/unit/linux")]
    single = [f"{project}/{name}" for name in ("pyproject.toml", "tests/__init__.py")]
    return [path for folder in folders for path in _tree(folder)] + single


def write_disk(image: str, files: Iterable[str], mke2fs: list[str], size: str) -> None:
    """A disk with these files at their own paths, and byte code beside the sources."""
    with tempfile.TemporaryDirectory(prefix="guest-disk-") as root:
        os.chmod(root, 0o755)
        before = os.umask(0o022)
        for path in files:
            _put(root, path)
        os.umask(before)
        subprocess.run([*mke2fs, "-d", root, f"{image}.{os.getpid()}", size], check=True, capture_output=True)
    os.rename(f"{image}.{os.getpid()}", image)


def _put(root: str, path: str) -> None:
    # Links are followed: a library must be found under the name that the loader asks for.
    with open(path, "rb") as file:
        content = file.read()
    _write(root + path, content, 0o755 if os.access(path, os.X_OK) else 0o644)
    if path.endswith(".py"):
        cached, code = _compiled(path, content)
        if code:
            _write(root + cached, code, 0o644)


def _write(path: str, content: bytes, mode: int) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)
    os.chmod(path, mode)


def _tree(folder: str) -> list[str]:
    found: list[str] = []
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - FOLDERS_LEFT_OUT)
        found += [os.path.join(here, name) for name in sorted(names) if not FILES_LEFT_OUT.search(name)]
    return found


def _libraries(binaries: list[str]) -> list[str]:
    said = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False).stdout
    return sorted(set(re.findall(r"(?:=> |^\t)(/\S+) \(0x", said, re.MULTILINE)))


def archive(files: Iterable[tuple[str, str]], texts: Iterable[tuple[str, bytes, int]] = ()) -> bytes:
    """A newc cpio archive of (path in the guest, path on the host) and (path in the guest, content, mode)."""
    made: set[str] = set()
    parts: list[bytes] = []
    for inside, outside in files:
        # Links are followed: a library must be found under the name that the loader asks for.
        with open(outside, "rb") as file:
            content = file.read()
        parts += _parents(inside, made)
        mode = 0o755 if os.access(outside, os.X_OK) else 0o644
        parts.append(_record(inside, stat.S_IFREG | mode, content))
        if inside.endswith(".py"):
            cached, code = _compiled(inside, content)
            parts += [*_parents(cached, made), _record(cached, stat.S_IFREG | 0o644, code)] if code else []
    for inside, content, mode in texts:
        parts += _parents(inside, made)
        parts.append(_record(inside, stat.S_IFREG | mode, content))
    parts.append(_record("TRAILER!!!", 0, b""))
    return b"".join(parts)


def _compiled(path: str, source: bytes) -> tuple[str, bytes]:
    """Byte code that holds whatever the file's time, and where it goes: compiling is slow under emulation."""
    with contextlib.suppress(SyntaxError, ValueError), warnings.catch_warnings(action="ignore"):
        code = marshal.dumps(compile(source, path, "exec", dont_inherit=True))
        header = importlib.util.MAGIC_NUMBER + UNCHECKED_HASH + importlib.util.source_hash(source)
        return importlib.util.cache_from_source(path), header + code
    return "", b""


def _parents(path: str, made: set[str]) -> Iterator[bytes]:
    names = path.strip("/").split("/")[:-1]
    for depth in range(1, len(names) + 1):
        folder = "/".join(names[:depth])
        if folder not in made:
            made.add(folder)
            yield _record(folder, stat.S_IFDIR | 0o755, b"")


def _record(path: str, mode: int, content: bytes) -> bytes:
    name = path.lstrip("/").encode() + b"\0"
    links = 2 if stat.S_ISDIR(mode) else 1
    fields = (0, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(name), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields) + name
    return header + b"\0" * (-len(header) % 4) + content + b"\0" * (-len(content) % 4)
