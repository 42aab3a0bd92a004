"""Evaluates constant expressions: the few operators, functions and methods used to spell names in pieces.

Everything is bounded: a value longer than a few thousand characters, or made with a width or a count, is unknown.
"""

from __future__ import annotations

import ast
import base64
import binascii
import codecs
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from ringfence.validation.values import Const, Items, PathOf, Start, Value, size

MAX_TEXT = 8 * 1024
_PACKED = 2 * MAX_TEXT
"""How much of something encoded is decoded; it can be cut where groups of 2, 4 or 8 end."""
_SQUARE = frozenset({"punycode", "idna"})
"""Codecs whose work grows with the square of the text."""
_MAX_NUMBER = 2**64
_MANY_ITEMS = 256
_PLAIN_FORMAT = re.compile(r"(?:[^{}]|\{\{|\}\}|\{\w*\})*+")
_PLAIN_PERCENT = re.compile(r"(?:[^%]|%%|%[sdcrx])*+")
_CODECS = frozenset({"rot13", "rot_13", "rot-13", "hex", "hex_codec", "base64", "base64_codec", "utf-8", "utf8",
                     "ascii", "latin-1", "latin1", "unicode_escape", "unicode-escape", "raw_unicode_escape", "utf-16",
                     "utf-32", "utf_16", "utf_8", "utf-7", "utf_7", "zip", "zlib", "bz2", "punycode", "utf-16-le",
                     "idna", "quopri", "uu"})  # fmt: skip


def _bounded(value: object) -> Const | None:
    if isinstance(value, str | bytes):
        return Const(value) if len(value) <= MAX_TEXT else None
    if isinstance(value, bool) or value is None or (isinstance(value, int) and abs(value) < _MAX_NUMBER):
        return Const(value)
    return Const(value) if isinstance(value, float) else None


def _tried(action: Callable[[], object]) -> Value | None:
    """If the examined code would raise, it is not a constant."""
    try:
        return made(action())
    except Exception:
        return None


def made(value: object) -> Value | None:
    """A value of Python as a known one."""
    if isinstance(value, bytearray):
        value = bytes(value)
    if isinstance(value, list | tuple):
        return Items(tuple(map(made, value[:256]))) if len(value) <= 256 else None
    return _bounded(value)


def plain(value: Value | None) -> object:
    """The value of Python that it stands for; NotImplemented where it is not known, or too long to work with."""
    if size(value) > MAX_TEXT:
        return NotImplemented
    if isinstance(value, Const):
        return value.value
    if isinstance(value, Items):
        items = [plain(item) for item in value.values]
        return NotImplemented if any(item is NotImplemented for item in items) else items
    return NotImplemented


def cost(values: Iterable[Value | None]) -> int:
    """How much work it is to do something with them. What is too long for that costs nothing, as nothing is done."""
    known = [value for value in values if value is not None]
    whole = sum(min(size(value), _PACKED) for value in known) + 1
    return 4 * whole * whole if any(map(_is_square, known)) else whole


def _is_square(value: Value) -> bool:
    return isinstance(value, Const) and isinstance(value.value, str) and value.value[:9].lower() in _SQUARE


def _start(text: str) -> Start | None:
    return Start(text[:MAX_TEXT]) if text else None


# ---- operators


def binary(operator: ast.operator, left: Value | None, right: Value | None) -> Value | None:
    if isinstance(operator, ast.Div) and (isinstance(left, PathOf) or isinstance(right, PathOf)):
        return joined_path(operator, left, right)
    if isinstance(operator, ast.Add) and isinstance(left, Const) and isinstance(left.value, str):
        return _concatenated(left.value, right)
    if isinstance(operator, ast.Add) and isinstance(left, Start):
        return left
    if isinstance(operator, ast.Add) and isinstance(left, Items) and isinstance(right, Items):
        return Items((left.values + right.values)[:256])
    if isinstance(operator, ast.Mod) and isinstance(left, Const) and isinstance(left.value, str | bytes):
        return _percent(left.value, right)
    a, b = plain(left), plain(right)
    return None if a is NotImplemented or b is NotImplemented else _arithmetic(operator, a, b)


def _concatenated(left: str, right: Value | None) -> Value | None:
    if isinstance(right, Const) and isinstance(right.value, str):
        return _bounded(left + right.value) if len(left) + len(right.value) <= MAX_TEXT else None
    return _start(left[:MAX_TEXT] + right.value) if isinstance(right, Start) else _start(left)


_OPERATORS: dict[type[ast.operator], Callable[[int, int], object]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.BitXor: lambda a, b: a ^ b,
    ast.BitAnd: lambda a, b: a & b,
    ast.BitOr: lambda a, b: a | b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}


