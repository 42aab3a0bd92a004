"""``/mcp`` of the service by the official client of the protocol, and by those who want more than is theirs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.framework_environment import framework_environment
from tests.service_server import ask, running, settings

from ringfence.errors import hint_for_extra

if sys.platform != "linux":
    pytest.skip("needs isolation strict", allow_module_level=True)

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.unmeasured]
ROOT = Path(__file__).resolve().parents[2]


def _said(what: str, tmp_path: Path) -> dict[str, Any]:
    environment = framework_environment("mcp") | {"XDG_STATE_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "tests.doors.mcp_http_program", what, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return said


def test_a_session_is_a_box_of_its_tenant_and_ends_with_its_client(tmp_path: Path) -> None:
    said = _said("work", tmp_path)
    for mode in ("legacy", "auto"):
        assert said[mode][:4] == ["21", 1, "default", "hi\n"], "the tenant finds it among its boxes"
        assert said[f"{mode} left"] == 0
    assert said["late"]["text"].startswith("TIMEOUT: still running after 2 s"), "a named policy holds"
    assert said["commit"]["text"].startswith("committed 1 path ") and said["file"] == "1\n2\n3\n4\n"
    assert len(said["asked"]) == 1 and "all of it, now: GET /v1/boxes/" in said["asked"][0].splitlines()[1]
    assert said["unscoped"]["error"] and "switched off" in said["unscoped"]["text"]
    assert said["kept"] == [["parked", "project"]] and "+mine" in said["kept diff"], "what changed is not lost"
    assert said["project"] == ["a.txt"]


def test_a_session_is_nobody_elses_and_counts(tmp_path: Path) -> None:
    said = _said("attacks", tmp_path)
    assert said["control"] == [200, True] and said["called"] == said["still there"] == said["own origin"] == 200
    assert (said["no token"], said["wrong token"], said["no scope"]) == (401, 401, 403)
    for name in ("another's", "another ends it", "another listens", "guessed"):
        assert said[name] == 404, name
    assert (said["origin"], said["host"], said["put"]) == (403, 421, 405)
    for name in ("policy", "workspace", "query", "no initialize", "twice", "batch", "bad initialize"):
        assert said[name] == 400, name
    assert said["long text"] == 200
    for name in ("many values", "long initialize", "long again"):
        assert said[name] == 413, f"{name}: it takes many times its bytes, or stays with its session"
    assert said["id 1000"] == said["token 1000"] == 200, "the control"
    assert said["id 1001"] == said["token 1001"] == 413, "they are said again, the token each second"
    assert said["empty version"] == 400
    assert said["boxes"] == 1, "what was refused has left no box"
    assert said["few"] == [200, 200, 200, 200, 429], "the box and each call are runs of its minute"
    assert said["ended"] == 200 and said["after the end"] == 404 and said["boxes after"] == 0


def test_a_call_is_counted_as_long_as_it_lasts_also_when_its_client_is_gone(tmp_path: Path) -> None:
    """Else calls wait with their bodies, as many as a client sends and leaves."""
    said = _said("gone", tmp_path)
    assert said["short"] == said["other"] == said["ended"] == 200 and said["left"] == [200] * 16
    assert said["streams"] == 16 and said["bodies"]
    assert said["waiting"] == [200, 429] and said["bytes"] <= 256 << 20
    assert said["many"] == 429, "half of the connections"


def test_no_request_outlives_its_session_by_an_id_that_another_one_has(tmp_path: Path) -> None:
    said = _said("same_id", tmp_path)
    assert said["first"] == [200, 200] and said["answer"] == 202, "the control"
    assert said["again"] == [400] * 3 and said["ended"] == 200
    assert said["used again"] == [200] * 20, "after its answer an id is free"


def test_what_the_framework_quotes_of_a_client_is_no_line_of_the_log(tmp_path: Path) -> None:
    said = _said("log", tmp_path)
    assert said["statuses"] == [200, 200, 202]
    lines = [json.loads(line) for line in said["log"].splitlines()]
    assert [line["event"] for line in lines if "event" in line].count("request") > 3, "the control"
    quoting = [line for line in lines if "forged" in line.get("exception", "")]
    assert len(quoting) == 2 and all(len(json.dumps(line)) < 100_000 for line in quoting)
    assert not [line for line in lines if line.get("event") == "forged"]
    assert "\x1b" not in said["log"] and "\u202e" not in said["log"]


def test_a_session_that_nobody_uses_ends_and_one_that_works_does_not(tmp_path: Path) -> None:
    said = _said("idle", tmp_path)
    assert said["long"]["text"] == "exit code 0\nstill here\n" and said["after"] == "MCPError"


def test_without_the_extra_it_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(sys.modules, "mcp", None)
    with running(settings(tmp_path)) as here:
        status, _, found = ask(here.port, "POST", "/mcp", {"method": "initialize"})
    assert status == 503 and hint_for_extra("mcp") in found["error"]["hint"]
