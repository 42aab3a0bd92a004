"""The one message of a Python job: a value, an exception, or why there is neither, on a descriptor of its own.

``pack_…`` runs inside the sandbox. ``read_reply`` runs outside and turns any bytes at all into a ``Reply``:
what the guest did wrong is a kind of reply, never an exception. The guest's code can write to the descriptor
itself; that is no more than returning another value.

    "RFR" version(1) kind(1) length(4, network order) payload

The payload of a value is a text of ``encode.py``; of one with long bytes it is the length of the text (4), the text,
and the bytes as they are.
"""

from __future__ import annotations

from struct import Struct

from ringfence.model.record import record
from ringfence.model.str_enum import StrEnum
from ringfence.model.system_text import escape_controls
from ringfence.python_jobs.decode import Undecodable, decode
from ringfence.python_jobs.encode import MAX_BYTES, MAX_TEXT_BESIDE_BYTES, TooLarge, Unsendable, encode, encode_apart

_HEAD = Struct("!3sBcI")
_MAGIC, _VERSION = b"RFR", 1
_LENGTH = Struct("!I")
_VALUE, _APART, _RAISED, _TOO_LARGE, _UNSENDABLE = b"V", b"B", b"E", b"L", b"N"
HEAD_BYTES = _HEAD.size
MAX_TEXT_CHARS = 32 * 1024
"""Limit of a message or a traceback; the middle of a longer one is left out."""
MAX_TOLD_BYTES = 1 << 20
"""Size of a message without a value, however small the limit of values is; a character takes up to six bytes."""


class ReplyKind(StrEnum):
    """What arrived."""

    VALUE = "value"
    RAISED = "raised"
    TOO_LARGE = "too large"
    UNSENDABLE = "unsendable"
    NOTHING = "nothing"
    HALF = "half a message"
    TRAILING = "more than one message"
    GARBLED = "garbled"
    OVERFLOW = "overflow"


@record
class Raised:
    """An exception of the guest, as texts; nothing of it was executed or imported here."""

    type_name: str
    """With its module, but for the builtin ones."""
    message: str
    traceback: str


@record
class Reply:
    """What a job said over its channel; untrusted, whatever it says."""

    kind: ReplyKind
    value: object = None
    raised: Raised | None = None
    problem: str = ""
    """Why there is no value, as half a sentence."""


# -- inside ----------------------------------------------------------------------------------------------------


def pack_value(value: object, max_bytes: int) -> bytes:
    """A message with the value, or with the reason why it can't be sent. What the value itself raises passes."""
    try:
        text, beside = encode_apart(value, max_bytes=max_bytes)
        return _packed(_APART, _LENGTH.pack(len(text)), text, *beside) if beside else _packed(_VALUE, text)
    except TooLarge as error:
        return _packed(_TOO_LARGE, encode(str(error)))
    except Unsendable as error:
        return _packed(_UNSENDABLE, encode(cut(str(error))))


def pack_raised(type_name: str, message: str, traceback: str) -> bytes:
    return _packed(_RAISED, encode([cut(type_name), cut(message), cut(traceback)]))


def _packed(kind: bytes, *parts: bytes) -> bytes:
    return b"".join((_HEAD.pack(_MAGIC, _VERSION, kind, sum(map(len, parts))), *parts))


def cut(text: str) -> str:
    """A text that is not too long: its first and its last part."""
    if len(text) <= MAX_TEXT_CHARS:
        return text
    half = MAX_TEXT_CHARS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


# -- outside ---------------------------------------------------------------------------------------------------


def channel_bytes(max_bytes: int = MAX_BYTES) -> int:
    """How much a channel must take for values of up to ``max_bytes``."""
    return HEAD_BYTES + max(max_bytes + MAX_TEXT_BESIDE_BYTES + _LENGTH.size, MAX_TOLD_BYTES)


def read_reply(data: bytes | None, *, max_bytes: int = MAX_BYTES) -> Reply:
    """What the bytes say that a job wrote up to its end; ``None``: it wrote more than the channel takes.

    >>> read_reply(pack_value([1, 2], 100)).value
    [1, 2]
    >>> str(read_reply(b"").kind)
    'nothing'
    """
    if data is None or len(data) > channel_bytes(max_bytes):
        return _without(ReplyKind.OVERFLOW, "it wrote more into its channel than the channel takes")
    if not data:
        return _without(ReplyKind.NOTHING, "it ended without returning a value")
    expected = _MAGIC + bytes([_VERSION])
    if data[: len(expected)] != expected[: len(data)]:
        return _without(ReplyKind.GARBLED, "what it wrote into its channel is not a message of this version")
    if len(data) < HEAD_BYTES:
        return _without(ReplyKind.HALF, "its message ends in the middle")
    _, _, kind, length = _HEAD.unpack_from(data)
    missing = HEAD_BYTES + length - len(data)
    if missing > 0:
        return _without(ReplyKind.HALF, f"its message ends {missing} bytes too early")
    if missing < 0:
        return _without(ReplyKind.TRAILING, f"{-missing} bytes follow its message")
    try:
        content = _content(kind, memoryview(data)[HEAD_BYTES:], max_bytes)
    except Undecodable as error:
        return _without(ReplyKind.GARBLED, f"its message can't be read: {error}")
    return _read(kind, content)


def _content(kind: bytes, payload: memoryview, max_bytes: int) -> object:
    if kind != _APART:
        return decode(bytes(payload), max_bytes=max_bytes if kind == _VALUE else MAX_TOLD_BYTES)
    if len(payload) < _LENGTH.size:
        raise Undecodable("it has no length")
    end = _LENGTH.size + _LENGTH.unpack_from(payload)[0]
    if len(payload) > _LENGTH.size + max_bytes + MAX_TEXT_BESIDE_BYTES or len(payload) <= end:
        raise Undecodable("its parts do not fit")
    return decode(bytes(payload[_LENGTH.size : end]), payload[end:], max_bytes=max_bytes)


def _read(kind: bytes, content: object) -> Reply:
    if kind in (_VALUE, _APART):
        return Reply(kind=ReplyKind.VALUE, value=content)
    if kind == _RAISED and type(content) is list and [type(part) for part in content] == [str] * 3:
        return Reply(kind=ReplyKind.RAISED, raised=_raised(*content), problem="it raised an exception")
    if kind in _TOLD and type(content) is str:
        return _without(_TOLD[kind], f"its value can't be sent: {shown(content, one_line=True)}")
    return _without(ReplyKind.GARBLED, "its message is of an unknown kind")


_TOLD = {_TOO_LARGE: ReplyKind.TOO_LARGE, _UNSENDABLE: ReplyKind.UNSENDABLE}


def _raised(type_name: str, message: str, traceback: str) -> Raised:
    return Raised(type_name=shown(type_name, one_line=True), message=shown(message), traceback=shown(traceback))


def _without(kind: ReplyKind, problem: str) -> Reply:
    return Reply(kind=kind, problem=problem)


def shown(text: str, *, one_line: bool = False) -> str:
    """A guest's text made safe for a terminal: unprintable characters are written out, and its length is bounded."""
    return escape_controls(cut(text), keep="" if one_line else "\n\t")
