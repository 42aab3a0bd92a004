"""Functions and their arguments on their way into a sandbox: pickle, with functions and classes by value.

Packed by the caller, loaded only inside (``python_jobs/load.py``). What the sandbox can import goes by
name; everything else, such as lambdas, closures and anything in ``__main__`` or in the caller's own project, goes as
its code with the globals that it names, and their globals in turn. Nothing that comes out of a sandbox is ever read
here.

It does not decide what a sandbox can import: the caller of ``pack`` may say so.
"""

from __future__ import annotations

import io
import marshal
import os
import pickle
import sys
from _collections_abc import Callable, Iterator
from functools import lru_cache
from types import CellType, CodeType, FunctionType, MappingProxyType, ModuleType

from ringfence.errors import UsageError
from ringfence.python_jobs import load as inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Importable = Callable[[str], bool]

_FUNCTION_STATE = (
    "__defaults__", "__kwdefaults__", "__annotations__", "__doc__", "__name__", "__qualname__", "__module__",
)  # fmt: skip
_MADE_AT_RUN_TIME = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_GLOBAL_OPS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})
_NOT_COPIED = frozenset({"__dict__", "__weakref__", "_abc_impl", "__slots__"})


def installed(module: str) -> bool:
    """Whether a loaded module belongs to Python or to installed packages, which a sandbox usually sees."""
    if module.partition(".")[0] in sys.stdlib_module_names:
        return module != "__main__"
    place = getattr(sys.modules.get(module), "__file__", None) or ""
    return not {"site-packages", "dist-packages"}.isdisjoint(place.split(os.sep))


def name_of(function: object) -> str:
    """The name of a call, used where a command has its arguments."""
    return str(getattr(function, "__qualname__", "call"))


def pack(thing: object, importable: Importable = installed) -> bytes:
    """The bytes of a function or of arguments; UsageError names what can't be sent."""
    try:
        return _dumped(thing, importable)
    except Exception as error:
        # Whatever a __reduce__ of the caller's objects raises becomes an error for the caller. Not what a signal
        # handler raised in the middle.
        if _can_be_sent(thing, importable):
            raise
        where = _culprit(thing, importable)
        hint = "pass plain data, and open files, locks and connections inside the function"
        raise UsageError(f"{where} can't be sent into a sandbox: {error}", hint=hint) from error


def pack_arguments(args: tuple[object, ...], kwargs: dict[str, object]) -> bytes:
    """The arguments of one call."""
    return pack((args, kwargs))


def _dumped(thing: object, importable: Importable) -> bytes:
    file = io.BytesIO()
    _Packer(file, importable).dump(thing)
    return file.getvalue()


def _can_be_sent(thing: object, importable: Importable) -> bool:
    try:
        return bool(_dumped(thing, importable))
    except Exception:
        return False


def _culprit(thing: object, importable: Importable) -> str:
    """The innermost named part that fails by itself."""
    for name, part in _named_parts(thing):
        if not _can_be_sent(part, importable):
            return f"{name} of {_name(thing)}" if isinstance(thing, FunctionType) else name
    return _name(thing)


def _name(thing: object) -> str:
    return str(getattr(thing, "__qualname__", "")) or f"a {type(thing).__name__}"


def _named_parts(thing: Any) -> Iterator[tuple[str, object]]:
    if isinstance(thing, FunctionType):
        yield from ((f"the global {name!r}", part) for name, part in _referenced_globals(thing).items())
        cells = zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True)
        yield from ((f"the variable {name!r}", cell) for name, cell in cells)
        yield from ((f"the default {part!r:.40}", part) for part in thing.__defaults__ or ())
    elif isinstance(thing, tuple) and len(thing) == 2 and isinstance(thing[1], dict):
        yield from ((f"argument {number + 1}", part) for number, part in enumerate(thing[0]))
        yield from ((f"the argument {name!r}", part) for name, part in thing[1].items())


