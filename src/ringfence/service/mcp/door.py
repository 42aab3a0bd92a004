"""``/mcp``: the Model Context Protocol over streamable HTTP, behind the same guard, tokens and quotas as the rest.

The framework speaks the protocol in a session; this module decides who may open one, on what, and how often it may
call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers, QueryParams
from starlette.responses import Response

from ringfence.errors import UnavailableError, hint_for_extra
from ringfence.service import guard, shapes
from ringfence.service.answer import KNOWN, Refused, not_found
from ringfence.service.bodies.decoding import decoded
from ringfence.service.json_text import json_text
from ringfence.service.mcp.sessions import McpSession, McpSessions
from ringfence.service.routes import Route
from ringfence.service.run_requests import counted_stream, refuse_stream
from ringfence.service.service import Service
from ringfence.service.tokens import Tenant

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_NAMED = {"type": "string", "maxLength": 64}
ROUTE = Route(method="POST", path="/mcp", handler="mcp", summary="Tools for models", scope="box",
              body=shapes.ANY_OBJECT, values=10_000, query={"policy": _NAMED, "workspace": _NAMED})  # fmt: skip
_METHODS = ("GET", "POST", "DELETE")
_SESSION, _VERSION = "mcp-session-id", "mcp-protocol-version"
_CALL, _BEGIN = "tools/call", "initialize"
_MOST_BEGIN_BYTES = 64 << 10
"""Bytes of an initialize: a session keeps it as long as it lasts."""
_MOST_NAME_CHARS = 1000
"""Characters of an id or a progress token: the framework says them again with each message about the request."""
_COPIES = 4
"""Bytes of a body that the framework keeps while its call lasts."""
Refusal = Callable[[Exception], Response]
Log = Callable[[Route, int, float, str, Exception | None], None]


class McpDoor:
    """An ASGI application for one path."""

    def __init__(self, service: Service, refusal: Refusal, log: Log) -> None:
        """``refusal``: the answer to an error; ``log``: called for each request."""
        self._service, self._refusal, self._log = service, refusal, log
        self.sessions = McpSessions(service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, error, sent = time.perf_counter(), None, _Sent(send)
        tenant = Tenant(name="", scopes=frozenset())
        try:
            headers = Headers(scope=scope)
            guard.refuse_foreign(self._service.settings, headers)
            tenant = guard.tenant_for(self._service.tokens, ROUTE, headers)
            scope[KNOWN] = True
            with self._service.unfinished.counted(tenant.name):
                await self._answered(scope, receive, sent, tenant, headers)
        except Exception as wrong:
            error = wrong
            if sent.status:
                raise
            await self._refusal(wrong)(scope, receive, sent)
        finally:
            self._log(ROUTE, sent.status or 500, time.perf_counter() - began, tenant.name, error)

    async def _answered(self, scope: Scope, receive: Receive, send: _Sent, tenant: Tenant, headers: Headers) -> None:
        if scope["method"] not in _METHODS:
            raise Refused(405, "method not allowed", headers={"allow": ", ".join(_METHODS)})
        session_id = headers.get(_SESSION, "")
        session = self.sessions.find(tenant, session_id)
        if session_id and session is None:
            raise not_found("session")
        if scope["method"] != "DELETE":  # so that a client with too many sessions can end them
            refuse_stream(self._service, tenant)
        async with counted_stream(self._service, tenant):
            if scope["method"] == "POST":
                size = guard.body_size(self._service.settings, ROUTE, headers)
                with self._service.bodies.held(tenant.name, _COPIES * size):
                    data = await guard.read_body(self._service.settings, ROUTE, receive)
                    again = _Again(scope, await decoded(data, ROUTE), receive)
                    await self._posted(again, send, tenant, session)
                return
            if session is None:
                raise Refused(400, "the header Mcp-Session-Id is missing", hint="start a session with initialize")
            await session.manager.handle_request(scope, receive, send)
        if scope["method"] == "DELETE" and send.status < 400:
            await self.sessions.end(session)

    async def _posted(self, again: _Again, send: _Sent, tenant: Tenant, session: McpSession | None) -> None:
        refusal = _http().without_session(Headers(scope=again.scope).get(_VERSION), again.request_id)
        if refusal is not None:
            await Response(json_text(refusal), 400, media_type="application/json")(again.scope, again.receive, send)
            return
        if again.method == _BEGIN and again.size > _MOST_BEGIN_BYTES:
            raise Refused(413, f"{_BEGIN} has at most {_MOST_BEGIN_BYTES} bytes")
        if any(isinstance(name, str) and len(name) > _MOST_NAME_CHARS for name in again.names):
            raise Refused(413, f"the id of a request and its progress token have at most {_MOST_NAME_CHARS} characters")
        if session is None:
            await self._begun(again, send, tenant)
            return
        self._service.refuse_if_draining()
        if again.method == _CALL:
            self._service.admission.count_run(tenant)
        with session.unanswered(again.asks) as send.on_end:
            async with self.sessions.used(session) as left:
                again.on_gone = left
                await session.manager.handle_request(again.scope, again.receive, send)

    async def _begun(self, again: _Again, send: _Sent, tenant: Tenant) -> None:
        """Only an initialize makes a box, which is removed again if no session begins."""
        if again.method != _BEGIN:
            raise Refused(400, "the header Mcp-Session-Id is missing", hint="start a session with initialize")
        self._service.admission.count_run(tenant)
        asked = guard.read_query(ROUTE, QueryParams(again.scope["query_string"]).multi_items())
        session = await self.sessions.opened(tenant, asked)
        try:
            with session.unanswered(again.asks) as send.on_end:
                async with self.sessions.used(session):
                    send.on_head = lambda head: self._name(session, head)
                    await session.manager.handle_request(again.scope, again.receive, send)
        finally:
            if not session.id:
                await self.sessions.end(session)

    def _name(self, session: McpSession, head: Headers) -> None:
        """Register the id before its client gets it: the client may use it at once."""
        if head.get(_SESSION):
            self.sessions.named(session, head[_SESSION])


class _Sent:
    """Passes messages on, adds the headers of all our answers, and remembers what was sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self.on_head: Callable[[Headers], None] = lambda head: None
        self.on_end: Callable[[], None] = lambda: None

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            head = Headers(raw=list(message.get("headers", ())))
            if self.status < 400:
                self.on_head(head)
            ours = {name: value for name, value in guard.SECURITY_HEADERS.items() if name not in head}
            if head.get("content-type", "").startswith("text/event-stream"):
                ours["x-accel-buffering"] = "no"
            more = [(name.encode(), value.encode()) for name, value in ours.items() if name not in head]
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        elif not message.get("more_body"):
            self.on_end()
        await self._send(message)


