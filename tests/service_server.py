"""A service for tests, in a thread of this process or as a command, and requests as bare as a test wants them."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ringfence
from ringfence.model import state_folder
from ringfence.model.own import private_place
from ringfence.model.policy import SandboxPolicy
from ringfence.service.server import bound, server_of
from ringfence.service.service import Service
from ringfence.service.settings import NamedPolicy, Settings
from ringfence.service.tokens import SCOPES, digest_of
from tests.patience import PATIENCE_S, eventually

ALL = ", ".join(SCOPES)
_STATES: set[str] = set()
"""Of all services that this process has had."""
QUICK = SandboxPolicy(isolation="strict", wall_time_s=60, mem_bytes=128 << 20)


def settings(folder: Path, **changes: Any) -> Settings:
    """Small ones: one policy, one sandbox that stands by."""
    given: dict[str, Any] = {"port": 0, "state": str(folder / "state"), "spare_bytes": 1,
                             "policies": {"default": NamedPolicy(name="default", policy=QUICK, warm=1)}}  # fmt: skip
    return Settings(**{**given, **changes})


def token_file(folder: Path, *rows: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """The file, and each token by its name."""
    tokens, lines = {}, ["tokens:"]
    for row in rows:
        token = tokens[row["name"]] = f"rf_{os.urandom(16).hex()}"
        values = {"scopes": [*SCOPES], **row, "sha256": digest_of(token).hex()}
        if row.get("scopes") is None:
            values["scopes"] = [scope for scope in SCOPES if scope != "operator"]
        lines.append("  - " + json.dumps(values))
    path = folder / "tokens.yaml"
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    return str(path), tokens


class Here:
    """A service in this process."""

    def __init__(self, service: Service, port: int, loop: asyncio.AbstractEventLoop) -> None:
        self.service, self.port, self.loop = service, port, loop
        self.address = f"http://127.0.0.1:{port}"


@contextmanager
def running(given: Settings) -> Iterator[Here]:
    link, got = bound(given)
    _STATES.add(got.state)
    service = Service(got)
    server = server_of(service)
    loop = asyncio.new_event_loop()
    failed: list[BaseException] = []

    def lead() -> None:
        try:
            loop.run_until_complete(server.serve(sockets=[link]))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=lead, name="service of a test", daemon=True)
    thread.start()
    try:
        eventually(lambda: server.started or failed or not thread.is_alive())
        assert server.started, failed
        yield Here(service, got.port, loop)
    finally:
        loop.call_soon_threadsafe(server._begin_end)
        thread.join(2 * PATIENCE_S)
        assert not thread.is_alive(), "the service does not end"
        loop.close()


@contextmanager
def command(folder: Path, *words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """``ringfence serve`` as a process of its own: (address, process)."""
    log = (folder / "service.log").open("a")
    line = [sys.executable, "-m", "ringfence", "serve", "--port", "0", "--state", str(folder / "state"), *words]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip().rstrip("/")
        assert address, (folder / "service.log").read_text()
        port = int(address.rpartition(":")[2])
        eventually(lambda: process.poll() is not None or _is_up(port))
        yield address, process
    finally:
        process.terminate()
        process.wait(2 * PATIENCE_S)
        log.close()


def _is_up(port: int) -> bool:
    try:
        return ask(port, "GET", "/healthz")[0] == 200
    except OSError:
        return False


def ask(
    port: int, method: str, path: str, body: object = None, *, token: str = "", headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], Any]:
    """One request on a connection of its own: (status, headers, JSON or bytes)."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=2 * PATIENCE_S)
    given = {"authorization": f"Bearer {token}"} if token else {}
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    if body is not None:
        given["content-type"] = "application/octet-stream" if isinstance(body, bytes) else "application/json"
    try:
        link.request(method, path, data, {**given, **(headers or {})})
        answer = link.getresponse()
        content = answer.read()
    finally:
        link.close()
    told = {name.lower(): value for name, value in answer.getheaders()}
    is_json = told.get("content-type", "").startswith("application/json")
    found = json.loads(content) if is_json and content else content
    refuse_host_paths(answer.status, found)
    return answer.status, told, found


def refuse_host_paths(status: int, answer: object) -> None:
    """Whatever a test provokes: no error that a client is told names what is the service's own on its host."""
    failed = answer.get("error") if isinstance(answer, dict) else None
    said = json.dumps(failed) if failed else str(answer) if status >= 400 else ""
    own = {*_STATES, sys.prefix, os.path.dirname(ringfence.__file__), state_folder.state_folder(), private_place.path()}
    named = sorted(path for path in own if path in said)
    assert not named, f"{status}: {said} names {named}"