class _Packer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, importable: Importable) -> None:
        super().__init__(file, protocol=5)
        self.importable = importable

    def reducer_override(self, thing: Any) -> Any:
        kind = type(thing)
        if kind in _PARTS:
            return _PARTS[kind](thing)
        if kind is FunctionType and not self._by_name(thing):
            return _function(thing)
        if isinstance(thing, type) and not self._by_name(thing):
            return _any_class(thing)
        if kind.__module__ == "dataclasses":
            return _from("dataclasses", thing)
        return NotImplemented

    def _by_name(self, thing: Any) -> bool:
        module = thing.__module__
        if module == inside.__name__:
            return True
        if not isinstance(module, str) or not self.importable(module):
            return False
        found: Any = sys.modules.get(module)
        for step in thing.__qualname__.split("."):
            found = getattr(found, step, None)
        return found is thing


@lru_cache(maxsize=512)
def _global_names(code: CodeType) -> frozenset[str]:
    import dis

    names = {step.argval for step in dis.get_instructions(code) if step.opname in _GLOBAL_OPS}
    inner = (part for part in code.co_consts if isinstance(part, CodeType))
    return frozenset(names.union(*map(_global_names, inner)))


def _referenced_globals(function: FunctionType) -> dict[str, object]:
    space = function.__globals__
    return {name: space[name] for name in sorted(_global_names(function.__code__)) if name in space}


def _namespace_key(space: dict[str, Any]) -> str:
    name = str(space.get("__name__", ""))
    own = getattr(sys.modules.get(name), "__dict__", None) is space
    return name if own else f"{name}#{id(space)}"


def _function(function: FunctionType) -> tuple[object, ...]:
    made_of = (marshal.dumps(function.__code__), _namespace_key(function.__globals__), function.__closure__)
    state = {name: getattr(function, name) for name in _FUNCTION_STATE}
    state |= {"__dict__": function.__dict__, "globals": _referenced_globals(function)}
    return inside.new_function, made_of, state, None, None, inside.fill_function


def _cell(cell: CellType) -> tuple[object, ...]:
    try:
        contents = (cell.cell_contents,)
    except ValueError:
        return inside.new_cell, ()
    return inside.new_cell, (), contents, None, None, inside.fill_cell


def _any_class(cls: Any) -> Any:
    if not cls.__flags__ & _MADE_AT_RUN_TIME:
        return _from("types", cls)  # such as the type of functions, which has no other name
    return _enumeration(cls) if hasattr(cls, "_member_map_") else _class(cls)


def _class(cls: Any) -> tuple[object, ...]:
    inherited_slots = cls.__dict__.get("__slots__", ())
    slots = (inherited_slots,) if isinstance(inherited_slots, str) else tuple(inherited_slots)
    first = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    if "__slots__" in cls.__dict__:
        first["__slots__"] = slots
    state = {name: part for name, part in cls.__dict__.items() if name not in {*_NOT_COPIED, *slots}}
    made_of = (type(cls), cls.__name__, cls.__bases__, first, f"{cls.__module__}.{cls.__qualname__}#{id(cls)}")
    return inside.new_class, made_of, state, None, None, inside.fill_class


def _enumeration(cls: Any) -> tuple[object, ...]:
    members = {name: member._value_ for name, member in cls._member_map_.items()}
    kept = {"__module__", "__qualname__", "__doc__"}
    others = {name: part for name, part in cls.__dict__.items() if name in kept or _written_in(cls, part)}
    key = f"{cls.__module__}.{cls.__qualname__}#{id(cls)}"
    return inside.new_enumeration, (type(cls), cls.__name__, cls.__bases__, members, others, key)


def _written_in(cls: Any, part: Any) -> bool:
    """A method of the class's own body, and not one that a metaclass put there."""
    part = getattr(part, "fget", None) or getattr(part, "__func__", part)
    return isinstance(part, FunctionType) and part.__qualname__.startswith(f"{cls.__qualname__}.")


def _from(module: str, thing: object) -> Any:
    """By the name that it has in a module. MISSING of dataclasses and its like are compared by identity."""
    space = vars(sys.modules[module])
    name = next((name for name, part in space.items() if part is thing), None)
    return NotImplemented if name is None else (inside.attribute, (module, name))


_PARTS: dict[type, Callable[[Any], Any]] = {
    CellType: _cell,
    ModuleType: lambda module: (inside.module_named, (module.__name__,)),
    staticmethod: lambda part: (staticmethod, (part.__func__,)),
    classmethod: lambda part: (classmethod, (part.__func__,)),
    property: lambda part: (property, (part.fget, part.fset, part.fdel, part.__doc__)),
    MappingProxyType: lambda part: (MappingProxyType, (dict(part),)),
}
