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

__all__ = ["field_names", "made_by", "record", "replace"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import replace
    from typing import TypeVar, dataclass_transform, overload

    _T = TypeVar("_T")

    def made_by(*, default_factory: Callable[[], _T]) -> _T: ...

    @overload
    def record(cls: type[_T]) -> type[_T]: ...
    @overload
    def record(*, kw_only: bool = True, eq: bool = True) -> Callable[[type[_T]], type[_T]]: ...
    @dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(made_by,))
    def record(cls: type[_T] | None = None, *, kw_only: bool = True, eq: bool = True) -> object: ...

else:

    _MISSING = object()

    class made_by:
        """The default of a field that is made anew for each record, such as a list."""

        def __init__(self, *, default_factory):
            self.make = default_factory

    def record(cls=None, *, kw_only=True, eq=True):
        """Make a class with annotations a frozen record.

        ``kw_only`` false: fields may be given without their names too. ``eq`` false: each is equal to itself alone.
        """
        if cls is None:
            return lambda cls: record(cls, kw_only=kw_only, eq=eq)
        names = tuple(cls.__annotations__)
        defaults = {name: cls.__dict__[name] for name in names if name in cls.__dict__}
        makers = {name: defaults.pop(name).make for name in names if isinstance(defaults.get(name), made_by)}
        check = getattr(cls, "__post_init__", None)
        refused = getattr(cls, "__unknown__", None) or (
            lambda names: TypeError(f"{cls.__name__} has no field {next(iter(names))}")
        )

        blank = {name: defaults.get(name, _MISSING) for name in names}  # in their order, also where given in another
        needed = frozenset(name for name in names if name not in defaults and name not in makers)

        def __init__(self, *unnamed, **values):
            if unnamed:
                values = _named(cls.__name__, names, unnamed, values, kw_only)
            filled = blank | values
            if not needed <= values.keys():
                missing = next(name for name in names if name in needed and name not in values)
                raise TypeError(f"{cls.__name__} needs {missing}")
            if len(filled) > len(blank):
                raise refused({name: value for name, value in values.items() if name not in blank})
            for name, make in makers.items():
                if filled[name] is _MISSING:
                    filled[name] = make()
            self.__dict__.update(filled)
            if check is not None:
                check(self)

        methods = {
            "__init__": __init__,
            "__repr__": cls.__dict__.get("__repr__", _repr),
            "__setattr__": _refuse,
            "__delattr__": _refuse,
            "__dataclass_fields__": _FieldsOnDemand(makers),
            "_record_fields": names,
        }
        for name in makers:
            delattr(cls, name)
        if eq:
            methods |= {"__eq__": _eq, "__hash__": _hash}
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


def _named(
    kind: str, names: tuple[str, ...], unnamed: tuple[object, ...], values: dict[str, object], kw_only: bool
) -> dict[str, object]:
    """Return the values by name, including those that were given by position."""
    if kw_only:
        from ringfence.errors import FieldError

        raise FieldError(f"{kind}: {unnamed[0]!r} has no name", hint=f"fields are given by name: {', '.join(names)}")
    if len(unnamed) > len(names):
        raise TypeError(f"{kind} has {len(names)} fields, and got {len(unnamed)} values")
    given = dict(zip(names, unnamed, strict=False))
    for name in given.keys() & values.keys():
        raise TypeError(f"{kind} got {name} twice")
    return {**given, **values}


def _refuse(self: object, name: str, *_: object) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot change {name!r} of a {type(self).__name__}")


class _FieldsOnDemand:
    """What ``dataclasses`` looks for; made from a real dataclass of the same fields when asked."""

    def __init__(self, makers: dict[str, Callable[[], object]]) -> None:
        self._makers = makers

    def __get__(self, instance: object, owner: type) -> object:
        import dataclasses

        make: Callable[..., type] = dataclasses.make_dataclass
        names = field_names(owner)
        columns = ({**self._default(owner, name), "kw_only": True} for name in names)
        made_fields = (dataclasses.field(**column) for column in columns)  # type: ignore[call-overload]
        fields = zip(names, (owner.__annotations__[name] for name in names), made_fields, strict=True)
        made: object = make(owner.__name__, fields).__dataclass_fields__  # type: ignore[attr-defined]
        return made

    def _default(self, owner: type, name: str) -> dict[str, object]:
        if name in self._makers:
            return {"default_factory": self._makers[name]}
        return {"default": _default(owner, name)}


def _default(owner: type, name: str) -> object:
    import dataclasses

    value = owner.__dict__.get(name, dataclasses.MISSING)
    unhashable = value is not dataclasses.MISSING and type(value).__hash__ is None
    return None if unhashable else value
