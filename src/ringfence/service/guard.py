"""The checks before every handler: who may talk to us at all, how much, how slowly, and as whom.

A page of another origin must not use a service on loopback: it may lead the browser to our address by a name of its own
(DNS rebinding), or send what needs no permission (a form, a picture). So ``Host`` must be ours, a foreign ``Origin`` or
``Sec-Fetch-Site`` is refused, and the Content-Type must be JSON or octets, which no form can send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from ringfence.service.answer import Refused
from ringfence.service.routes import OCTETS, Route
from ringfence.service.schema import from_query, told
from ringfence.service.settings import Settings
from ringfence.service.tokens import Tenant, Tokens

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_OURS = ("same-origin", "none")
_MAX_FILE_BYTES = 64 << 20
_MAX_KEY_CHARS = 100

# Only our own files, and no other site may show them in a frame.
SECURITY_HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def refuse_foreign(settings: Settings, headers: Mapping[str, str]) -> None:
    """Refuse requests for another host name, or from another origin."""
    host = headers.get("host", "").lower()
    if host not in settings.authorities:
        raise Refused(421, "this service does not answer to that host name",
                      hint="the operator lists further names under names")  # fmt: skip
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in {f"{scheme}://{host}" for scheme in ("http", "https")}:
        raise Refused(403, "requests from other origins are refused")
    if headers.get("sec-fetch-site", "none") not in _OURS:
        raise Refused(403, "requests from other sites are refused")


def tenant_for(tokens: Tokens, route: Route, headers: Mapping[str, str]) -> Tenant:
    """Return who asks; 401 for an unknown token, 403 for one without the scope."""
    if not route.scope:
        return Tenant(name="nobody", scopes=frozenset())
    found = tokens.tenant_of(headers.get("authorization", ""))
    if found is None:
        raise Refused(401, "the token is missing or unknown", headers={"www-authenticate": "Bearer"})
    if route.scope not in found.scopes:
        raise Refused(403, f"this token lacks the scope {route.scope}")
    return found


def body_size(settings: Settings, route: Route, headers: Mapping[str, str]) -> int:
    """How many bytes the body claims, or the most it may have; refused if that is too much, or another content type."""
    if route.body is None and not route.octets:
        return 0
    wanted = OCTETS if route.octets else "application/json"
    if headers.get("content-type", "").partition(";")[0].strip().lower() != wanted:
        raise Refused(415, f"the body must be {wanted}, and say so in Content-Type")
    most = _most_bytes(settings, route)
    length = headers.get("content-length", str(most) if "transfer-encoding" in headers else "0")
    if not (length.isascii() and length.isdigit()) or int(length) > most:
        raise Refused(413, f"a body has at most {most} bytes")
    return int(length)


def _most_bytes(settings: Settings, route: Route) -> int:
    return max(settings.body_bytes, _MAX_FILE_BYTES) if route.octets else settings.body_bytes


async def read_body(settings: Settings, route: Route, receive: Receive) -> bytes:
    """Read the body within its limits of size and time; nothing if the route takes none."""
    if route.body is None and not route.octets:
        return b""
    most = _most_bytes(settings, route)
    try:
        async with asyncio.timeout(settings.request_s):
            return await _received(receive, most)
    except TimeoutError:
        raise Refused(408, "the body was sent too slowly", headers={"connection": "close"}) from None


async def _received(receive: Receive, most: int) -> bytes:
    pieces: list[bytes] = []
    count = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "the client has disconnected")
        piece = message.get("body", b"")
        count += len(piece)
        if count > most:
            raise Refused(413, f"a body has at most {most} bytes", headers={"connection": "close"})
        pieces.append(piece)
        if not message.get("more_body"):
            return b"".join(pieces)


def read_query(route: Route, given: list[tuple[str, str]]) -> dict[str, object]:
    """The query; no name twice, and no unknown one."""
    found: dict[str, object] = {}
    for name, text in given:
        shape = route.query.get(name)
        if shape is None or name in found:
            raise Refused(400, f"{ascii(name[:60])[1:-1]}: unknown, or given twice")
        found[name] = from_query(text, shape)
        problem = told(found[name], shape)
        if problem:
            raise Refused(400, f"{name}: {problem}")
    missing = [name for name in route.needs if name not in found]
    if missing:
        raise Refused(400, f"{', '.join(missing)}: missing")
    return found


def last_event(headers: Mapping[str, str]) -> int:
    text = headers.get("last-event-id", "") or "0"
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise Refused(400, "Last-Event-ID must be the number of an event")
    return int(text)


def key_of(route: Route, headers: Mapping[str, str]) -> str:
    key = headers.get("idempotency-key", "") if route.keyed else ""
    if len(key) > _MAX_KEY_CHARS:
        raise Refused(400, f"an Idempotency-Key must have at most {_MAX_KEY_CHARS} characters")
    return key
