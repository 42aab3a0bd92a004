"""``ToolCall``: a tool's name and parameters, read once: what they say about secrets, code and ways out.

Owns the copy of the parameters that is both judged and run, so nothing can change in between, and the facts for risk
and detection. It rates nothing. Parameters that are too large or too deep to be read are refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ringfence.errors import RefusedError
from ringfence.integrations.deep_agent import secrets_and_code, tool_words
from ringfence.integrations.deep_agent.confusables import is_disguised, name_words, squeezed
from ringfence.integrations.deep_agent.safe_repr import type_name
from ringfence.model.ways.walk import real

MAX_PARAMETER_BYTES = 2**20
MAX_DEPTH = 32
MAX_VALUES = 50_000
_MAX_PATH = 4096
_MAX_SHOWN = 80


NAME = "(a name)"


class Piece(NamedTuple):
    """One text of the parameters; ``key`` is the nearest name above it, or NAME if the text is itself a name."""

    key: str
    text: str


class ToolCall:
    """What somebody wants to run. ``parameters`` are a copy of plain values; other objects stay as they are.

    ``folders``: where relative paths may begin, to see where links lead.
    """

    def __init__(
        self,
        tool: str,
        parameters: Mapping[str, Any],
        *,
        folders: Sequence[str] = (),
        max_bytes: int = MAX_PARAMETER_BYTES,
    ) -> None:
        self.tool = tool
        self._folders = tuple(folders)
        self.words = name_words(tool)
        reader = _Reader(tool, max_bytes)
        self.parameters: dict[str, Any] = reader.copy("", dict(parameters), 0)
        self.pieces: tuple[Piece, ...] = tuple(reader.pieces)
        self.opaque: tuple[str, ...] = tuple(reader.opaque)
        """Types of values that can't be inspected."""

    @cached_property
    def secret_files(self) -> tuple[str, ...]:
        """Secret files that it names, also through a link."""
        named = (name for piece in self.pieces for name in secrets_and_code.secret_files(piece.text))
        places = (place for folder in self._folders for piece in self.pieces for place in _led_to(folder, piece.text))
        linked = (name for place in places for name in secrets_and_code.secret_files(place))
        return tuple(dict.fromkeys((*named, *linked)))

    @cached_property
    def has_secret_values(self) -> bool:
        return any(secrets_and_code.SECRET_VALUE.search(piece.text) for piece in self.pieces)

    @cached_property
    def code(self) -> tuple[str, ...]:
        """Texts that will be run, as far as names tell."""
        runs = not self.words.isdisjoint(tool_words.CODE_TOOLS)
        return tuple(piece.text for piece in self.pieces if _is_code(piece, runs))

    @cached_property
    def way_out(self) -> str:
        """What makes it a way to the network; empty where nothing does."""
        together = squeezed(self.tool)
        parts = tool_words.NETWORK_PARTS
        if self.words & tool_words.NETWORK_WORDS or any(part in name for part in parts for name in together):
            return f"the tool {self.tool!r}"
        addressed = (piece.key for piece in self.pieces if piece.text and _is_addressed(piece))
        key = next(addressed, "")
        if key:
            return f"the parameter {key[:_MAX_SHOWN]!r}"
        if any(map(secrets_and_code.uses_network, self.code)):
            return "code that uses the network"
        silent = self.words.isdisjoint(tool_words.TELLING_WORDS)
        told = silent and any(secrets_and_code.mentions_address(piece.text) for piece in self.pieces)
        return "an address given to a tool whose name says nothing" if told else ""

    @cached_property
    def disguised(self) -> tuple[str, ...]:
        """Where names and paths have look-alike or invisible letters; in prose they are nothing special."""
        hiding = (piece.key for piece in self.pieces if _is_word(piece.text) and is_disguised(piece.text))
        own = ("the tool's name",) if is_disguised(self.tool) else ()
        return (*own, *dict.fromkeys(f"the parameter {key[:_MAX_SHOWN]!a}" for key in hiding))


def _is_word(text: str) -> bool:
    return len(text) < 256 and " " not in text


_NOT_CODE = tool_words.PATH_KEYS | tool_words.ADDRESS_KEYS


