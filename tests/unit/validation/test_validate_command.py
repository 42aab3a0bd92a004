"""``ringfence validate``: lines, JSON, SARIF and exit codes; what findings do to a policy and to an agent's risk."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ringfence import SandboxPolicy
from ringfence.cli import main
from ringfence.integrations.deep_agent import RiskModel, ToolCall
from ringfence.validation import Rules, SecurityValidator, tightened

HONEST, HOSTILE = "x = sum(range(3))\n", "import os\nos.system('id')\nopen('notes')\n"


def _files(folder: Path, **codes: str) -> list[str]:
    for name, code in codes.items():
        (folder / f"{name}.py").write_text(code)
    return [str(folder / f"{name}.py") for name in codes]


def test_an_honest_file_is_exit_code_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", *_files(tmp_path, a=HONEST)]) == 0
    assert capsys.readouterr().out == "1 file: 0 errors in 0, 0 warnings\n"


def test_findings_are_lines_that_editors_understand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = _files(tmp_path, a=HONEST, b=HOSTILE)
    assert main(["validate", *files]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{files[1]}:2:1: error: os.system: ") and lines[0].endswith("[process-call]")
    assert ": warning: " in lines[1] and lines[2] == "2 files: 1 error in 1, 1 warning"
    assert main(["validate", "-q", *files]) == 1
    assert ": warning: " not in capsys.readouterr().out


def test_what_is_no_python_is_a_syntax_error_in_pythons_own_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = _files(tmp_path, a="f((\n")
    assert main(["validate", file]) == 1
    assert capsys.readouterr().out.startswith(f"{file}:1:3: error: syntax error: '(' was never closed [syntax]\n")


def test_the_standard_input_is_read(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(HOSTILE.encode())))
    assert main(["validate", "-", "--json"]) == 1
    (told,) = json.loads(capsys.readouterr().out)["files"]
    assert told["file"] == "-" and told["valid"] is False and told["uses"] == ["files"]
    assert {"rule", "category", "level", "line", "column", "subject", "reason"} == told["findings"][0].keys()


def test_a_file_that_is_not_there_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(tmp_path / "none.py")]) == 2
    assert main(["validate", "--json", str(tmp_path / "none.py")]) == 2
    assert json.loads(capsys.readouterr().out)["kind"] == "UsageError"


def test_rules_of_a_project_are_used_and_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("silence:\n  process-call: the tests of our own launcher\n")
    assert main(["validate", *_files(tmp_path, b=HOSTILE), "--rules", str(rules)]) == 0
    rules.write_text("silence:\n  process-call: ''\n")
    assert main(["validate", *_files(tmp_path, b=HOSTILE), "--rules", str(rules)]) == 2
    assert f"{rules}:2:3: silence.process-call: needs a reason" in capsys.readouterr().err


@pytest.mark.parametrize(("data", "code", "rule"), [
    (b"\xef\xbb\xbfx = 1\n", 0, ""),
    (b"# coding: latin-1\nx = '\xe9'\n", 1, "encoding"),
    (b"# coding: latin-1\nx = 1\n", 0, ""),
    (b"x = '\xff'\n", 1, "encoding"),
    (b"# coding: utf-7\nx = 1\n", 1, "encoding"),
    (b"# coding: cp1251\nx = 1\n", 0, ""),
    (b"# coding: gb2312\nx = '\xff'\n", 1, "encoding"),
    (b"x = 1\0\n", 1, "null-byte"),
    (b"", 0, ""),
    (b"x = 1\n" * 300_000, 1, "code-size"),
])  # fmt: skip
def test_files_are_read_as_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, code: int, rule: str
) -> None:
    (tmp_path / "a.py").write_bytes(data)
    assert main(["validate", str(tmp_path / "a.py")]) == code
    assert f"[{rule}]" in capsys.readouterr().out or not rule


# ---- SARIF: what the standard demands of the objects that are used here


def _sarif(capsys: pytest.CaptureFixture[str], *files: str) -> dict[str, Any]:
    main(["validate", "--sarif", *files])
    log: dict[str, Any] = json.loads(capsys.readouterr().out)
    return log


def test_sarif_has_the_structure_that_the_standard_demands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = _files(tmp_path, a=HONEST, b=HOSTILE)
    log = _sarif(capsys, *files)
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "ringfence" and run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(ids) == len(set(ids)) == len(Rules().all)
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"].endswith(".")
        assert rule["defaultConfiguration"]["level"] in ("none", "note", "warning", "error")
    assert [each["location"]["uri"] for each in run["artifacts"]] == [f"file://{name}" for name in files]
    assert len(run["results"]) == 2
    for result in run["results"]:
        assert ids[result["ruleIndex"]] == result["ruleId"] and result["level"] in ("error", "warning")
        assert result["message"]["text"]
        (location,) = result["locations"]
        region = location["physicalLocation"]["region"]
        assert region["startLine"] >= 1 and region["startColumn"] >= 1
        assert location["physicalLocation"]["artifactLocation"]["uri"].startswith("file:///")


def test_names_of_files_are_references_in_sarif(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a b#c%.py").write_text(HOSTILE)
    (run,) = _sarif(capsys, "a b#c%.py")["runs"]
    assert run["artifacts"][0]["location"]["uri"] == "a%20b%23c%25.py"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    (run,) = _sarif(capsys, "-")["runs"]
    assert run["results"] == [] and run["artifacts"][0]["location"]["uri"] == "stdin"


# ---- what findings are good for


OPEN = SandboxPolicy(network="host", writable_paths=("/tmp/a",), pass_environment=("LANG",))


@pytest.mark.parametrize(("code", "network", "writable", "environment"), [
    ("import math\nprint(math.pi)", "none", (), ()),
    ("open('/tmp/x', 'w')", "none", ("/tmp/a",), ()),
    ("import os\nos.getenv('LANG')", "none", (), ("LANG",)),
    ("import pandas as pd\npd.read_csv(path)", "host", ("/tmp/a",), ()),
    ("import numpy as np", "none", (), ()),
    ("import somebodys_library", "host", ("/tmp/a",), ("LANG",)),
    ("import socket", "host", ("/tmp/a",), ("LANG",)),
    ("def f(:", "host", ("/tmp/a",), ("LANG",)),
])  # fmt: skip
def test_a_policy_is_tightened_by_what_the_code_does_not_use(
    code: str, network: str, writable: tuple[str, ...], environment: tuple[str, ...]
) -> None:
    policy = tightened(OPEN, SecurityValidator().validate(code))
    assert (policy.network, policy.writable_paths, policy.pass_environment) == (network, writable, environment)


def test_nothing_is_ever_added_to_a_policy() -> None:
    closed = SandboxPolicy(isolation="strict")
    assert tightened(closed, SecurityValidator().validate("x = 1")) is closed
    listed = SandboxPolicy(isolation="strict", network=("a.example",), network_limits={"connections": 3})
    assert tightened(listed, SecurityValidator().validate("x = 1")).network_rule == "none"


def test_the_safe_agent_takes_it_as_its_check_of_code() -> None:
    risk = RiskModel(["."], validator=SecurityValidator())
    bad = risk(ToolCall("run_python", {"code": "import os\nos.system('id')"}))
    good = risk(ToolCall("run_python", {"code": "import math\nprint(math.pi)"}))
    assert bad.score > good.score and any("process-call" in reason for reason in bad.reasons)
    shell = risk(ToolCall("run_shell", {"command": "ls -l && echo done"}))
    assert not any(reason.startswith("finding") for reason in shell.reasons)
