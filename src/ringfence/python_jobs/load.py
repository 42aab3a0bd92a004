"""Puts together inside a sandbox what ``python_jobs/pack.py`` has packed outside. Never used on a host.

Functions of one module share one namespace again; those of the caller's ``__main__`` live in the job's own, so that
everything that the job does with them, down to ``multiprocessing``, finds them there.
"""

from __future__ import annotations

import builtins
import io
import marshal
import pickle
import sys
from types import CellType, FunctionType, ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_namespaces: dict[str, dict[str, Any]] = {}
_classes: dict[str, Any] = {}


def load(data: bytes) -> Any:
    """Inside the sandbox: what was packed."""
    return _Loader(io.BytesIO(data)).load()


class _Loader(pickle.Unpickler):
    """Finds the functions below even if this package can't be imported."""

    def find_class(self, module: str, name: str) -> Any:
        return globals()[name] if module == __name__ else super().find_class(module, name)


def _namespace(key: str) -> dict[str, Any]:
    if key == "__main__":
        return sys.modules["__main__"].__dict__
    name = key.partition("#")[0]
    return _namespaces.setdefault(key, {"__name__": name, "__builtins__": builtins})


def new_function(code: bytes, key: str, closure: tuple[CellType, ...] | None) -> FunctionType:
    return FunctionType(marshal.loads(code), _namespace(key), None, None, closure)


def fill_function(function: FunctionType, state: dict[str, Any]) -> None:
    for name, part in state.pop("globals").items():
        function.__globals__.setdefault(name, part)
    function.__dict__.update(state.pop("__dict__"))
    for name, part in state.items():
        setattr(function, name, part)
    _at_home(function)


def _at_home(thing: Any) -> None:
    """What was in the caller's ``__main__`` goes into the job's, where pickle looks for it."""
    if thing.__module__ == "__main__" and thing.__qualname__.isidentifier():
        sys.modules["__main__"].__dict__.setdefault(thing.__qualname__, thing)


def new_cell() -> CellType:
    return CellType()


def fill_cell(cell: CellType, contents: tuple[object]) -> None:
    (cell.cell_contents,) = contents


def new_class(kind: Any, name: str, bases: tuple[type, ...], first: dict[str, Any], key: str) -> Any:
    if key not in _classes:
        _classes[key] = kind(name, bases, first)
        _at_home(_classes[key])
    return _classes[key]


def fill_class(cls: Any, state: dict[str, Any]) -> None:
    for name, part in state.items():
        if name not in ("__module__", "__qualname__"):
            setattr(cls, name, part)
    if hasattr(cls, "__abstractmethods__"):
        import abc

        abc.update_abstractmethods(cls)


def new_enumeration(
    kind: Any, name: str, bases: tuple[type, ...], members: dict[str, Any], others: dict[str, Any], key: str
) -> Any:
    if key not in _classes:
        body = kind.__prepare__(name, bases)
        for field, part in {**others, **members}.items():
            body[field] = part
        _classes[key] = kind(name, bases, body)
        _at_home(_classes[key])
    return _classes[key]


def module_named(name: str) -> ModuleType:
    import importlib

    return importlib.import_module(name)


def attribute(module: str, name: str) -> Any:
    return getattr(module_named(module), name)
