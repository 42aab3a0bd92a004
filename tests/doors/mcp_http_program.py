"""A service with ``/mcp``, spoken to by the official client over streamable HTTP; prints what it saw as JSON."""

from __future__ import annotations

import json
import socket
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
import mcp_types as types
from anyio.to_thread import run_sync
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from tests.patience import PATIENCE_S, eventually
from tests.service_server import QUICK, ask, command, running, settings, token_file

from ringfence.service.settings import NamedPolicy, NamedWorkspace

LONG_S = 600


@asynccontextmanager
async def client_of(here, token="", query="", mode="auto", answer=None):
    headers = {"authorization": f"Bearer {token}"} if token else {}
    url = f"{here.address}/mcp{query}"
    with anyio.fail_after(LONG_S):
        async with (
            httpx2.AsyncClient(headers=headers, timeout=LONG_S) as http,
            Client(streamable_http_client(url, http_client=http), mode=mode, elicitation_callback=answer) as client,
        ):
            yield client


async def call(client, name, /, **arguments):
    result = await client.call_tool(name, arguments)
    return {"error": result.is_error, "text": result.content[0].text}


def _boxes(here, token):
    return ask(here.port, "GET", "/v1/boxes", token=token)[2]["boxes"]


async def boxes(here, token):
    return await run_sync(_boxes, here, token)


async def asked(here, *given, **more):
    return await run_sync(lambda: ask(here.port, *given, **more))


def service(folder, **changes):
    (folder / "project").mkdir()
    (folder / "project" / "a.txt").write_text("one\n")
    path, tokens = token_file(
        folder, {"name": "owner", "policies": ["default", "small"], "runs_per_minute": 1000},
        {"name": "other"}, {"name": "reader", "scopes": ["read", "run"]},
        {"name": "model", "scopes": ["read", "box"]},
        {"name": "few", "sandboxes": 1, "runs_per_minute": 4},
    )  # fmt: skip
    policies = {
        "default": NamedPolicy(name="default", policy=QUICK),
        "small": NamedPolicy(name="small", policy=QUICK.with_changes(wall_time_s=2)),
        "operators": NamedPolicy(name="operators", policy=QUICK),
    }
    workspaces = {"project": NamedWorkspace(name="project", path=str(folder / "project"), commit=True)}
    given = {"tokens": path, "policies": policies, "workspaces": workspaces, **changes}
    return settings(folder, **given), tokens


async def work(folder):
    """A session of each kind of client: tools, a commit that is agreed to, the end of it."""
    given, token = service(folder)
    told, questions = {}, []

    async def agrees(_, parameters):
        questions.append(parameters.message)
        return types.ElicitResult(action="accept", content={"commit": True})

    with running(given) as here:
        for mode in ("legacy", "auto"):
            async with client_of(here, token["owner"], mode=mode) as client:
                await call(client, "run_python", code="x = 20")
                python = await call(client, "run_python", code="x + 1")
                await call(client, "run_command", command="mkdir b && echo hi > b/c")
                open_now = await boxes(here, token["owner"])
                read = await asked(here, "GET", f"/v1/boxes/{open_now[0]['id']}/file?path=b/c", token=token["owner"])
                told[mode] = [python["text"], len(open_now), open_now[0]["policy"], read[2].decode()]
            told[f"{mode} left"] = len(await boxes(here, token["owner"]))
        query = "?workspace=project&policy=small"
        async with client_of(here, token["owner"], query, answer=agrees) as client:
            await call(client, "run_command", command="seq 9000 > a.txt")
            told["late"] = await call(client, "run_command", command="sleep 100", timeout_s=50)
            told["hidden"] = await call(client, "run_command", command="cat /etc/shadow")
            told["commit"] = await call(client, "commit")
        told["asked"], told["file"] = questions, (folder / "project" / "a.txt").read_text()[:8]
        async with client_of(here, token["model"], "?workspace=project", answer=agrees) as client:
            await call(client, "run_command", command="echo mine > b.txt")
            told["unscoped"] = await call(client, "commit")
        kept = await boxes(here, token["model"])
        told["kept"] = [[box["state"], box["workspace"]] for box in kept]
        diff = await asked(here, "GET", f"/v1/boxes/{kept[0]['id']}/diff", token=token["model"])
        told["kept diff"] = diff[2].decode()
        told["project"] = sorted(each.name for each in (folder / "project").iterdir())
    return told


def _initialize(version="2025-11-25"):
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}


def _call_of(number, name, **arguments):
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


_BOTH = {"accept": "application/json, text/event-stream"}


