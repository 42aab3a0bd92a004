"""``Redactor``: brings parameters, results and messages into a form that may be logged.

It makes sure that no secret appears in clear, as far as names and shapes reveal one, and that any value becomes JSON of
bounded size. Digests are keyed: equal secrets in one log look equal, and nobody can find one by guessing.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Iterable
from typing import Any

from ringfence.integrations.deep_agent.confusables import name_words
from ringfence.integrations.deep_agent.safe_repr import type_name
from ringfence.integrations.deep_agent.secrets_and_code import SECRET_VALUE
from ringfence.integrations.deep_agent.tool_words import is_secret_key

_MAX_TEXT = 400
_MAX_START = 80
_MAX_TOTAL = 32_768
_MAX_ITEMS = 100
_MAX_DEPTH = 12
_MAX_SAFE = 2**53 - 1
_MAX_READABLE = 10**100
_SHORTEST_SECRET = 4
_SIZED = (str, bytes, list, tuple, dict, set, frozenset)


class Redactor:
    """``key``: for the digests; absent: a new one that is kept nowhere. ``clear``: parameters that are no secrets,
    whatever their names say. ``secret``: parameters that are, and with ``every_parameter`` all others too.
    """

    def __init__(
        self,
        key: bytes | None = None,
        *,
        clear: Iterable[str] = (),
        secret: Iterable[str] = (),
        every_parameter: bool = False,
    ) -> None:
        self._key = key or os.urandom(32)
        self._clear = frozenset(clear)
        self._secret = frozenset(secret)
        self._every_parameter = every_parameter

    def parameters(self, parameters: dict[str, Any]) -> Any:
        """A JSON value for the parameters of a call."""
        redacted = self._value("", parameters, 0)
        if len(json.dumps(redacted)) <= _MAX_TOTAL:
            return redacted
        return {name: self.digest(part) for name, part in list(redacted.items())[:_MAX_ITEMS]}

    def text(self, text: str, secrets: Iterable[str] = ()) -> str:
        """A message, without what looks like a secret and without those that are known."""
        for secret in secrets:
            text = text.replace(secret, "[redacted]")
        return _clip(_scrubbed(text))

    def digest(self, value: object) -> dict[str, Any]:
        """Type, length and keyed digest in place of a value."""
        data = _bytes_of(value)
        said = {"type": type_name(value), "hmac_sha256": hmac.new(self._key, data, hashlib.sha256).hexdigest()}
        kind: Any = next((kind for kind in _SIZED if issubclass(type(value), kind)), None)
        return said if kind is None else {**said, "length": kind.__len__(value)}

    def known_secrets(self, parameters: object, key: str = "", depth: int = 0) -> list[str]:
        """The texts under secret names, to be kept out of messages too."""
        if isinstance(parameters, str):
            return [parameters] if self._is_secret(key, parameters) and len(parameters) >= _SHORTEST_SECRET else []
        if depth > _MAX_DEPTH:
            return []
        pairs = parameters.items() if isinstance(parameters, dict) else ()
        rows = parameters if isinstance(parameters, list | tuple) else ()
        inner = [(self._under(key, name), part) for name, part in pairs] + [(key, part) for part in rows]
        return [text for name, part in inner for text in self.known_secrets(part, name, depth + 1)]

    def _under(self, key: str, name: object) -> str:
        """What is below a secret name is secret too."""
        return key if self._is_secret_key(key) else str(name)

    def _is_secret_key(self, key: str) -> bool:
        if not key or key in self._clear:
            return False
        return self._every_parameter or key in self._secret or is_secret_key(name_words(key))

    def _is_secret(self, key: str, value: object) -> bool:
        """Numbers count only if the name says password: many names, such as ``max_tokens``, hold harmless numbers."""
        number = isinstance(value, int | float) and "tokens" in name_words(key)
        return value is not None and not isinstance(value, bool) and not number and self._is_secret_key(key)

    def _value(self, key: str, value: Any, depth: int) -> Any:
        if depth > _MAX_DEPTH or self._is_secret(key, value):
            return self.digest(value)
        if isinstance(value, dict):
            some = list(value.items())[:_MAX_ITEMS]
            return {self.text(str(name)): self._value(str(name), part, depth + 1) for name, part in some}
        if isinstance(value, list | tuple):
            return [self._value(key, part, depth + 1) for part in value[:_MAX_ITEMS]]
        return self._leaf(value)

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, float):
            return repr(value)  # as text: JSON has no NaN
        if isinstance(value, int) and abs(value) < _MAX_READABLE:
            return value if abs(value) <= _MAX_SAFE else repr(value)
        if isinstance(value, os.PathLike):
            value = os.fsdecode(os.fspath(value))
        if not isinstance(value, str):
            return self.digest(value)
        if len(value) <= _MAX_TEXT:
            return _scrubbed(value)
        return {**self.digest(value), "start": _scrubbed(value)[:_MAX_START]}


def _scrubbed(text: str) -> str:
    """Scrub before cutting: half a secret has no shape. Lone surrogates go too: JSON files can't hold them."""
    return SECRET_VALUE.sub("[redacted]", text.encode("utf-8", "backslashreplace").decode("utf-8"))


def _clip(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}… ({len(text)} characters)"


def _bytes_of(value: object) -> bytes:
    if type(value) is bytes:
        return value
    if issubclass(type(value), str):
        return str.encode(value, "utf-8", "backslashreplace")  # type: ignore[arg-type]
    try:
        return json.dumps(value, sort_keys=True).encode()
    except Exception:  # no JSON, too deep, or a container with methods of its own
        return type_name(value).encode("utf-8", "backslashreplace")
