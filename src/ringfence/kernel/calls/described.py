"""Tables of calls as a reader sees them: which call has which arguments, with flags by their names."""

from __future__ import annotations

import errno
from _collections_abc import Mapping

from ringfence.kernel.calls import flag_names
from ringfence.kernel.calls.table import ANY_ERROR, Address, Argument, Call, Slot, Table
from ringfence.model.record import record

_SHOWN_BYTES, _SHOWN_BELOW = 32, 4096
_ERRORS = {ANY_ERROR: "any error"}


@record
class DescribedCall:
    """One call of a table."""

    name: str
    arguments: tuple[object, ...]
    """Numbers, texts and None as they are; an object with the one key ``bytes`` (hexadecimal), ``slot`` (the name of
    what an earlier call returned, or of what is known only later) or ``address`` (in the memory of the table)."""
    names: Mapping[int, list[str]]
    """By the place of an argument: the flags that it is made of."""
    result: str
    """The slot that keeps what it returns; empty: none."""
    allowed: tuple[str, ...]
    """Errors that do not stop the plan."""
    skip: int
    """How many of the next calls are skipped where it succeeds; below zero: where it fails."""
    text: str
    """All of that in one line."""


def described(table: Table) -> list[tuple[str, DescribedCall]]:
    """Return (step, call) of each call."""
    slots = {int(slot): name for name, slot in table.slots.items()}
    return [(call.step, _described(call, slots)) for call in table.calls]


def _described(call: Call, slots: dict[int, str]) -> DescribedCall:
    named = {place: flag_names.names(call.name, place, each) for place, each in enumerate(call.arguments)}
    names = {place: found for place, found in named.items() if found}
    return DescribedCall(
        name=call.name, arguments=tuple(_plain(each, slots) for each in call.arguments), names=names,
        result=slots[call.store] if call.store >= 0 else "",
        allowed=tuple(_ERRORS.get(code) or errno.errorcode[code] for code in call.allowed),
        skip=call.skip, text=_text(call, names, slots),
    )  # fmt: skip


def _plain(argument: Argument, slots: dict[int, str]) -> object:
    if isinstance(argument, bytes):
        return {"bytes": argument.hex()}
    if isinstance(argument, Slot):
        return {"slot": slots[int(argument)]}
    return {"address": int(argument)} if isinstance(argument, Address) else argument


def _text(call: Call, names: Mapping[int, list[str]], slots: dict[int, str]) -> str:
    words = ("|".join(names.get(place, ())) or _shown(each, slots) for place, each in enumerate(call.arguments))
    result = f" = {slots[call.store]}" if call.store >= 0 else ""
    allowed = "".join(f" or {_ERRORS.get(code) or errno.errorcode[code]}" for code in call.allowed)
    skips = f", {'then' if call.skip > 0 else 'else'} skip {abs(call.skip)}" if call.skip else ""
    return f"{call.name}({', '.join(words)}){result}{allowed}{skips}"


def _shown(argument: Argument, slots: dict[int, str]) -> str:
    if isinstance(argument, str):
        return json_string(argument)
    if isinstance(argument, bytes):
        return f"{{{argument.hex()}}}" if len(argument) <= _SHOWN_BYTES else f"{{{len(argument)} bytes}}"
    if isinstance(argument, Slot):
        return f"<{slots[int(argument)]}>"
    if isinstance(argument, Address):
        return f"&{int(argument)}"
    if argument is None:
        return "NULL"
    return str(argument) if -_SHOWN_BELOW < argument < _SHOWN_BELOW else hex(argument)


def json_string(text: str) -> str:
    """Return the text in quotes, without anything that a terminal obeys."""
    return '"' + text.encode("unicode_escape").decode("ascii").replace('"', '\\"') + '"'
