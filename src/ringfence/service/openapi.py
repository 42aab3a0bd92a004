"""The OpenAPI document of the service, made of the table of routes."""

from __future__ import annotations

import re
from typing import Any

from ringfence import __version__
from ringfence.service import shapes
from ringfence.service.routes import EVENTS, OCTETS, ROUTES, Route

_REFUSALS = {
    400: "malformed", 401: "the token is missing or unknown", 403: "this token may not do that", 404: "not found",
    405: "method not allowed", 408: "sent too slowly", 409: "not possible in this state",
    410: "the result of a repeated request is no longer kept", 413: "too large", 415: "not JSON",
    422: "it could not be carried out", 429: "try again later (Retry-After)",
    503: "shutting down, too many connections (Retry-After), or not available on this host",
}  # fmt: skip


def document() -> dict[str, Any]:
    """OpenAPI 3.1, whose schemas are JSON Schema as they stand in ``shapes``."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "ringfence", "version": __version__, "description": "Run code that you do not trust."},
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": shapes.ERROR},
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": route.handler, "summary": route.summary, "parameters": [*_parameters(route)],
        "responses": _responses(route), "security": [{"token": []}] if route.scope else [],
    }  # fmt: skip
    if route.scope:
        made["description"] = f"Needs the scope `{route.scope}`."
    if route.body is not None or route.octets:
        kind, shape = (OCTETS, {}) if route.octets else ("application/json", dict(route.body or {}))
        made["requestBody"] = {"required": True, "content": {kind: {"schema": shape}}}
    return made


def _parameters(route: Route) -> list[dict[str, Any]]:
    names = re.findall(r"\{(\w+)\}", route.path)
    found = [{"name": name, "in": "path", "required": True, "schema": dict(shapes.ID)} for name in names]
    found += [{"name": name, "in": "query", "required": name in route.needs, "schema": dict(shape)}
              for name, shape in route.query.items()]  # fmt: skip
    if route.keyed:
        found.append({"name": "Idempotency-Key", "in": "header", "required": False,
                      "schema": {"type": "string", "maxLength": 100}})  # fmt: skip
    if EVENTS in route.answers.values():
        found.append({"name": "Last-Event-ID", "in": "header", "required": False,
                      "schema": {"type": "string", "pattern": "^[0-9]{1,18}$"}})  # fmt: skip
    return found


def _responses(route: Route) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for status, shape in route.answers.items():
        kind, schema = (shape, {}) if isinstance(shape, str) else ("application/json", dict(shape))
        made[str(status)] = {"description": route.summary} | ({"content": {kind: {"schema": schema}}} if kind else {})
    error = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    return made | {str(status): {"description": why, **error} for status, why in _REFUSALS.items()}
