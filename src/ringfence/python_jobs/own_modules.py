"""Keeps the modules of this package out of ``sys.modules`` of a process that is forked for Python jobs.

A job must not find them there, and looking for them in each fork would copy the pages of all names. Code that has
imported them still has them; code that imports one later, in the zygote or a fork of it, gets the very same module.
"""

from __future__ import annotations

import sys
from _collections_abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_PACKAGE = __name__.partition(".")[0]


class _Finder:
    """Finds modules that were taken out, and loads one by handing it over."""

    def __init__(self) -> None:
        self.taken: dict[str, ModuleType] = {}
        self.there: list[str] = []
        """Not taken out, or imported again since."""
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in self.taken else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = self.taken[spec.name]
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has run already. The importer has given it the spec of this import, so the original one is put back."""
        name = module.__name__
        module.__spec__ = self._specs.pop(name)
        self.there.append(name)


_finder = _Finder()


def take_out(but: Sequence[str] = ()) -> None:
    """Once, in the process that will be forked. ``but``: modules that every fork imports by name before it becomes a
    job, which is cheaper if they are still there."""
    needed = {name[:end] for name in but for end, letter in enumerate(f"{name}.") if letter == "."}
    for name in [name for name in sys.modules if name.partition(".")[0] == _PACKAGE]:
        if name in needed:
            _finder.there.append(name)
        else:
            _finder.taken[name] = sys.modules.pop(name)
    sys.meta_path.insert(0, _finder)


def forget() -> None:
    """In a fork that becomes a job: from now on this package is gone, unless the job has one on its path."""
    for name in _finder.there:
        sys.modules.pop(name, None)
    if sys.meta_path and sys.meta_path[0] is _finder:
        del sys.meta_path[0]
