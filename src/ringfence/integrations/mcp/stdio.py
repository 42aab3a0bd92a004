"""The protocol over standard input and output. A line that is no message gets an error as its answer, and the server
goes on; the framework would pass over it, and the client wait."""

from __future__ import annotations

import json
from typing import Any

import anyio
from mcp.server import MCPServer
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError
from pydantic import ValidationError

_NOT_JSON = "json_invalid"
_HALF = "a string has an unpaired surrogate (not valid Unicode); send valid Unicode"


def serve(server: MCPServer[Any]) -> None:
    """Until standard input ends."""
    anyio.run(_serve, server)


async def _serve(server: MCPServer[Any]) -> None:
    low = server._lowlevel_server  # by no public name does it take streams
    async with stdio_server() as (heard, said):
        await low.run(_Messages(heard, said), said, low.create_initialization_options())


class _Messages:
    """The stream of what was heard, without what is no message: that is answered here."""

    def __init__(self, heard: Any, said: Any) -> None:
        self._heard, self._said = heard, said

    @property
    def last_context(self) -> Any:
        return self._heard.last_context

    async def receive(self) -> Any:
        while True:
            item = await self._heard.receive()
            if not isinstance(item, Exception):
                return item
            answer = answer_to(item)
            if answer is not None:
                await self._said.send(SessionMessage(answer))

    async def aclose(self) -> None:
        await self._heard.aclose()

    def __aiter__(self) -> _Messages:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> _Messages:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def answer_to(problem: Exception) -> JSONRPCError | None:
    """What is said about a line that is no message; None: it is empty."""
    found: list[Any] = problem.errors(include_url=False) if isinstance(problem, ValidationError) else []
    line = next((each["input"] for each in found if each["type"] == _NOT_JSON), None)
    if line is not None and not str(line).strip():
        return None
    if line is None:
        whole = next((each["input"] for each in found if each["type"] == "missing" and len(each["loc"]) == 2), None)
        return _error(INVALID_REQUEST, "this is not a JSON-RPC 2.0 message", whole)
    try:
        return _error(INVALID_REQUEST, _HALF, json.loads(line))
    except (ValueError, RecursionError):
        return _error(PARSE_ERROR, found[0]["msg"], None)


def _error(code: int, problem: str, message: Any) -> JSONRPCError:
    return JSONRPCError(jsonrpc="2.0", id=_id_of(message), error=ErrorData(code=code, message=problem))


def _id_of(message: Any) -> str | int | None:
    """None: nobody waits for an answer, or under an id that can't be said."""
    asked = message.get("id") if isinstance(message, dict) and "method" in message else None
    if isinstance(asked, str):
        return asked if asked.isprintable() else None
    return asked if isinstance(asked, int) and not isinstance(asked, bool) else None
