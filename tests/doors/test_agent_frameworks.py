"""smolagents, LangChain, deep agents and OpenAI's Agents SDK, each with a scripted model, over our sandboxes."""

from __future__ import annotations

import json
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


def _said(framework: str, what: str, tmp_path: Path) -> dict[str, Any]:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    command = [sys.executable, "-m", "tests.doors.agents_program", what, str(workspace)]
    done = subprocess.run(command, cwd=ROOT, env=framework_environment(framework), capture_output=True, text=True,
                          timeout=900, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return said


def test_a_code_agent_of_smolagents_works_inside(tmp_path: Path) -> None:
    said = _said("smolagents", "smolagents", tmp_path)
    assert said["answer"] == {"x": 42, "seen": False, "root": 4.0}, "variables, tools, imports; the host is not seen"
    assert "x is 42" in said["heard"][1] and "ValueError: odd" in said["heard"][2]
    assert said["direct"] == "[42, (1, {2})]" and not said["final"]
    assert said["odd"].startswith("<object object"), "what can't be sent comes as its text"


def test_tools_of_langchain_work_inside_and_hand_over_the_outcome(tmp_path: Path) -> None:
    said = _said("langchain", "langchain", tmp_path)
    assert said["content"] == "exit code 4\none\n" and said["rc"] == 4
    assert said["python"] == ["(no output)", "21"] and "+two" in said["diff"]
    assert "no checkpoint, or several, match" in said["refused"] and said["schema"] == ["command", "timeout_s"]
    assert said["file"] == "two\n" and said["committed"].startswith("committed 1 path ")


@pytest.mark.long
def test_a_deep_agent_has_its_files_and_its_shell_inside(tmp_path: Path) -> None:
    said = _said("langchain", "deepagents", tmp_path)
    assert said["last"] == "done" and said["untouched"], "nothing was committed"
    wrote, edited, read, listed, found, globbed, executed, refused = said["said"]
    assert "new/b.txt" in wrote and "replaced 1" in edited and "moon" in read and "a.txt" in listed
    assert "b.txt" in found and "a.txt" in globbed
    assert "hello\nmoon" in executed and "exit code 2" in executed and "permission_denied" in refused
    assert said["missing"] == ["file_not_found", "one\n"]


@pytest.mark.long
def test_an_agent_of_openais_sdk_works_inside(tmp_path: Path) -> None:
    said = _said("openai-agents", "openai_agents", tmp_path)
    assert said["last"] == "done" and said["said"][:4] == ["exit code 4", "(no output)", "21", "one\n"]
    assert "could not be read" in said["said"][4] and said["said"][5].startswith("TIMEOUT: still running after 1 s")
