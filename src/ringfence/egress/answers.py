"""Checks what a gateway says, field by field. Pure.

A gateway parses what hostile programs send, so its lines are trusted no more than theirs: only known fields of the
right kind and size pass, and a text is one line of printable characters.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, cast, get_args

if TYPE_CHECKING:
    from ringfence.transport.request import EgressAnswer

MOST_TEXT, _MOST_PEM = 4096, 1 << 16
_MOST_NUMBER = 1 << 63
_DECISIONS = ("allowed", "refused", "ended")
Protocol = Literal["tls", "http", "tcp", "socks5", "connect", "dns"]
"""What an event says; the gateway says nothing else, as the type checker holds."""


class Garbled(Exception):
    """A line that no gateway of ours would say."""


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > MOST_TEXT:
        raise Garbled("a text field is not text, or too long")
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in value)


def _pem(value: object) -> str:
    if not isinstance(value, str) or len(value) > _MOST_PEM or not value.isascii():
        raise Garbled("a certificate field is not a certificate")
    if not value.startswith("-----BEGIN CERTIFICATE-----\n") or "PRIVATE" in value:
        raise Garbled("a certificate field is not a certificate")
    return value


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < _MOST_NUMBER:
        raise Garbled("a number field is not a number, or too large")
    return value


def _port(value: object) -> int:
    if type(value) is not int or not 0 <= value <= 65535:
        raise Garbled("a port field is not a port")
    return value


def _time(value: object) -> float:
    if type(value) not in (int, float) or not 0 <= cast("float", value) < _MOST_NUMBER:
        raise Garbled("a time field is not a time")
    return float(cast("float", value))


def _one_of(*values: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in values:
            raise Garbled("a word is not one of the known ones")
        return str(value)

    return read


def _true(value: object) -> bool:
    if value is not True:
        raise Garbled("ready is not true")
    return True


_EVENT: dict[str, Callable[[object], object]] = {
    "decision": _one_of(*_DECISIONS), "protocol": _one_of(*get_args(Protocol)), "name": _text, "address": _text,
    "port": _port, "rule": _text, "reason": _text, "bytes_out": _number, "bytes_in": _number, "duration_ms": _number,
    "process": _text, "time_s": _time,
}  # fmt: skip
_TOTALS: dict[str, Callable[[object], object]] = dict.fromkeys(
    ("connections", "refused", "bytes_out", "bytes_in", "uncounted"), _number
)

_COUNTS: dict[str, Callable[[object], object]] = dict.fromkeys(
    ("connections", "bytes_out", "bytes_in", "uncounted"), _number
)


def _fields(readers: dict[str, Callable[[object], object]]) -> Callable[[object], dict[str, object]]:
    def read(value: object) -> dict[str, object]:
        if not isinstance(value, dict) or value.keys() != readers.keys():
            raise Garbled("fields are missing or unknown")
        return {name: reader(value[name]) for name, reader in readers.items()}

    return read


_ANSWERS: dict[str, Callable[[object], object]] = {
    "event": _fields(_EVENT), "totals": _fields(_TOTALS), "counts": _fields(_COUNTS), "ca": _pem, "ready": _true,
    "failed": _text,
}  # fmt: skip


def checked(line: bytes) -> EgressAnswer:
    """Return what a line says; raise Garbled and nothing else."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        raise Garbled("not JSON") from None
    if not isinstance(said, dict) or len(said) != 1 or next(iter(said)) not in _ANSWERS:
        raise Garbled("not an answer of a gateway")
    ((name, value),) = said.items()
    return cast("EgressAnswer", {name: _ANSWERS[name](value)})
