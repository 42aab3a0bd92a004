"""The application: Starlette over the table of routes, with the guard before and the log behind each request."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route as Path
from starlette.types import Receive, Scope, Send

from ringfence.errors import (
    BusyError,
    ConflictError,
    ForeignError,
    LateAttemptError,
    SandboxError,
    UnavailableError,
    UsageError,
)
from ringfence.service import guard
from ringfence.service.admission import Full, Unread
from ringfence.service.answer import KNOWN, Answer, Ask, Refused
from ringfence.service.bodies.decoding import decoded
from ringfence.service.box_requests import BoxRequests
from ringfence.service.json_text import json_text
from ringfence.service.mcp.door import ROUTE as MCP
from ringfence.service.mcp.door import McpDoor
from ringfence.service.other_requests import OtherRequests
from ringfence.service.page import page_routes
from ringfence.service.routes import ROUTES, Route
from ringfence.service.run import QUEUED, Run
from ringfence.service.run_requests import RunRequests
from ringfence.service.service import LOG, Draining, Service, tell
from ringfence.service.tokens import Tenant

Handler = Callable[[Ask], Awaitable[Answer]]
Endpoint = Callable[[Request], Awaitable[Response]]
_PIECE_BYTES = 64 << 10
# One table from error to status; the first match counts.
STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (Full, 429), (Draining, 503), (BusyError, 409), (ConflictError, 409), (LateAttemptError, 409), (ForeignError, 409),
    (UsageError, 400), (UnavailableError, 503), (SandboxError, 422),
)  # fmt: skip


class Requests(RunRequests):
    """All handlers by name."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        boxes = BoxRequests(service, self)
        self._parts = (self, boxes, OtherRequests(service, self, boxes))

    def named(self, name: str) -> Handler:
        found: Handler = next(getattr(part, name) for part in self._parts if hasattr(part, name))
        return found


class Application:
    """Starlette, preceded by the routes with a fixed path: for a short run Starlette's layers take much of the time."""

    def __init__(
        self, inner: Starlette, endpoints: Mapping[tuple[str, str], Endpoint], refusal: Callable[[Exception], Response]
    ) -> None:
        self._inner, self._endpoints, self._refusal = inner, endpoints, refusal
        self.is_full: Callable[[], bool] = bool
        """Whether the server has more connections or requests than it may."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.is_full():
            await self._refusal(_too_many())(scope, receive, send)
            return
        found = self._endpoints.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if found is None:
            await self._inner(scope, receive, send)
            return
        answer = await found(Request(scope, receive))
        await answer(scope, receive, send)


def application(service: Service) -> Application:
    """For any ASGI server, which must run one process of it."""
    requests = Requests(service)
    door = McpDoor(service, lambda error: _refusal(service, error), functools.partial(_log, service))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await service.start()
        go_on(service, requests)
        door.sessions.start()
        try:
            yield
        finally:
            await door.sessions.stop()
            await service.stop()

    endpoints = {(route.method, route.path): _endpoint(service, route, requests.named(route.handler))
                 for route in ROUTES}  # fmt: skip
    paths = [Path(path, endpoint, methods=[method]) for (method, path), endpoint in endpoints.items()]
    app = Starlette(routes=[*paths, Path(MCP.path, door), *page_routes(service.settings)], lifespan=lifespan,
                    exception_handlers={HTTPException: _unrouted})  # fmt: skip
    app.router.redirect_slashes = False
    fixed = {key: each for key, each in endpoints.items() if "{" not in key[1]}
    return Application(app, fixed, functools.partial(_refusal, service))


def _too_many() -> Refused:
    return Refused(503, "the service has reached its limit of connections", hint="try again in a second",
                   headers={"retry-after": "1", "connection": "close"})  # fmt: skip


def go_on(service: Service, requests: RunRequests) -> None:
    """Continue with what an earlier process had promised but not begun."""
    for run_id, document in service.runs.left_over():
        tenant, spec = service.tokens.named(str(document.get("tenant"))), document["spec"]
        try:
            if "run" not in tenant.scopes:
                raise UsageError("its token may no longer run programs")
            if "box" in spec or "pool" in spec:
                raise UsageError("its box or pool was closed when the service ended")
            run: Run = requests.started(tenant, spec)
        except SandboxError as error:
            why = service.host_paths.without(str(error))
            service.runs.lose(run_id, document, f"it could not be started again: {why}")
            continue
        service.runs.rename(run, run_id, document)
        tell("run_resumed", run=run_id, state=QUEUED)


def _endpoint(service: Service, route: Route, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        began, tenant, error = time.perf_counter(), "", None
        try:
            asking = _asking(service, route, request)
            tenant = asking.name
            size = guard.body_size(service.settings, route, request.headers)
            with service.unfinished.counted(tenant), service.bodies.held(tenant, size):
                ask = await _ask(service, route, request, asking)
                if route.method == "POST" and any(route.answers.values()):
                    service.unread.refuse_if_full(tenant)  # not after the work: it would be asked for again
                made = _response(await handler(ask))
            if isinstance(made, InPieces):
                made.count(service.unread, tenant, at_most=route.method != "POST" or bool(ask.key))
        except ClientDisconnect:
            made = Response(status_code=400)
        except Exception as wrong:
            made = _refusal(service, wrong)
            error = wrong if made.status_code >= 500 else _without_frames(wrong)
        # In the next turn of the loop, when the answer is on its way: nobody should wait for the log.
        took_s = time.perf_counter() - began
        asyncio.get_running_loop().call_soon(_log, service, route, made.status_code, took_s, tenant, error)
        return made

    return answer


def _asking(service: Service, route: Route, request: Request) -> Tenant:
    guard.refuse_foreign(service.settings, request.headers)
    tenant = guard.tenant_for(service.tokens, route, request.headers)
    request.scope[KNOWN] = bool(route.scope)
    return tenant


async def _ask(service: Service, route: Route, request: Request, tenant: Tenant) -> Ask:
    headers = request.headers
    query = guard.read_query(route, request.query_params.multi_items())
    data = await guard.read_body(service.settings, route, request.receive)
    if route.counted:
        service.admission.count_run(tenant)  # what is refused from here on has been work too
    body = data if route.body is None else await decoded(data, route)
    return Ask(tenant=tenant, path=request.path_params, query=query, body=body, key=guard.key_of(route, headers),
               last_event=guard.last_event(headers))  # fmt: skip


class InPieces(Response):
    """A large answer: the next piece is made only once the connection has taken the last one. A client that does not
    read makes it stay, so it is counted from ``count`` until it is sent, or until the client is gone."""

    def __init__(self, whole: str | bytes, status: int, headers: dict[str, str], kind: str) -> None:
        """``whole``: a text has ASCII alone; it is not copied, and the answers about one run share it."""
        super().__init__(status_code=status, headers={**headers, "content-length": str(len(whole))}, media_type=kind)
        self._whole = whole
        self._give_back: Callable[[], object] = bool

    def count(self, unread: Unread, tenant: str, *, at_most: bool = True) -> None:
        """Refused if this tenant leaves too much unread; but not if the work can't be asked for again (``at_most``)."""
        size = len(self._whole)
        if at_most:
            unread.take(tenant, size)
        else:
            unread.add(tenant, size)
        self._give_back = functools.partial(unread.give_back, tenant, size)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for begin in range(0, len(self._whole), _PIECE_BYTES):
                piece = self._whole[begin : begin + _PIECE_BYTES]
                data = piece.encode("ascii") if isinstance(piece, str) else piece
                more = begin + len(piece) < len(self._whole)
                await send({"type": "http.response.body", "body": data, "more_body": more})
        finally:
            self._give_back()


