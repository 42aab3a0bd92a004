"""An application of the Model Context Protocol: reads its file of servers, calls tools, and prints the answers as JSON.

``python -m tests.examples.mcp_application SERVERS.json '[["run_command", {"command": "true"}]]'``
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from tests.doors.mcp_program import LONG_S, call


@asynccontextmanager
async def connection(command="", args=(), env=None, type="stdio", url="", headers=None):
    """A server as such a file describes it."""
    if type == "stdio":
        yield stdio_client(StdioServerParameters(command=command, args=list(args), env={**os.environ, **(env or {})}))
    else:
        async with httpx2.AsyncClient(headers=headers, timeout=LONG_S) as http:
            yield streamable_http_client(url, http_client=http)


async def session(server, calls):
    with anyio.fail_after(LONG_S):
        async with connection(**server) as link, Client(link) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            return {"tools": names, "answers": [(await call(client, name, **given))["text"] for name, given in calls]}


if __name__ == "__main__":
    (one,) = json.loads(Path(sys.argv[1]).read_text())["mcpServers"].values()
    print(json.dumps(anyio.run(session, one, json.loads(sys.argv[2]))))