def _arithmetic(operator: ast.operator, a: object, b: object) -> Value | None:
    if isinstance(a, int) and isinstance(b, int):
        if isinstance(operator, ast.Mult):
            return _bounded(a * b)
        if isinstance(operator, ast.LShift | ast.RShift | ast.Pow):
            return _shifted(operator, a, b)
        work = _OPERATORS.get(type(operator))
        return _tried(lambda: work(a, b)) if work else None
    if isinstance(operator, ast.Mult) and isinstance(a, str | bytes) and isinstance(b, int):
        return _bounded(a * b) if 0 <= b * len(a) <= MAX_TEXT else None
    if isinstance(operator, ast.Add) and isinstance(a, bytes) and isinstance(b, bytes):
        return _bounded(a + b)
    return None


def _shifted(operator: ast.operator, a: int, b: int) -> Value | None:
    if not 0 <= b < 64:
        return None
    if isinstance(operator, ast.LShift):
        return _bounded(a << b)
    return _bounded(a >> b if isinstance(operator, ast.RShift) else a**b if abs(a) < _MAX_NUMBER else None)


def _percent(text: str | bytes, right: Value | None) -> Value | None:
    values = plain(right) if len(text) <= MAX_TEXT else NotImplemented
    start = text[:MAX_TEXT] if isinstance(text, str) else text[:MAX_TEXT].decode("latin-1")
    if values is NotImplemented or not _PLAIN_PERCENT.fullmatch(start):
        return _start(start.partition("%")[0])
    return _tried(lambda: text % (tuple(values) if isinstance(values, list) else values))


# ---- subscripts


def subscript(key: object, value: Value | None) -> Value | None:
    """``value[key]``; ``key`` is a constant or a slice of constants."""
    if isinstance(value, Items) and isinstance(key, int):
        return value.values[key] if -len(value.values) <= key < len(value.values) else None
    if isinstance(value, Items) and isinstance(key, slice):
        return Items(value.values[key])
    text = value.value if isinstance(value, Const) else None
    if not isinstance(text, str | bytes) or not isinstance(key, int | slice):
        return None
    return _tried(lambda: _piece(text, key))


def _piece(text: str | bytes, key: int | slice) -> object:
    is_long = isinstance(key, slice) and len(range(*key.indices(len(text)))) > MAX_TEXT
    return NotImplemented if is_long else text[key]


def elements(value: Value | None) -> tuple[Value | None, ...]:
    """What a loop goes through: items, or the characters of a short text."""
    if isinstance(value, Items):
        return value.values
    text = plain(value)
    return tuple(map(Const, text)) if isinstance(text, str | bytes) and len(text) <= _MANY_ITEMS else ()


# ---- functions and methods


def _decompressed(data: bytes) -> bytes:
    return zlib.decompressobj().decompress(data, MAX_TEXT)


def _decoded(text: str | bytes, encoding: str = "utf-8", *_: object) -> object:
    if encoding.lower() not in _CODECS:
        return None
    if encoding.lower() in ("zip", "zlib"):
        return _decompressed(text) if isinstance(text, bytes) else None
    decode: Callable[[object, str], object] = codecs.decode  # type: ignore[assignment]
    return None if encoding.lower() == "bz2" else decode(text, encoding)


def _characters(value: object) -> list[str]:
    return list(value) if isinstance(value, str) else value if isinstance(value, list) else []


_FUNCTIONS: Mapping[str, Callable[..., object]] = {
    "builtins.chr": lambda code: chr(code) if isinstance(code, int) else None,
    "builtins.ord": ord,
    "builtins.str": lambda *args: args[0].decode() if len(args) > 1 else str(args[0]),
    "builtins.bytes": lambda value, *_: value.encode() if isinstance(value, str) else
                      bytes(value) if isinstance(value, list | bytes) else None,
    "builtins.bytearray": lambda value, *_: value.encode() if isinstance(value, str) else
                          bytes(value) if isinstance(value, list | bytes) else None,
    "builtins.int": lambda value, *base: int(value, *base) if not isinstance(value, str) or len(value) < 64 else None,
    "builtins.hex": hex,
    "builtins.list": _characters,
    "builtins.tuple": _characters,
    "builtins.reversed": lambda value: _characters(value)[::-1],
    "builtins.ascii": lambda value: ascii(value) if isinstance(value, str | int) else None,
    "builtins.repr": lambda value: repr(value) if isinstance(value, str | int) else None,
    "builtins.bytes.fromhex": bytes.fromhex,
    "builtins.bytearray.fromhex": bytes.fromhex,
    "builtins.str.join": lambda sign, values: sign.join(values),
    "base64.b64decode": lambda data, *_: base64.b64decode(data),
    "base64.standard_b64decode": base64.standard_b64decode,
    "base64.decodebytes": base64.decodebytes,
    "base64.urlsafe_b64decode": base64.urlsafe_b64decode,
    "base64.b32decode": base64.b32decode,
    "base64.b16decode": base64.b16decode,
    "base64.b85decode": base64.b85decode,
    "base64.a85decode": base64.a85decode,
    "binascii.unhexlify": binascii.unhexlify,
    "binascii.a2b_hex": binascii.a2b_hex,
    "binascii.a2b_base64": binascii.a2b_base64,
    "codecs.decode": _decoded,
    "codecs.encode": _decoded,
    "zlib.decompress": lambda data, *_: _decompressed(data),
    "os.path.join": lambda *parts: _joined(parts),
    "posixpath.join": lambda *parts: _joined(parts),
    "os.path.normpath": str, "os.path.abspath": str, "os.path.realpath": str, "os.fspath": str,
    "os.path.expandvars": str, "os.path.expanduser": str, "sys.intern": str, "os.fsdecode": str,
    "os.path.dirname": lambda path: path.rpartition("/")[0],
    "os.path.basename": lambda path: path.rpartition("/")[2],
}  # fmt: skip
DECODERS = frozenset(name for name in _FUNCTIONS if name.startswith(("base64.", "binascii.", "codecs.", "zlib."))) | {
    "builtins.bytes.fromhex", "builtins.bytearray.fromhex", "lzma.decompress", "bz2.decompress", "gzip.decompress",
}  # fmt: skip
_METHODS = frozenset({"join", "lower", "upper", "strip", "lstrip", "rstrip", "replace", "title", "swapcase", "split",
                      "capitalize", "removeprefix", "removesuffix", "casefold", "partition",
                      "rpartition"})  # fmt: skip


