"""Bodies of requests that are work for the service: they count, and nobody else waits for them."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.patience import eventually
from tests.service_server import Here, ask, running, settings, token_file

from ringfence.errors import UsageError
from ringfence.service import app, guard
from ringfence.service.mcp import door
from ringfence.service.mcp.sessions import McpSessions

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]
_WRONG: dict[str, object] = {
    "unknown": {"argv": ["true"], "nobody": 1}, "no-shape": {"argv": [1]}, "more-than-the-policy":
    {"argv": ["true"], "tighten": {"mem_bytes": "999G"}}, "two-kinds": {"argv": ["true"], "source": "1"},
}  # fmt: skip


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Here, dict[str, str]]]:
    folder = tmp_path_factory.mktemp("bodies")
    few = ({"name": name, "runs_per_minute": 2} for name in (*_WRONG, "keyed", "boxes", "pools", "sessions", "reads"))
    path, tokens = token_file(folder, {"name": "other"}, *few)
    with running(settings(folder, tokens=path)) as here:
        yield here, tokens


@pytest.mark.parametrize("name", _WRONG)
def test_a_refused_request_for_a_run_counts_before_its_body_is_decoded(
    limited: tuple[Here, dict[str, str]], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, tokens = limited
    seen: list[bytes] = []
    decoded = app.decoded

    async def watched(data: bytes, route: Any) -> Any:
        seen.append(data)
        return await decoded(data, route)

    monkeypatch.setattr(app, "decoded", watched)
    statuses = [ask(here.port, "POST", "/v1/runs", _WRONG[name], token=tokens[name])[0] for _ in range(4)]
    assert statuses == [400, 400, 429, 429] and len(seen) == 2
    assert ask(here.port, "POST", "/v1/runs", {"argv": ["true"]}, token=tokens["other"])[0] == 200  # the control


def test_a_repeated_key_and_refused_boxes_pools_and_sessions_count(limited: tuple[Here, dict[str, str]]) -> None:
    here, tokens = limited
    keyed = {"headers": {"idempotency-key": "once"}, "token": tokens["keyed"]}
    answers = [ask(here.port, "POST", "/v1/runs", {"argv": ["true"]}, **keyed) for _ in range(3)]  # type: ignore[arg-type]
    assert [status for status, _, _ in answers] == [200, 200, 429] and answers[0][2]["id"] == answers[1][2]["id"]
    for path in ("boxes", "pools"):
        found = [ask(here.port, "POST", f"/v1/{path}", {"policy": "none-such"}, token=tokens[path]) for _ in range(3)]
        assert [status for status, _, _ in found] == [400, 400, 429] and "retry-after" in found[2][1]
    reads = [ask(here.port, "GET", "/v1/runs", token=tokens["reads"])[0] for _ in range(5)]
    assert reads == [200] * 5


def test_a_begin_of_a_session_counts_though_it_is_refused(
    limited: tuple[Here, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The framework need not be installed: what is refused does not reach it."""

    async def opened(*_: object) -> None:
        raise UsageError("there is no such policy")

    monkeypatch.setattr(door, "_http", lambda: SimpleNamespace(without_session=lambda *_: None))
    monkeypatch.setattr(McpSessions, "opened", opened)
    here, tokens = limited
    begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
    statuses = [ask(here.port, "POST", door.ROUTE.path, begin, token=tokens["sessions"])[0] for _ in range(3)]
    assert statuses == [400, 400, 429]


def test_a_path_without_end_is_refused_by_name_and_length(limited: tuple[Here, dict[str, str]]) -> None:
    here, tokens = limited
    asked = {"argv": ["true"], "tighten": {"hidden_paths": ["/a" * 30_000]}}
    status, _, told = ask(here.port, "POST", "/v1/runs", asked, token=tokens["other"])
    assert (status, told["error"]["field"]) == (400, "hidden_paths")
    assert "at most 4,096" in told["error"]["message"] and len(json.dumps(told)) < 1000
    asked["tighten"] = {"hidden_paths": ["/a" * 1000]}
    assert ask(here.port, "POST", "/v1/runs", asked, token=tokens["other"])[0] == 200  # the control


def test_a_long_source_with_many_commas_runs(limited: tuple[Here, dict[str, str]], tmp_path: Path) -> None:
    here, tokens = limited
    source = "print(len([" + "1,[]," * 500_000 + "]))"  # what Python itself reads without trouble
    body = json.dumps({"argv": ["wc", "-c"], "input": source}).encode()
    status, _, made = ask(here.port, "POST", "/v1/runs", json.loads(body), token=tokens["other"])
    assert status == 200 and made["outcome"]["stdout"].strip() == str(len(source))


@pytest.mark.parametrize("large", [False, True])
def test_who_is_refused_leaves_no_body_behind(
    limited: tuple[Here, dict[str, str]], monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    """Without the collector of garbage: a service has it look at old things once in hundreds of requests."""
    here, tokens = limited
    gone: list[int] = []
    read_body = guard.read_body

    class Body(bytes):
        def __del__(self) -> None:
            gone.append(1)

    async def read(*given: Any) -> bytes:
        return Body(await read_body(*given))

    monkeypatch.setattr(guard, "read_body", read)
    gc.disable()
    try:
        asked = {"nobody": "x" * (1 << 20 if large else 10)}
        for _ in range(3):
            assert ask(here.port, "POST", "/v1/runs", asked, token=tokens["other"])[0] == 400
        eventually(lambda: len(gone) == 3)
    finally:
        gc.enable()
