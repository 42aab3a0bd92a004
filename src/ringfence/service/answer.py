"""A request as handlers see it, and what they answer. Nothing here is of a web framework."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Any

from ringfence.errors import SandboxError
from ringfence.model.record import record
from ringfence.service.tokens import Tenant


@record
class Ask:
    """Who asks for what; all of it was checked by the route's schemas."""

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
    """An answer that is no success, in words; what is raised anywhere in a handler."""

    def __init__(self, status: int, message: str, *, hint: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.headers = headers or {}


def not_found(what: str) -> Refused:
    """The same for what is not there and for what is somebody else's."""
    return Refused(404, f"there is no such {what}")
