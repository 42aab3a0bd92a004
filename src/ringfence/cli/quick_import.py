"""Loads modules of this package from their compiled files, with Python's own checks of these and little else.

The command line loads a hundred small modules before a job starts, and half of that time goes into finding them. Here
one stat of the source and one read of its ``.pyc`` are enough. Anything unexpected (no compiled file, one of another
Python, one that is older than its source) is left to Python's own finder, which comes next and compiles. Only for the
command line, a process that is ours alone.
"""

from __future__ import annotations

import _imp
import marshal
import os
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _collections_abc import Sequence
    from types import CodeType, ModuleType

_HEAD_BYTES = 16
_SUFFIX = f".{sys.implementation.cache_tag}.pyc"
_OWN = __name__.partition(".")[0] + "."


class _Loader:
    """The loader of one module whose code was read already."""

    def __init__(self, code: CodeType, path: str) -> None:
        self._code, self._path = code, path

    def create_module(self, spec: ModuleSpec) -> None:
        """As usual."""

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = self._path
        exec(self._code, module.__dict__)

    @staticmethod
    def get_data(path: str) -> bytes:
        """A file that lies beside modules: ``pkgutil`` asks for it, and takes a loader without this for one without
        files."""
        with open(path, "rb") as file:
            return file.read()


class QuickFinder:
    """A finder for ``sys.meta_path``."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return a spec; None: leave it to Python's own finder."""
        if not path or not name.startswith(_OWN):
            return None
        folder, leaf = path[0], name.rpartition(".")[2]
        code = _code_of(folder, leaf)
        if code is not None:
            return _spec(name, code, f"{folder}/{leaf}.py")
        code = _code_of(f"{folder}/{leaf}", "__init__")
        if code is None:
            return None
        spec = _spec(name, code, f"{folder}/{leaf}/__init__.py")
        spec.submodule_search_locations = [f"{folder}/{leaf}"]
        return spec


def _spec(name: str, code: CodeType, source: str) -> ModuleSpec:
    return ModuleSpec(name, _Loader(code, source), origin=source)  # type: ignore[arg-type]  # all that Python asks for


def install() -> None:
    """Install it where compiled files have their usual places and names, and paths are POSIX paths."""
    if os.name == "posix" and sys.pycache_prefix is None and not sys.flags.optimize:
        sys.meta_path.insert(0, QuickFinder)


def _code_of(folder: str, leaf: str) -> CodeType | None:
    """The compiled module, if it was made by this Python from the present source."""
    try:
        file = os.open(f"{folder}/__pycache__/{leaf}{_SUFFIX}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(file, os.fstat(file).st_size + 1)
        finally:
            os.close(file)
        source = os.stat(f"{folder}/{leaf}.py")
    except OSError:
        return None
    stamp = ((source.st_size & 0xFFFFFFFF) << 32 | int(source.st_mtime) & 0xFFFFFFFF).to_bytes(8, "little")
    if data[:_HEAD_BYTES] != MAGIC_NUMBER + bytes(4) + stamp:
        return None
    try:
        code: CodeType = marshal.loads(memoryview(data)[_HEAD_BYTES:])
    except (ValueError, EOFError, TypeError):
        return None
    # It may have been compiled elsewhere.
    _imp._fix_co_filename(code, f"{folder}/{leaf}.py")  # type: ignore[attr-defined]
    return code
