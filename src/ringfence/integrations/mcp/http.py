"""The protocol over HTTP: what a server that has other doors too needs of the framework, by its public names."""

from __future__ import annotations

from typing import Any

from mcp.server import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS


def manager_of(server: MCPServer[Any], body_bytes: int) -> Any:
    """What answers the requests of the one session of this server. The caller decides who may speak, and how long a
    session lasts."""
    server.streamable_http_app(
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False), max_sessions=1,
        session_idle_timeout=None, max_request_body_size=body_bytes,
    )  # fmt: skip
    return server.session_manager


def without_session(version: str | None, request_id: object) -> dict[str, object] | None:
    """The refusal of a protocol version without sessions, which makes a client that knows both use the other; None:
    this version has sessions, as does a request that names no version."""
    if version is None or version in HANDSHAKE_PROTOCOL_VERSIONS:
        return None
    told = {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": version[:40]}
    message = "a sandbox belongs to a session, which this version lacks"
    error = {"code": UNSUPPORTED_PROTOCOL_VERSION, "message": message, "data": told}
    return {"jsonrpc": "2.0", "id": request_id if isinstance(request_id, str | int) else None, "error": error}
