"""The JSON of the service: outcomes, bytes and errors, in both directions.

Bytes are a string where they are UTF-8, else ``{"base64": …}``. The shape of incoming data is never taken for granted.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeVar

from ringfence import errors
from ringfence.errors import SandboxError, SupervisionError, UsageError
from ringfence.model.events import Event, EventKind
from ringfence.model.outcome import Change, ChangeKind, Enforcement, Mechanism, Outcome, Status, Usage
from ringfence.model.record import field_names

_BYTES = ("stdout", "stderr", "message")
_AS_IT_IS = frozenset({type(None), bool, int, float})
_RECORDS = frozenset({Change, Enforcement, Usage, Event})
_MISREAD = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, UsageError, ValueError)
_SHOWN_CHARS = 200
T = TypeVar("T")


def understood(read: Callable[..., T], *given: Any) -> T:
    """What a reader makes of an answer; SupervisionError where that is nothing that a service says."""
    try:
        return read(*given)
    except _MISREAD as error:
        raise SupervisionError(f"the service's answer can't be read: {type(error).__name__}: {error}"[:_SHOWN_CHARS],
                               hint="check that it is a ringfence service of the same version") from error  # fmt: skip


class ToldObject(dict[str, Any]):
    """The JSON object of an answer: what it lacks is the service's mistake."""

    def __missing__(self, name: str) -> NoReturn:
        raise SupervisionError(f"the service's answer has no {name}")


def from_bytes(data: bytes) -> object:
    """Bytes as JSON has them.

    >>> from_bytes(b"text"), from_bytes(b"\\xff")
    ('text', {'base64': '/w=='})
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def to_bytes(value: object, name: str = "it") -> bytes:
    """The bytes of such a value; UsageError if it is not one."""
    if isinstance(value, str):
        try:
            return value.encode("utf-8")
        except UnicodeEncodeError:
            raise UsageError(f"{name} contains an unpaired surrogate (not valid Unicode)",
                             hint='write {"base64": …}') from None  # fmt: skip
    if isinstance(value, Mapping) and set(value) == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError):
            pass
    raise UsageError(f"{name} is neither a string nor base64", hint='write a string, or {"base64": …}')


# ---- outcomes


def plain_outcome(outcome: Outcome) -> dict[str, object]:
    """All of it, as JSON has it."""
    given = outcome.__dict__
    plain: dict[str, object] = {name: _plain(value) for name, value in given.items() if name not in _BYTES}
    for name in _BYTES:
        plain[name] = None if given[name] is None else from_bytes(given[name])
    return plain


def _plain(value: Any) -> object:
    """By the exact type first: an outcome has hundreds of values, and a service converts every run's."""
    kind = type(value)
    if kind in _AS_IT_IS:
        return value
    if kind is str:
        return value if value.isascii() else shown(value)
    if kind in _RECORDS:
        return {name: _plain(item) for name, item in value.__dict__.items()}
    if kind is tuple or kind is list:
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return shown(value)
    if kind is dict or isinstance(value, Mapping):
        return {shown(str(name)): _plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return from_bytes(value)
    return value if isinstance(value, bool | int | float) else shown(str(value))


def shown(text: str) -> str:
    """A text that JSON can have: names of files may be no text at all."""
    plain = str.__str__(text)
    return plain if plain.isascii() else plain.encode("utf-8", "backslashreplace").decode("utf-8")


def read_outcome(plain: Mapping[str, Any]) -> Outcome:
    """An outcome out of what ``plain_outcome`` made; fields that this version does not know are left out."""
    known = {name: plain[name] for name in field_names(Outcome) if name in plain}
    for name in _BYTES:
        if known.get(name) is not None:
            known[name] = to_bytes(known[name], name)
    readers: dict[str, Any] = {
        "status": Status, "argv": tuple, "limits_hit": tuple, "near_limits": tuple, "enforced": _read_enforced,
        "usage": lambda value: Usage(**value), "changes": read_changes, "events": _read_events,
    }  # fmt: skip
    return Outcome(**{name: readers[name](value) if name in readers else value for name, value in known.items()})


def read_changes(rows: Iterable[Mapping[str, Any]]) -> tuple[Change, ...]:
    return tuple(Change(path=row["path"], kind=ChangeKind(row["kind"])) for row in rows)


def _read_enforced(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Enforcement]:
    return {name: Enforcement(**{**row, "by": tuple(map(Mechanism, row.get("by", ())))}) for name, row in rows.items()}


def _read_events(rows: Iterable[Mapping[str, Any]]) -> tuple[Event, ...]:
    return tuple(Event(**{**row, "kind": EventKind(row["kind"])}) for row in rows)


# ---- errors

MOST_TOLD = 20
"""Further errors of one policy: whoever makes thousands need not be told of each."""
_MORE = ("hint", "step", "errno", "missing", "paths", "attempts", "field")


def plain_error(error: BaseException) -> dict[str, object]:
    """What a client is told about an error of ours; about any other, only that there was one."""
    if not isinstance(error, SandboxError):
        return {"type": "InternalError", "message": "something went wrong in the service; its log says what"}
    others = getattr(error, "more", ())
    more = {name: _plain(value) for name in _MORE if (value := getattr(error, name, None))}
    told = [shown(str(each)) for each in (error, *others[:MOST_TOLD])]
    told += ["and more"] if len(others) > MOST_TOLD else []
    return {"type": type(error).__name__, "message": "; ".join(told), **more}


def read_error(plain: Mapping[str, Any]) -> SandboxError:
    """The error as the library would have raised it; an unknown kind is a SandboxError."""
    kind = getattr(errors, str(plain.get("type")), SandboxError)
    message = str(plain.get("message", "the service reported an error without a message"))
    if not (isinstance(kind, type) and issubclass(kind, SandboxError)):
        kind = SandboxError
    made: SandboxError = kind.__new__(kind)
    Exception.__init__(made, message)
    rows = {name: plain.get(name) for name in ("missing", "paths", "attempts")}
    listed = {name: tuple(row) if isinstance(row, list | tuple) else () for name, row in rows.items()}
    blank = {"hint": "", "step": "", "errno": 0, "field": "", "fixes": (), "problem": message, "where": "", "more": (),
             "since": ()}  # fmt: skip
    told = {name: plain[name] for name in ("hint", "step", "errno", "field") if name in plain}
    made.__dict__.update({**blank, **told, **listed})
    return made


def outcome_of(document: Mapping[str, Any]) -> Outcome:
    """The outcome of a run's document, named after the run; what went wrong is raised."""
    if document.get("outcome") is None:
        raise understood(read_error, document.get("error") or {"message": f"the run is {document.get('state')}"})
    return understood(lambda: read_outcome({**document["outcome"], "run_id": document["id"]}))