async def attacks(folder):
    """Who has no token, no scope, another's session, another origin, too many sessions or calls."""
    given, token = service(folder)
    told = {}
    call_it = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "diff", "arguments": {}}}

    async def post(here, body, who="owner", path="/mcp", **headers):
        given = {**_BOTH, **{name.replace("_", "-"): value for name, value in headers.items()}}
        status, head, found = await asked(here, "POST", path, body, token=token.get(who, who), headers=given)
        return status, head.get("mcp-session-id", ""), found

    with running(given) as here:
        begin = _initialize()
        status, mine, _ = await post(here, begin)
        told["control"] = [status, bool(mine)]
        told["called"] = (await post(here, call_it, mcp_session_id=mine))[0]
        told["no token"] = (await post(here, begin, ""))[0]
        told["wrong token"] = (await post(here, begin, "rf_wrong"))[0]
        told["no scope"] = (await post(here, begin, "reader"))[0]
        told["another's"] = (await post(here, call_it, "other", mcp_session_id=mine))[0]
        told["another ends it"] = (await asked(here, "DELETE", "/mcp", token=token["other"],
                                               headers={**_BOTH, "mcp-session-id": mine}))[0]
        told["another listens"] = (await asked(here, "GET", "/mcp", token=token["other"],
                                               headers={**_BOTH, "mcp-session-id": mine}))[0]
        told["guessed"] = (await post(here, call_it, mcp_session_id="0" * 32))[0]
        told["still there"] = (await post(here, call_it, mcp_session_id=mine))[0]
        told["origin"] = (await post(here, begin, origin="http://evil.example"))[0]
        told["host"] = (await post(here, begin, host="evil.example"))[0]
        told["own origin"] = (await post(here, call_it, mcp_session_id=mine, origin=here.address))[0]
        told["policy"] = (await post(here, begin, path="/mcp?policy=operators"))[0]
        told["workspace"] = (await post(here, begin, path="/mcp?workspace=nowhere"))[0]
        told["query"] = (await post(here, begin, path="/mcp?root=/"))[0]
        told["no initialize"] = (await post(here, call_it))[0]
        told["twice"] = (await asked(here, "POST", "/mcp", b'{"method": "initialize", "method": "tools/call"}',
                                     token=token["owner"], headers={**_BOTH, "content-type": "application/json"}))[0]
        told["batch"] = (await asked(here, "POST", "/mcp", [begin, begin], token=token["owner"], headers=_BOTH))[0]
        told["bad initialize"] = (await post(here, {**begin, "params": 3}))[0]
        many = {**call_it, "params": {**call_it["params"], "_meta": {"many": [[]] * 10_000}}}
        told["many values"] = (await post(here, many, mcp_session_id=mine))[0]
        told["long initialize"] = (await post(here, {**begin, "_": "x" * (64 << 10)}))[0]
        told["long again"] = (await post(here, {**begin, "_": "x" * (64 << 10)}, mcp_session_id=mine))[0]
        told["long text"] = (await post(here, _call_of(3, "write_file", path="a", content="[]{}," * 100_000),
                                        mcp_session_id=mine))[0]  # fmt: skip
        for size in (1000, 1001):
            told[f"id {size}"] = (await post(here, {**call_it, "id": "x" * size}, mcp_session_id=mine))[0]
            token_of = {**call_it["params"], "_meta": {"progressToken": "x" * size}}
            told[f"token {size}"] = (await post(here, {**call_it, "params": token_of}, mcp_session_id=mine))[0]
        told["empty version"] = (await post(here, begin, mcp_protocol_version=""))[0]
        told["put"] = (await asked(here, "PUT", "/mcp", b"", token=token["owner"]))[0]
        told["boxes"] = len(await boxes(here, token["owner"]))
        status, few, _ = await post(here, begin, "few")
        told["few"] = [status, *[(await post(here, call_it, "few", mcp_session_id=few))[0] for _ in range(4)]]
        told["ended"] = (await asked(here, "DELETE", "/mcp", token=token["owner"],
                                     headers={**_BOTH, "mcp-session-id": mine}))[0]
        told["after the end"] = (await post(here, call_it, mcp_session_id=mine))[0]
        told["boxes after"] = len(await boxes(here, token["owner"]))
    return told


def _left(here, token, session, message):
    """Send a request, hear the head of its answer, and go away: its status."""
    data = json.dumps(message).encode()
    head = (f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{here.port}\r\nAuthorization: Bearer {token}\r\n"
            "Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n"
            f"Mcp-Session-Id: {session}\r\nContent-Length: {len(data)}\r\n\r\n")  # fmt: skip
    with socket.create_connection(("127.0.0.1", here.port), timeout=4 * PATIENCE_S) as link:
        link.sendall(head.encode() + data)
        return int(link.recv(100).split()[1])


