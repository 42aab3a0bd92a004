"""The page at ``/``: static files of this directory, read once, and nothing from anywhere else."""

from __future__ import annotations

import hashlib
import pkgutil
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Path

from ringfence.service import guard
from ringfence.service.answer import Refused
from ringfence.service.settings import Settings

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page/style.css": ("style.css", "text/css; charset=utf-8"),
    **{f"/page/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8")
       for name in ("main", "stream", "parts", "views", "graph")},
}  # fmt: skip


def page_routes(settings: Settings) -> list[Path]:
    return [Path(path, _file(settings, *each), methods=["GET"]) for path, each in FILES.items()]


def _file(settings: Settings, name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    data = pkgutil.get_data(__name__, name)
    assert data is not None, name
    etag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    headers = {**guard.SECURITY_HEADERS, "etag": etag, "cache-control": "no-cache"}

    async def answer(request: Request) -> Response:
        given = {name: value for name, value in request.headers.items() if name != "sec-fetch-site"}
        try:
            guard.refuse_foreign(settings, given)
        except Refused as error:
            return Response(str(error), status_code=error.status, headers=dict(guard.SECURITY_HEADERS))
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(data, headers=headers, media_type=kind)

    return answer