class _Again:
    """A request whose body was read and checked, for a second reader: what was checked is what is read.

    It does not pass on that the client is gone: the framework would end the answer but let the call go on with its
    body, and nobody would count either. So the request lasts as long as its call.
    """

    def __init__(self, scope: Scope, message: dict[str, Any], receive: Receive) -> None:
        self.method, self.request_id = message.get("method"), message.get("id")
        self.asks = self.request_id if "method" in message else None
        """An answer to a question has the id of the question, which the server numbers by itself."""
        self.names = self.request_id, _within(_within(message.get("params"), "_meta"), "progressToken")
        self._data: bytes | None = json_text(message).encode("utf-8", "replace")
        self.size = len(self._data)
        given = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        self.scope = {**scope, "headers": [*given, (b"content-length", str(self.size).encode())]}
        self._receive = receive
        self.on_gone: Callable[[], None] = lambda: None

    async def receive(self) -> MutableMapping[str, Any]:
        if self._data is not None:
            data, self._data = self._data, None
            return {"type": "http.request", "body": data, "more_body": False}
        await self._receive()
        self.on_gone()
        never: asyncio.Future[MutableMapping[str, Any]] = asyncio.get_running_loop().create_future()
        return await never


def _within(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None


def _http() -> Any:
    try:
        from ringfence.integrations.mcp import http
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("ringfence"):
            raise
        raise UnavailableError(f"the module {error.name} is not installed", missing=("mcp",),
                               hint=f"for the operator: {hint_for_extra('mcp')}") from error  # fmt: skip
    return http