async def gone(folder):
    """Clients that go away in mid-call: what they have left behind is theirs as long as it lasts."""
    given, token = service(folder, connections=80, idle_s=600)
    told, owner = {}, token["owner"]

    def attack(here):
        streams, held = here.service.streams, here.service.bodies._held
        _, head, _ = ask(here.port, "POST", "/mcp", _initialize(), token=owner, headers=_BOTH)
        session = head["mcp-session-id"]
        eventually(lambda: not streams.get("owner"))
        told["short"] = _left(here, owner, session, _call_of(2, "list_files"))
        eventually(lambda: not streams["owner"] and not held)
        told["left"] = [_left(here, owner, session, _call_of(3 + each, "run_command", command="sleep 1000"))
                        for each in range(16)]  # fmt: skip
        found = next(iter(here.service.boxes._known.values()))
        eventually(lambda: found.visits == 0)  # who is gone does not keep it from being idle
        told["streams"], told["bodies"] = streams["owner"], held["owner"] > 0
        waiting = [_left(here, owner, session, _call_of(50 + each, "write_file", path="a", content="x" * (8 << 20)))
                   for each in range(12)]  # fmt: skip
        told["waiting"] = sorted(set(waiting))
        told["bytes"] = held["owner"]
        told["many"] = [_left(here, owner, session, _call_of(100 + each, "list_files")) for each in range(40)][-1]
        told["other"] = ask(here.port, "POST", "/mcp", _initialize(), token=token["other"], headers=_BOTH)[0]
        ending = {**_BOTH, "mcp-session-id": session}
        told["ended"] = ask(here.port, "DELETE", "/mcp", token=owner, headers=ending)[0]
        eventually(lambda: not held.get("owner") and not streams["owner"], 4 * PATIENCE_S)

    with running(given) as here:
        await run_sync(attack, here)
    return told


async def same_id(folder):
    """Requests with the id of one that has no answer yet, from clients that go away: none outlives its session."""
    given, token = service(folder, idle_s=600)
    told, owner = {}, token["owner"]

    def attack(here):
        streams, unfinished = here.service.streams, here.service.unfinished.now
        _, head, _ = ask(here.port, "POST", "/mcp", _initialize(), token=owner, headers=_BOTH)
        session = head["mcp-session-id"]
        more = {**_BOTH, "mcp-session-id": session}
        eventually(lambda: not streams.get("owner"))
        said = [_left(here, owner, session, _call_of(number, "run_command", command="sleep 1000"))
                for number in (7, 8, 7, "7", 8)]  # fmt: skip
        told["first"], told["again"] = said[:2], said[2:]
        told["answer"] = ask(here.port, "POST", "/mcp", {"jsonrpc": "2.0", "id": 7, "result": {}}, token=owner,
                             headers=more)[0]  # fmt: skip
        eventually(lambda: streams["owner"] == 2)
        told["used again"] = [ask(here.port, "POST", "/mcp", _call_of(1, "list_files"), token=owner, headers=more)[0]
                              for _ in range(20)]  # fmt: skip
        told["ended"] = ask(here.port, "DELETE", "/mcp", token=owner, headers=more)[0]
        eventually(lambda: not streams["owner"] and not unfinished.get("owner"), 4 * PATIENCE_S)

    with running(given) as here:
        await run_sync(attack, here)
    return told


async def log(folder):
    """What a client can make the framework quote, in the log of a service that is a program of its own."""
    path, token = token_file(folder, {"name": "owner"})
    told, forged = {}, '\n{"event": "forged"}\n\x1b[2J\u202e'

    def attack(address):
        port, headers = int(address.rpartition(":")[2]), dict(_BOTH)
        _, head, _ = ask(port, "POST", "/mcp", _initialize(), token=token["owner"], headers=headers)
        headers["mcp-session-id"] = head["mcp-session-id"]
        names = forged, forged + "x" * (1 << 20)
        requests = [{"jsonrpc": "2.0", "id": 2 + place, "method": "prompts/get", "params": {"name": name}}
                    for place, name in enumerate(names)]  # fmt: skip
        requests.append({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": [forged]}})
        told["statuses"] = [ask(port, "POST", "/mcp", each, token=token["owner"], headers=headers)[0]
                            for each in requests]  # fmt: skip

    with command(folder, "--tokens", path) as (address, _):
        await run_sync(attack, address)
    told["log"] = (folder / "service.log").read_text()
    return told


async def idle(folder):
    """A session that nobody uses ends, though its client still listens; one that is used does not."""
    given, token = service(folder, idle_s=2)
    told = {}
    with running(given) as here:
        async with client_of(here, token["owner"]) as client:
            told["long"] = await call(client, "run_command", command="sleep 6; echo still here")
            await run_sync(lambda: eventually(lambda: not _boxes(here, token["owner"]), 4 * PATIENCE_S))
            try:
                await call(client, "run_command", command="true")
                told["after"] = "answered"
            except Exception as error:
                told["after"] = type(error).__name__
        await run_sync(lambda: eventually(lambda: not here.service.admission.running))
    return told


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    print(json.dumps(anyio.run(globals()[sys.argv[1]], folder)))