def _made(whole: str | bytes, status: int, headers: dict[str, str], kind: str) -> Response:
    """In pieces where that is worth it."""
    if len(whole) <= _PIECE_BYTES or (isinstance(whole, str) and not whole.isascii()):
        whole = whole.encode("utf-8") if isinstance(whole, str) else whole
    if len(whole) <= _PIECE_BYTES:
        return Response(whole, status_code=status, headers=headers, media_type=kind)
    return InPieces(whole, status, headers, kind)


def _response(answer: Answer) -> Response:
    headers = {**guard.SECURITY_HEADERS, **answer.headers}
    if answer.events is not None:
        more = {"x-accel-buffering": "no"}
        return StreamingResponse(answer.events, headers={**headers, **more}, media_type="text/event-stream")
    if answer.data is not None:
        # A file out of a sandbox must never become a page of ours.
        kept = {"content-disposition": "attachment"} if answer.kind.startswith("application/") else {}
        return _made(answer.data, answer.status, {**headers, **kept}, answer.kind)
    if answer.status == 204:
        return Response(status_code=204, headers=headers)
    return json_response(answer.status, answer.json, headers)


def json_response(status: int, value: object, headers: dict[str, str]) -> Response:
    return _made(json_text(value), status, headers, "application/json")


def _refusal(service: Service, error: Exception) -> Response:
    headers: dict[str, str] = {**guard.SECURITY_HEADERS}
    if isinstance(error, Refused):
        headers |= error.headers
        status = error.status
    else:
        status = next((code for kind, code in STATUSES if isinstance(error, kind)), 500)
    if isinstance(error, Full):
        headers["retry-after"] = str(int(error.retry_after_s + 0.999))
        service.figures.add("ringfence_service_refused_total", error.reason_word)
    elif isinstance(error, Draining):
        headers["retry-after"] = "5"
    elif status in (401, 403, 413, 421):
        service.figures.add("ringfence_service_refused_total", str(status))
    return json_response(status, {"error": service.host_paths.error(error)}, headers)


def _without_frames(error: Exception) -> Exception:
    """What is told to a client is told in words. The frames have its body, and a circle with them would keep it until
    the next great collection of garbage, hundreds of requests later."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


async def _unrouted(_: Request, error: Exception) -> Response:
    """The answer for an unknown path or method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    words = {404: "there is no such address", 405: "method not allowed"}
    headers: dict[str, Any] = {**guard.SECURITY_HEADERS, **(getattr(error, "headers", None) or {})}
    return json_response(status, {"error": {"type": "Refused", "message": words.get(status, "refused")}}, headers)


def _log(service: Service, route: Route, status: int, seconds: float, tenant: str, error: Exception | None) -> None:
    service.figures.add("ringfence_service_requests_total", route.handler, str(status))
    service.figures.add("ringfence_service_request_seconds_total", route.handler, amount=seconds)
    if status >= 500 and not isinstance(error, SandboxError):
        told = {"event": "request_failed", "route": route.path}
        LOG.error("request_failed", exc_info=error, extra={"ringfence": told})
    level = logging.INFO if status < 400 else logging.WARNING
    if LOG.isEnabledFor(level):
        told = {"reason": str(error)[:300]} if error is not None else {}
        tell("request", level, route=route.handler, status=status, ms=round(seconds * 1000, 2), tenant=tenant, **told)
