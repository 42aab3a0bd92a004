"""``ringfence mcp`` by the official client of the protocol."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.framework_environment import framework_environment

if sys.platform != "linux":
    pytest.skip("needs isolation strict", allow_module_level=True)

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.unmeasured]
ROOT = Path(__file__).resolve().parents[2]


def _said(what: str, tmp_path: Path) -> dict[str, Any]:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    environment = framework_environment("mcp") | {"XDG_STATE_HOME": str(tmp_path / "state")}
    command = [sys.executable, "-m", "tests.doors.mcp_program", what, str(workspace)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    left = tmp_path / "state" / "ringfence" / "sandboxes"
    said["left behind"] = [each.name for each in left.iterdir() if not each.name.startswith(".")]
    return said


def test_every_tool_does_its_work_and_says_so_in_few_words(tmp_path: Path) -> None:
    said = _said("tools", tmp_path)
    text = {name: row["text"] for name, row in said.items() if isinstance(row, dict)}
    assert set(said["names"]) == {"run_command", "run_python", "read_output", "write_file", "read_file", "list_files",
                                  "diff", "checkpoint", "rollback", "commit"}  # fmt: skip
    assert text["command"] == "exit code 3\none\n"
    assert "refused: " in text["hidden"] and "secret (not allowed by the policy)" in text["hidden"]
    assert "s3cret" not in text["hidden"]
    assert (text["first"], text["second"]) == ("hi\n21", "42") and "NameError" in text["reset"]
    assert text["read"] == "hellö\n" and "+two" in text["diff"]
    assert text["listed"] == text["after"] and "new/" in text["after"]
    assert "read_output('out1'" in text["long"] and len(text["long"]) < 9000
    assert text["on"].startswith("\n") is False and "\n19000\n" in text["on"]
    assert said["outside"]["error"] and "not in the workspace" in text["outside"]
    assert text["commit"].startswith("committed 3 paths") and said["file"] == "one\ntwo\n"
    assert len(said["asked"]) == 1 and "modified a.txt" in said["asked"][0] and "+two" in said["asked"][0]
    assert said["left behind"] == []


def test_a_model_cannot_widen_its_policy(tmp_path: Path) -> None:
    said = _said("limits", tmp_path)
    assert "reached" not in said["closed"]["text"] + said["closed asked"]["text"]
    assert said["open"]["text"] == said["open asked"]["text"] == "reached"
    assert said["time"]["text"].startswith("TIMEOUT: still running after 8 s")
    assert said["commit"]["error"] and "no workspace" in said["commit"]["text"]
    assert len(said["texts"]) == 5 and said["short text"]["text"] == "ef"
    for name, text in said["texts"].items():
        assert "a string of 4000 characters is not a number" in text, f"{name}: the framework would decode it"


def test_nothing_is_committed_that_the_operator_did_not_agree_to(tmp_path: Path) -> None:
    said = _said("commits", tmp_path)
    for name in ("declined", "no", "mute", "never"):
        assert said[name][1] == "one\n", name
    assert "can't ask its operator" in said["mute"][0]["text"] and "switched off" in said["never"][0]["text"]
    assert said["always"][1] == "always\n"
    for mode in ("legacy", "auto"):
        assert said[f"slipped {mode}"][1] == "one\n", said
    words, read, shown = said["read"]
    assert words == ["ringfence", "diff"] and "\n+4711\n" in read and "\n+4711\n" not in shown
    assert read.splitlines()[-1] == shown.splitlines()[-1], "the seal of what is asked about"
    assert len(said["left behind"]) == 7, "what was not committed is kept for the operator"


@pytest.mark.long
def test_progress_comes_and_what_is_cancelled_ends(tmp_path: Path) -> None:
    said = _said("cancelled", tmp_path)
    assert said["running"]["text"].splitlines()[1] == "1" and said["left"]["text"].splitlines()[1] == "0"
    assert said["progress"][1:] == [60, "begun"]
    assert said["kept"]["text"] == "5"


def test_a_line_that_is_no_message_is_answered_and_the_server_goes_on(tmp_path: Path) -> None:
    call = '{"jsonrpc":"2.0","id":%s,"method":"tools/call",'
    call += '"params":{"name":"run_command","arguments":{"command":"%s"}}}'
    info = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": info}),
        '{"jsonrpc":"2.0","method":"notifications/initialized"}',
        "{", call % (7, "echo \\ud800"), "", "[]", "null", "[" * 100_000, '{"jsonrpc":"2.0","id":8}',
        '{"jsonrpc":"1.0","id":"nine","method":"ping"}', call % ('"\\ud800"', "true"),
        '{"jsonrpc":"2.0","id":10,"method":"ping"}',
    ]  # fmt: skip
    environment = framework_environment("mcp") | {"XDG_STATE_HOME": str(tmp_path / "state")}
    command, said = [sys.executable, "-m", "ringfence", "mcp"], list[dict[str, Any]]()
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write("\n".join(lines) + "\n")
        server.stdin.flush()
        while not said or said[-1]["id"] != 10:  # a server whose input ends need not answer what it has not yet
            said.append(json.loads(server.stdout.readline()))
        server.stdin.close()
    assert server.returncode == 0
    codes = [(each["id"], each["error"]["code"]) for each in said if "error" in each]
    not_json, no_message = -32700, -32600
    assert codes == [(None, not_json), (7, no_message), (None, no_message), (None, no_message), (None, not_json),
                     (None, no_message), ("nine", no_message), (None, no_message)]  # fmt: skip
    assert {each["id"] for each in said if "result" in each} == {0, 10}


@pytest.mark.parametrize("value", [None, "", " "])
def test_a_variable_that_is_to_be_injected_and_has_no_value_is_refused_at_start_as_by_run(
    value: str | None, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("network: [{host: api.example.com, inject: {header: x-api-key, from_env: NO_SUCH_KEY}}]\n")
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    environment |= {} if value is None else {"NO_SUCH_KEY": value}

    def refused(*words: str) -> tuple[int, str, str]:
        done = subprocess.run([sys.executable, "-m", "ringfence", *words], env=environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=900, check=False)  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    found = refused("mcp", "--policy", str(policy))
    assert found == refused("run", "--isolation", "strict", "--policy", str(policy), "--", "true")
    assert found[:2] == (2, "") and "the rule injects NO_SUCH_KEY" in found[2]
    assert not (tmp_path / "state" / "ringfence" / "sandboxes").exists(), "no sandbox was made for it"
