"""A request as handlers see it, what they answer, and which host paths no answer reveals. Nothing here depends on a web
framework."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import AsyncIterator, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import ringfence
from ringfence.client.wire import plain_error
from ringfence.errors import SandboxError
from ringfence.model import state_folder
from ringfence.model.record import record
from ringfence.model.ways.walk import real
from ringfence.service.tokens import Tenant

KNOWN = "ringfence.known"
"""In the scope of a request: whoever sent it has shown a valid token."""
INSTEAD = "(a path of the service)"
_MOST_TOLD_CHARS = 16 << 10
_OF_THE_SYSTEM = ("/", "/usr", "/usr/local")
_BELOW = r"(?:/[^\s'\":;,()\]]*|(?![\w.-]))"


@record
class Ask:
    """Who asks for what; the route's schemas have checked all of it."""

    tenant: Tenant
    path: Mapping[str, str] = MappingProxyType({})
    query: Mapping[str, Any] = MappingProxyType({})
    body: Any = None
    """JSON, or bytes where the route says so."""
    key: str = ""
    """Of ``Idempotency-Key``."""
    last_event: int = 0


@record
class Answer:
    """What is sent back: one of a JSON value, bytes, or events."""

    status: int = 200
    json: object = None
    data: bytes | None = None
    kind: str = "application/octet-stream"
    events: AsyncIterator[bytes] | None = None
    headers: Mapping[str, str] = MappingProxyType({})


class Refused(SandboxError):
    """An answer that is not a success, in words; handlers raise it anywhere."""

    def __init__(self, status: int, message: str, *, hint: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.headers = headers or {}


def not_found(what: str) -> Refused:
    """The same answer for what does not exist and for what is somebody else's."""
    return Refused(404, f"there is no such {what}")


class HostPaths:
    """Paths that no client is told: where the service and ringfence keep their own files, and where they are installed.
    Any error may contain one; the log has it in full. Paths inside sandboxes stay as they are."""

    def __init__(self, *own: str) -> None:
        self._own = (*own, *installed())
        self._stamp: object = None
        self._pattern = _pattern(self._own)

    def error(self, error: BaseException) -> dict[str, object]:
        """What a client is told about an error."""
        return {name: self._without(_cut(value)) for name, value in plain_error(error).items()}

    def without(self, text: str) -> str:
        """The same text, with each of these paths replaced by a word."""
        stamp = state_folder.own_stamp()
        if stamp != self._stamp:
            self._pattern, self._stamp = _pattern((*self._own, *state_folder.own_places())), stamp
        return self._pattern.sub(INSTEAD, text)

    def _without(self, value: object) -> object:
        if isinstance(value, str):
            return self.without(value)
        return [self._without(each) for each in value] if isinstance(value, list) else value


def _cut(value: object) -> object:
    """What is told of an error is searched for paths of ours, while everybody waits. It ends between two words: half a
    path would not be found."""
    if not isinstance(value, str) or len(value) <= _MOST_TOLD_CHARS:
        return value
    return f"{value[:_MOST_TOLD_CHARS].rpartition(' ')[0]} ..."


def installed() -> tuple[str, ...]:
    """Where this interpreter, its libraries and ringfence lie."""
    named = (sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), os.path.dirname(ringfence.__file__))
    return tuple(path for path in dict.fromkeys(named) if path and not _is_of_the_system(path))


def _is_of_the_system(path: str) -> bool:
    return path in _OF_THE_SYSTEM or path in ("/usr/bin", "/usr/include", "/usr/local/bin")


def _pattern(paths: Iterable[str]) -> re.Pattern[str]:
    """The longest first; by the name that was given and by where that leads."""
    every = {each for path in paths if path for each in (path, real(path))}
    return re.compile(f"(?:{'|'.join(map(re.escape, sorted(every, key=len, reverse=True)))}){_BELOW}")
