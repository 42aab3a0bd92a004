"""`proctor run --manifest`: what does not match is not run, what is handed in is bound, answers in it are on record."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("proctored runs need Linux", allow_module_level=True)

from ringfence import cli
from ringfence.cli import proctor_run
from ringfence.evidence.trust import Trust
from ringfence.evidence.verify import verify_bundle

pytestmark = pytest.mark.system

SECRET = "flag-9f3a-77aa-the-answer"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    task = tmp_path / "sum"
    for name in ("workspace", "oracle"):
        (task / name).mkdir(parents=True)
    (task / "workspace" / "readme.txt").write_text("write the answer into answer.txt\n")
    (task / "oracle" / "expected.txt").write_text(SECRET + "\n")
    (task / "grade.sh").write_text('test "$(cat answer.txt)" = "$(cat /oracle/expected.txt)"\n')
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "hint.md").write_text("guess\n")
    (tmp_path / "agent.sh").write_text('#!/bin/sh\ncat "$1/hint.md" > answer.txt\n')
    (tmp_path / "agent.sh").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    # The command takes over the signals of its process, which here is the tests'.
    monkeypatch.setattr(proctor_run, "_end_by_signal", lambda: None)
    return tmp_path


def _create() -> int:
    what = ["--agent-binary", "agent.sh", "--scaffold", "prompts"]
    return cli.proctor_main(["manifest", "create", *what, "--out", "m.json"])


def _run(out: str, *more: str) -> int:
    where = Path("prompts").resolve()
    return cli.proctor_main(["run", "--task", "sum", "--agent", f"./agent.sh {where}", "--scaffold", "prompts",
                             "--out", out, "--manifest", "m.json", "--json", *more])  # fmt: skip


def _bundle(out: str) -> dict[str, object]:
    data = (Path(out) / "bundle.json").read_bytes()
    key = json.loads(data)["verdict"]["public_key"]
    verify_bundle(data, trust=Trust.pinned(key), artifacts_folder=out)
    found: dict[str, object] = json.loads(data)
    return found


def test_a_manifest_is_bound_into_the_bundle_and_a_carried_answer_compromises(place: Path) -> None:
    assert _create() == 0
    assert _run("clean") == 0
    bundle = _bundle("clean")
    digest = hashlib.sha256((place / "m.json").read_bytes()).hexdigest()
    artifacts = {row["name"]: row["sha256"] for row in bundle["manifest"]["artifacts"]}  # type: ignore[index]
    assert artifacts["submission.json"] == digest
    assert bundle["contents"]["submission.json"].encode() == (place / "m.json").read_bytes()  # type: ignore[index]
    assert bundle["verdict"]["status"] == "clean"  # type: ignore[index]
    said = {row["sha256"] for row in json.loads((place / "m.json").read_bytes())["inputs"]}
    went_in = {row["sha256"] for row in json.loads((place / "clean" / "inputs.json").read_bytes())["inputs"]}
    assert said <= went_in

    (place / "prompts" / "hint.md").write_text(SECRET + "\n")
    assert _run("refused") == 1 and not (place / "refused" / "verdict.json").exists()
    assert _create() == 0
    assert _run("cheat") == 0
    verdict = _bundle("cheat")["verdict"]
    assert (verdict["pass"], verdict["status"]) == (True, "compromised")  # type: ignore[index]
    found = json.loads((place / "cheat" / "known-answers.json").read_text())["found"]
    assert {(row["role"], row["path"]) for row in found} == {("scaffold", "hint.md")}
    assert SECRET not in (place / "cheat" / "violations.jsonl").read_text()


def test_the_control_without_a_manifest_a_carried_answer_wins(place: Path) -> None:
    (place / "prompts" / "hint.md").write_text(SECRET + "\n")
    agent = ["--agent", f"./agent.sh {place / 'prompts'}", "--scaffold", "prompts"]
    assert cli.proctor_main(["run", "--task", "sum", *agent, "--out", "won", "--json"]) == 0
    verdict = _bundle("won")["verdict"]
    assert (verdict["pass"], verdict["status"]) == (True, "clean")  # type: ignore[index]


def test_what_changes_while_the_run_goes_on_leaves_no_verdict(place: Path) -> None:
    """The operator's host is shared: whoever swaps a prompt after it was compared gets no verdict out of it."""
    from ringfence.errors import EvidenceError
    from ringfence.proctor import Task, proctor
    from ringfence.proctor.submission_manifest.binding import bind
    from ringfence.proctor.submission_manifest.document import Submitted

    assert _create() == 0
    task, agent = Task.from_folder("sum"), f"./agent.sh {place / 'prompts'}"
    submitted = Submitted(agent_binary="agent.sh", scaffold=("prompts",))
    bound = bind("m.json", submitted, task, agent)
    (place / "prompts" / "hint.md").write_text(SECRET + "\n")
    with pytest.raises(EvidenceError, match="after the run"):
        proctor(task, agent, "late", bound=bound)
    assert not (place / "late" / "verdict.json").exists()


def test_a_variable_that_the_manifest_has_not_is_refused(place: Path) -> None:
    assert _create() == 0
    (place / "sum" / "policy.yaml").write_text("version: 1\nenv: {allow: [ANSWER_KEY]}\n")
    assert _run("out") == 1
    assert cli.proctor_main(["run", "--task", "sum", "--agent", "./agent.sh", "--instructions", "x", "--out", "o"]) == 2


def test_the_scripted_agent_and_a_ready_one_without_its_program(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "steps.txt").write_text(f"echo {SECRET} > answer.txt\ntest -n \"$PROCTOR_INSTRUCTION_FILE\"\n")
    assert cli.proctor_main(["run", "--task", "sum", "--agent", "@script:steps.txt", "--out", "scripted"]) == 0
    assert _bundle("scripted")["verdict"]["pass"] is True  # type: ignore[index]
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    assert cli.proctor_main(["run", "--task", "sum", "--agent", "@claude-code", "--out", "none"]) == 2
    assert "ANTHROPIC_API_KEY" in capsys.readouterr().err
