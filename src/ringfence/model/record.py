"""``record``: frozen keyword-only dataclasses whose methods are not generated at import time.

``dataclasses`` compiles source text for every class and loads ``inspect``; for the classes of the main
path that takes longer than starting an interpreter, and the command line pays it on every run. A record
is built from closures instead. Type checkers see a dataclass, and ``dataclasses.fields``, ``replace``
and ``asdict`` work on it, because the real thing is made the first time somebody asks for it.
"""

from __future__ import annotations

import copyreg
from _collections_abc import Callable
from types import MappingProxyType

__all__ = ["field_names", "record", "replace"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import replace
    from typing import TypeVar, dataclass_transform

    _T = TypeVar("_T")

    @dataclass_transform(frozen_default=True, kw_only_default=True)
    def record(cls: type[_T]) -> type[_T]: ...

else:

    def record(cls):
        """Make a class with annotations a frozen record of keyword-only fields."""
        names = tuple(cls.__annotations__)
        defaults = {name: cls.__dict__[name] for name in names if name in cls.__dict__}
        check = getattr(cls, "__post_init__", None)

        def __init__(self, **values):
            fill = self.__dict__
            for name in names:
                if name in values:
                    fill[name] = values.pop(name)
                elif name in defaults:
                    fill[name] = defaults[name]
                else:
                    raise TypeError(f"{cls.__name__} needs {name}")
            if values:
                raise TypeError(f"{cls.__name__} has no field {next(iter(values))}")
            if check is not None:
                check(self)

        methods = {
            "__init__": __init__,
            "__repr__": _repr,
            "__eq__": _eq,
            "__hash__": _hash,
            "__setattr__": _refuse,
            "__delattr__": _refuse,
            "__dataclass_fields__": _FieldsOnDemand(),
            "_record_fields": names,
        }
        for name, method in methods.items():
            setattr(cls, name, method)
        cls.__match_args__ = ()
        return cls

    def replace(instance, **changes):
        """The same record with some fields changed, checked anew."""
        return type(instance)(**{**instance.__dict__, **changes})


def _read_only(values: dict[object, object]) -> MappingProxyType[object, object]:
    return MappingProxyType(values)


# Records hold read-only mappings, which Python by itself can neither copy nor pickle.
copyreg.pickle(MappingProxyType, lambda mapping: (_read_only, (dict(mapping),)))


def field_names(record_or_class: object) -> tuple[str, ...]:
    """The fields, in order."""
    names: tuple[str, ...] = record_or_class._record_fields  # type: ignore[attr-defined]
    return names


def _repr(self: object) -> str:
    inside = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
    return f"{type(self).__name__}({inside})"


def _eq(self: object, other: object) -> bool:
    return self.__dict__ == other.__dict__ if type(other) is type(self) else NotImplemented


def _hash(self: object) -> int:
    return hash((type(self), *(_hashable(value) for value in self.__dict__.values())))


def _hashable(value: object) -> object:
    """Mappings are compared but not hashed: equal records still have equal hashes."""
    return None if hasattr(value, "keys") else value


def _refuse(self: object, name: str, *_: object) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot change {name!r} of a {type(self).__name__}")


class _FieldsOnDemand:
    """What ``dataclasses`` looks for; made from a real dataclass of the same fields when asked."""

    def __get__(self, instance: object, owner: type) -> object:
        import dataclasses

        make: Callable[..., type] = dataclasses.make_dataclass
        names = field_names(owner)
        columns = ({"default": _default(owner, name), "kw_only": True} for name in names)
        made_fields = (dataclasses.field(**column) for column in columns)  # type: ignore[call-overload]
        fields = zip(names, (owner.__annotations__[name] for name in names), made_fields, strict=True)
        made: object = make(owner.__name__, fields).__dataclass_fields__  # type: ignore[attr-defined]
        return made


def _default(owner: type, name: str) -> object:
    import dataclasses

    value = owner.__dict__.get(name, dataclasses.MISSING)
    unhashable = value is not dataclasses.MISSING and type(value).__hash__ is None
    return None if unhashable else value
