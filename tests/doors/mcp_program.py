"""Talks to ``ringfence mcp`` by the official client, and prints what it saw as JSON."""

from __future__ import annotations

import json
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import mcp_types as types
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

LONG_S = 600


@asynccontextmanager
async def server(*flags, mode="auto", answer=None):
    args = ["-m", "ringfence", "mcp", "--wall", "60", *flags]
    parameters = StdioServerParameters(command=sys.executable, args=args, env=dict(os.environ))
    with anyio.fail_after(LONG_S):
        async with Client(stdio_client(parameters), mode=mode, elicitation_callback=answer) as client:
            yield client


async def call(client, name, /, **arguments):
    result = await client.call_tool(name, arguments)
    return {"error": result.is_error, "text": result.content[0].text}


async def tools(workspace):
    """Every tool once, in a session of one kind."""
    (workspace / "a.txt").write_text("one\n")
    (workspace / "secret").write_text("s3cret\n")
    asked = []

    async def answer(_, parameters):
        asked.append(parameters.message)
        return types.ElicitResult(action="accept", content={"commit": True})

    told = {}
    flags = ("--workspace", str(workspace), "--hidden", str(workspace / "secret"))
    async with server(*flags, mode="legacy", answer=answer) as client:
        told["names"] = [tool.name for tool in (await client.list_tools()).tools]
        told["command"] = await call(client, "run_command", command="cat a.txt; echo two >> a.txt; exit 3")
        told["hidden"] = await call(client, "run_command", command="cat secret")
        told["first"] = await call(client, "run_python", code="x = 20\nprint('hi')\nx + 1")
        told["second"] = await call(client, "run_python", code="x * 2 + 2")
        told["reset"] = await call(client, "run_python", code="x", reset=True)
        told["wrote"] = await call(client, "write_file", path="new/b.txt", content="hellö\n")
        told["made"] = await call(client, "run_command", command="mkdir -p new && echo ok")
        told["wrote"] = await call(client, "write_file", path="new/b.txt", content="hellö\n")
        told["read"] = await call(client, "read_file", path="new/b.txt")
        told["listed"] = await call(client, "list_files")
        told["diff"] = await call(client, "diff", path="a.txt")
        told["checkpoint"] = await call(client, "checkpoint", name="good")
        await call(client, "run_command", command="rm -r a.txt new")
        told["rollback"] = await call(client, "rollback")
        told["after"] = await call(client, "list_files")
        long = await call(client, "run_command", command="seq 20000")
        told["long"] = long
        told["on"] = await call(client, "read_output", name="out1", offset=100_000)
        told["outside"] = await call(client, "diff", path="../../etc/passwd")
        told["commit"] = await call(client, "commit")
    told["asked"] = asked
    told["file"] = (workspace / "a.txt").read_text()
    return told


async def limits(workspace):
    """What a model asks for beyond the policy, and the same where the operator allows it."""
    told = {}
    connect = "import socket\nsocket.create_connection(('127.0.0.1', %d), 5).close()\nprint('reached')"
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        for name, flags in (("closed", ()), ("open", ("--network", "host"))):
            async with server("--wall", "8", *flags) as client:
                told[name] = await call(client, "run_python", code=connect % port)
                told[f"{name} asked"] = await call(client, "run_python", code=connect % port, network="host",
                                                   policy={"network": "host"}, isolation="none")  # fmt: skip
                if name == "closed":
                    told["texts"], told["short text"] = await texts_as_numbers(client)
                    told["time"] = await call(client, "run_command", command="sleep 500", timeout_s=10_000)
                    told["commit"] = await call(client, "commit")
    return told


async def texts_as_numbers(client):
    """Each argument of a tool that takes no text, with one that is a lot of JSON; and with a number as a short one."""
    told = {}
    for tool in (await client.list_tools()).tools:
        kinds = tool.input_schema["properties"].items()
        texts = {name: "x" for name, kind in kinds if kind.get("type") == "string"}
        for name in [name for name, kind in kinds if kind.get("type") != "string"]:
            long = await call(client, tool.name, **texts, **{name: json.dumps([[]] * 1000)})
            told[f"{tool.name} {name}"] = long["text"]
    await call(client, "write_file", path="text", content="abcdef")
    return told, await call(client, "read_file", path="text", offset="4")


async def commits(workspace):
    """An operator declines; an application can't ask; changes are slipped in while the operator thinks."""
    told = {}
    file = workspace / "a.txt"

    async def reads_all(_, parameters):
        """With the command that the question names, while the server waits for the answer."""
        words = parameters.message.splitlines()[1].rpartition(": ")[2].split()
        command = [sys.executable, "-m", *words]
        told["read"] = [words[:2], (await anyio.run_process(command, check=False)).stdout.decode(), parameters.message]
        return types.ElicitResult(action="decline")

    async with server("--workspace", str(workspace), answer=reads_all) as client:
        await call(client, "run_command", command="seq 9000 > long")
        await call(client, "commit")

    async def declines(*_):
        return types.ElicitResult(action="decline")

    async def says_no(*_):
        return types.ElicitResult(action="accept", content={"commit": False})

    flags = ("--workspace", str(workspace))
    never, always = ("--commit", "never"), ("--commit", "always")
    rows = (("declined", declines, ()), ("no", says_no, ()), ("mute", None, ()), ("never", declines, never),
            ("always", None, always))  # fmt: skip
    for name, answer, more in rows:
        file.write_text("one\n")
        async with server(*flags, *more, answer=answer) as client:
            await call(client, "write_file", path="a.txt", content=f"{name}\n")
            told[name] = [await call(client, "commit"), file.read_text()]
    for mode in ("legacy", "auto"):
        file.write_text("one\n")
        asked, held = [], []

        async def slips(_, parameters, asked=asked, held=held):
            asked.append(parameters.message)
            if len(asked) == 1:
                await call(held[0], "write_file", path="a.txt", content="evil\n")
                return types.ElicitResult(action="accept", content={"commit": True})
            return types.ElicitResult(action="decline")

        async with server(*flags, mode=mode, answer=slips) as client:
            held.append(client)
            await call(client, "write_file", path="a.txt", content="good\n")
            told[f"slipped {mode}"] = [await call(client, "commit"), file.read_text(), len(asked)]
    return told


async def cancelled(workspace):
    """Progress comes while a command runs; one that is given up ends, and so does a cell."""
    told, progress = {}, []
    async with server(mode="legacy") as client:
        heard = anyio.Event()

        async def hear(*said):
            progress.append(said)
            heard.set()

        async def long_command():
            await client.call_tool("run_command", {"command": "echo begun; sleep 987"}, progress_callback=hear)

        async with anyio.create_task_group() as group:
            group.start_soon(long_command)
            await heard.wait()
            told["running"] = await call(client, "run_command", command="pgrep -fc 'sleep [9]87'")
            group.cancel_scope.cancel()
        while True:
            left = await call(client, "run_command", command="pgrep -fc 'sleep [9]87'")
            if left["text"].splitlines()[1] == "0":
                break
        told["left"] = left
        told["progress"] = progress[-1]
        await call(client, "run_python", code="x = 5")
        with anyio.move_on_after(2):
            await call(client, "run_python", code="import time\nwhile True: time.sleep(1)")
        told["kept"] = await call(client, "run_python", code="x")
    return told


if __name__ == "__main__":
    workspace = Path(sys.argv[2])
    print(json.dumps(anyio.run(globals()[sys.argv[1]], workspace)))