def _is_code(piece: Piece, runs: bool) -> bool:
    """By its key; for a tool that runs things, any other text too, even a name, a path or an address that looks like a
    command: a caller need not use a parameter as its name suggests."""
    key = name_words(piece.key)
    if key & tool_words.CODE_KEYS:
        return True
    other = piece.key != NAME and key.isdisjoint(_NOT_CODE)
    return runs and (other or secrets_and_code.is_command(piece.text))


def _is_addressed(piece: Piece) -> bool:
    return bool(name_words(piece.key) & tool_words.ADDRESS_KEYS) or secrets_and_code.is_address(piece.text)


def _led_to(folder: str, text: str) -> Iterator[str]:
    """Where a path leads that is below a directory by its text: by that text, and after following links; nothing is
    opened."""
    if len(text) > _MAX_PATH or "\0" in text:
        return
    path = os.path.join(folder, text)
    plain = os.path.normpath(path)
    if plain.startswith(folder + os.sep):
        yield from (real(each) for each in dict.fromkeys((plain, path)) if os.path.lexists(each))


class _Reader:
    """Copies plain values and gathers their texts, up to a bound."""

    def __init__(self, tool: str, max_bytes: int) -> None:
        self.tool = tool
        self.pieces: list[Piece] = []
        self.opaque: list[str] = []
        self._bytes_left = max_bytes
        self._values_left = MAX_VALUES
        self._max_bytes = max_bytes

    def copy(self, key: str, value: Any, depth: int) -> Any:
        self._values_left -= 1
        if depth > MAX_DEPTH or self._values_left < 0:
            raise RefusedError(self.tool, f"parameters of more than {MAX_DEPTH} levels or {MAX_VALUES} values")
        if type(value) in _NUMBERS:
            if isinstance(value, int) and name_words(key) <= tool_words.ONE_PATH_KEYS and key:
                self.pieces.append(Piece(key, f"/dev/fd/{value:d}"))  # open() takes it for a descriptor
            return value
        for kind, copy in _COPIES:
            if issubclass(type(value), kind):  # an object may lie about its __class__
                return copy(self, key, value, depth)
        self.opaque.append(type_name(value))
        return value

    def text(self, key: str, value: Any, depth: int) -> str:
        plain = str.__str__(value)  # a subclass could answer each question differently
        self._spend(len(plain))
        self.pieces.append(Piece(key, plain))
        return plain

    def data(self, key: str, value: Any, depth: int) -> bytes:
        plain = bytes(memoryview(value))
        self._spend(len(plain))
        self.pieces.append(Piece(key, plain.decode("utf-8", "replace")))
        return plain

    def path(self, key: str, value: Any, depth: int) -> Any:
        return Path(self.text(key, os.fsdecode(os.fspath(value)), depth))

    def table(self, key: str, value: Any, depth: int) -> dict[Any, Any]:
        copied = {}
        for name, part in list(dict.items(value)):
            inner = self.copy(NAME, name, depth + 1)
            copied[inner] = self.copy(inner if isinstance(inner, str) else key, part, depth + 1)
        return copied

    def row(self, key: str, value: Any, depth: int) -> Any:
        kind = next(kind for kind in (list, tuple, set, frozenset) if issubclass(type(value), kind))
        return kind(self.copy(key, part, depth + 1) for part in kind.__iter__(value))

    def _spend(self, size: int) -> None:
        self._bytes_left -= size
        if self._bytes_left < 0:
            problem = f"parameters of more than {self._max_bytes} bytes are not inspected"
            raise RefusedError(self.tool, problem, hint="pass a file, or raise max_parameter_bytes")


_NUMBERS = frozenset({bool, type(None), int, float, complex})
_Copy = Callable[[_Reader, str, Any, int], Any]
_COPIES: tuple[tuple[type | tuple[type, ...], _Copy], ...] = (
    (str, _Reader.text),
    ((bytes, bytearray, memoryview), _Reader.data),
    (dict, _Reader.table),
    ((list, tuple, set, frozenset), _Reader.row),
    (os.PathLike, _Reader.path),
)


def texts_of(value: object, max_bytes: int = 4 * MAX_PARAMETER_BYTES) -> str:
    """The texts in a value that came back, as far as the bound goes."""
    reader = _Reader("", max_bytes)
    try:
        reader.copy("", value, 0)
    except Exception:
        pass  # too much, or an object with its own methods: what was read so far counts
    return "\n".join(piece.text for piece in reader.pieces)