def _joined(parts: Sequence[object]) -> str:
    """Join like posixpath.join."""
    path = ""
    for part in map(str, parts):
        path = part if part.startswith("/") or not path else f"{path}{'' if path.endswith('/') else '/'}{part}"
    return path


def joined_path(_: object, *parts: Value | None) -> PathOf:
    """Where the known beginning of a joined path leads, in whatever way it is joined."""
    path, whole = "", True
    for part in parts:
        at = part.at if isinstance(part, PathOf) else part
        known = isinstance(at, Const | Start) and isinstance(at.value, str)
        if known:
            path = _joined((path, at.value[:MAX_TEXT])) if whole else path  # type: ignore[union-attr,index]
        whole = whole and known and isinstance(at, Const) and len(path) <= MAX_TEXT
    return PathOf(Const(path) if whole else _start(path))


def path_attribute(path: PathOf, name: str) -> Value | None:
    if name not in ("parent", "name", "stem", "parents") or not isinstance(path.at, Const):
        return None
    before, _, last = str(path.at.value).rstrip("/").rpartition("/")
    return PathOf(Const(before or "/")) if name == "parent" else Const(last)


def called(name: str, *args: Value | None) -> Value | None:
    """The value of a call of something by its full name."""
    work = _FUNCTIONS.get(name)
    if work is None:
        return None
    if name in DECODERS:
        return _opened(work, args)
    values = [plain(arg) for arg in args]
    if any(value is NotImplemented for value in values):
        return joined_path(name, *args).at if name.endswith("path.join") else None
    return _tried(lambda: work(*values))


def _opened(work: Callable[..., object], args: Sequence[Value | None]) -> Value | None:
    """The decoded value; for a long one the beginning is enough."""
    values = [_packed(arg) for arg in args]
    if not values or values[0] is NotImplemented:
        return None
    try:
        found = work(*(value for value in values if value is not NotImplemented))
    except Exception:
        return None
    return made(found[:MAX_TEXT] if isinstance(found, str | bytes) else found)


def _packed(value: Value | None) -> object:
    text = value.value if isinstance(value, Const) else None
    return text[:_PACKED] if isinstance(text, str | bytes) else plain(value)


def method(name: str, value: Value | None, *args: Value | None) -> Value | None:
    """The value of a call of a method of a constant."""
    text, values = _packed(value), [plain(arg) for arg in args]
    if not isinstance(text, str | bytes) or any(each is NotImplemented for each in values):
        return _partly_formatted(text) if name == "format" and isinstance(text, str) else None
    if name in ("decode", "encode"):
        return _tried(lambda: _coded(text[:MAX_TEXT], name, values))
    if name == "format" and isinstance(text, str) and _PLAIN_FORMAT.fullmatch(text):
        return _tried(lambda: text.format(*values))
    if name in _METHODS and _is_small(text, values):
        return _tried(lambda: getattr(text, name)(*values))
    return None


def _coded(text: str | bytes, name: str, values: list[object]) -> object:
    encoding = str(values[0]) if values else "utf-8"
    if encoding.lower() not in _CODECS:
        return None
    if isinstance(text, bytes) and name == "decode":
        return _decoded(text, encoding)
    return text.encode(encoding) if isinstance(text, str) and name == "encode" else None


def _is_small(text: str | bytes, values: list[object]) -> bool:
    lengths = [len(value) for value in values if isinstance(value, str | bytes | list)]
    return len(text) * max(1, *lengths, 1) <= MAX_TEXT


def _partly_formatted(text: str) -> Value | None:
    return _start(text.partition("{")[0])
