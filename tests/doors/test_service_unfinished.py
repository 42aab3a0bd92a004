"""Requests of one tenant that do not end: bodies that do not come, and requests that go on without their client."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S, eventually
from tests.service_server import QUICK, Here, ask, command, running, settings, token_file

from ringfence.service.settings import NamedPolicy

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]
_CONNECTIONS = 8
_MOST = 6
"""Of one tenant."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Here, dict[str, str]]]:
    folder = tmp_path_factory.mktemp("unfinished")
    path, tokens = token_file(folder, {"name": "greedy", "sandboxes": 1}, {"name": "other"})
    policies = {"default": NamedPolicy(name="default", policy=QUICK)}
    with running(settings(folder, tokens=path, policies=policies, sandboxes=3, connections=_CONNECTIONS,
                          request_s=10 * PATIENCE_S)) as found:  # fmt: skip
        yield found, tokens


def _begun(here: Here, token: str, line: str, size: int) -> socket.socket:
    """A request without its body, if it has one."""
    link = socket.create_connection(("127.0.0.1", here.port), timeout=PATIENCE_S)
    link.sendall((f"{line} HTTP/1.1\r\nHost: 127.0.0.1:{here.port}\r\nAuthorization: Bearer {token}\r\n"
                  f"Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n").encode())  # fmt: skip
    return link


def _now(here: Here) -> int:
    return here.service.unfinished.now.get("greedy", 0)


@contextmanager
def _many(here: Here, token: str, line: str, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(_begun(here, token, line, 10)) for _ in range(count)]


@pytest.mark.parametrize("line", ["POST /v1/runs", "POST /v1/boxes"])
def test_bodies_that_do_not_come_leave_connections_to_others(shared: tuple[Here, dict[str, str]], line: str) -> None:
    here, tokens = shared
    with _many(here, tokens["greedy"], line, _MOST):
        eventually(lambda: _now(here) == _MOST)
        for _ in range(_CONNECTIONS):  # on connections that stay: whoever was refused is idle, and makes room
            status, told, answer = ask(here.port, "GET", "/v1/status", token=tokens["greedy"])
            assert (status, told["retry-after"]) == (429, "1") and "unfinished requests" in answer["error"]["message"]
        refused = [_begun(here, tokens["greedy"], line, 10) for _ in range(_CONNECTIONS)]
        assert ask(here.port, "GET", "/v1/status", token=tokens["other"])[0] == 200
        for link in refused:
            link.close()
    eventually(lambda: not here.service.unfinished.now)
    assert ask(here.port, "GET", "/v1/status", token=tokens["greedy"])[0] == 200  # the control


def test_over_mcp_they_leave_connections_to_others_too(shared: tuple[Here, dict[str, str]]) -> None:
    here, tokens = shared
    most = _CONNECTIONS // 2  # whatever comes over MCP counts as a stream as well
    with _many(here, tokens["greedy"], "POST /mcp", most), _many(here, tokens["greedy"], "POST /v1/runs", _MOST - most):
        eventually(lambda: _now(here) == _MOST)
        for path in ("/mcp", "/v1/status"):
            assert ask(here.port, "GET", path, token=tokens["greedy"])[0] == 429, path
        assert ask(here.port, "DELETE", "/mcp", token=tokens["greedy"])[0] == 429
        assert ask(here.port, "GET", "/v1/status", token=tokens["other"])[0] == 200
    eventually(lambda: not here.service.unfinished.now)
    assert ask(here.port, "DELETE", "/mcp", token=tokens["greedy"])[0] == 400  # the control: it is heard


def test_who_waits_for_a_box_that_waits_leaves_room_for_others(shared: tuple[Here, dict[str, str]]) -> None:
    """Also who hangs up: the request goes on."""
    here, tokens = shared
    greedy, other = tokens["greedy"], tokens["other"]
    box = ask(here.port, "POST", "/v1/boxes", {}, token=greedy)[2]["id"]
    assert ask(here.port, "POST", f"/v1/boxes/{box}/park", {}, token=greedy)[0] == 200
    run = ask(here.port, "POST", "/v1/runs", {"argv": ["sleep", "600"], "wait": False}, token=greedy)[2]["id"]
    eventually(lambda: not here.service.unfinished.now)
    for place in range(_MOST):
        _begun(here, greedy, f"GET /v1/boxes/{box}/files", 0).close()
        eventually(lambda wanted=place + 1: _now(here) == wanted)  # type: ignore[misc]
    for _ in range(_CONNECTIONS):
        assert ask(here.port, "GET", f"/v1/boxes/{box}/files", token=greedy)[0] == 429
    assert ask(here.port, "GET", "/v1/status", token=other)[0] == 200
    here.loop.call_soon_threadsafe(lambda: [here.service.runs.kill(each) for each in here.service.runs.living()])
    eventually(lambda: not here.service.unfinished.now)
    assert ask(here.port, "GET", f"/v1/boxes/{box}/files", token=greedy)[0] == 200  # the control
    assert ask(here.port, "GET", f"/v1/runs/{run}", token=greedy)[2]["state"] == "ended"
    assert ask(here.port, "DELETE", f"/v1/boxes/{box}", token=greedy)[0] == 204


def test_who_waits_for_runs_can_still_end_them(shared: tuple[Here, dict[str, str]]) -> None:
    here, tokens = shared
    greedy = tokens["greedy"]
    run = ask(here.port, "POST", "/v1/runs", {"argv": ["sleep", "600"], "wait": False}, token=greedy)[2]["id"]
    with _many(here, greedy, f"GET /v1/runs/{run}/events", _CONNECTIONS // 2):
        eventually(lambda: here.service.streams["greedy"] == _CONNECTIONS // 2 == _now(here))
        assert ask(here.port, "GET", f"/v1/runs/{run}?wait=true", token=greedy)[0] == 429  # the control
        assert ask(here.port, "DELETE", f"/v1/runs/{run}", token=greedy)[0] == 202
    eventually(lambda: not here.service.unfinished.now)


@pytest.mark.parametrize("parked", [False, True], ids=["a new box", "a run in a parked one"])
def test_who_waits_for_a_box_when_the_service_ends_hears_so(tmp_path: Path, parked: bool) -> None:
    config = tmp_path / "service.yaml"
    config.write_text("sandboxes: 1\ndrain_s: 1\nspare_bytes: 1\npolicies: {default: {mem_bytes: 128M}}\n")
    with command(tmp_path, "--config", str(config)) as (address, process), ThreadPoolExecutor(1) as beside:
        port = int(address.rpartition(":")[2])
        line, body = "/v1/boxes", {}
        if parked:
            first = ask(port, "POST", "/v1/boxes", {})[2]["id"]
            assert ask(port, "POST", f"/v1/boxes/{first}/park", {})[0] == 200
            line, body = f"/v1/boxes/{first}/runs", {"argv": ["true"]}
        assert ask(port, "POST", "/v1/boxes", {})[0] == 201
        waiting = beside.submit(ask, port, "POST", line, body)
        eventually(lambda: ask(port, "GET", "/v1/status")[2]["queue"]["now"] == 1)
        process.terminate()
        status, headers, told = waiting.result(PATIENCE_S)
        assert (status, headers["retry-after"]) == (503, "5") and "is shutting down" in told["error"]["message"]
        assert process.wait(2 * PATIENCE_S) == 0
    assert "Traceback" not in (tmp_path / "service.log").read_text()
