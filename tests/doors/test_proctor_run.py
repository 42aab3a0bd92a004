"""Proctored runs from end to end: honest agents, cheats, and what is left of both. Numbers are the shortcomings of
Proctor 0.1.1 that each test shows closed."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("proctored runs need Linux", allow_module_level=True)

from ringfence import cli
from ringfence.cli import proctor_run
from ringfence.errors import EvidenceError, SandboxError, SetupError, UsageError
from ringfence.evidence.trust import Trust
from ringfence.evidence.verify import verify_bundle
from ringfence.model.record import replace
from ringfence.proctor import Task, Verdict, proctor
from ringfence.proctor.signed import records
from ringfence.sandbox import host

pytestmark = [pytest.mark.system, pytest.mark.privileges]

GRADE = 'test "$(cat answer.txt)" = "$(cat /oracle/expected.txt)"\n'
HONEST = "sh -c 'echo 42 > answer.txt'"


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = tmp_path / "sum"
    for name in ("workspace", "oracle"):
        (folder / name).mkdir(parents=True)
    (folder / "workspace" / "readme.txt").write_text("write the answer into answer.txt\n")
    (folder / "oracle" / "expected.txt").write_text("42\n")
    (folder / "grade.sh").write_text(GRADE)
    (folder / "instruction.md").write_text("What is six times seven?\n")
    return folder


Runs = Callable[..., Verdict]


@pytest.fixture
def runs(task: Path, tmp_path: Path) -> Runs:
    def one(agent: str, name: str = "out", **more: object) -> Verdict:
        return proctor(Task.from_folder(task), agent, tmp_path / name, **more)  # type: ignore[arg-type]

    return one


def _policy(task: Path, text: str) -> None:
    (task / "policy.yaml").write_text(f"version: 1\n{text}")


def _log(verdict: Verdict, name: str = "agent.stdout") -> str:
    return (Path(verdict.out) / name).read_text(errors="surrogateescape")


def _document(verdict: Verdict, name: str) -> dict[str, object]:
    return json.loads(_log(verdict, name))


def test_an_honest_agent_passes_clean_and_its_bundle_verifies_with_all_files(runs: Runs) -> None:
    verdict = runs(HONEST, nonce="ab" * 32)
    assert (verdict.passed, verdict.status, verdict.score) == (True, "clean", 1.0), verdict.grading
    left = set(os.listdir(verdict.out))
    assert {"verdict.json", "violations.jsonl", "bundle.json", "run.json", "inputs.json", "events.jsonl", "final.diff",
            "agent.stdout", "agent.stderr", "grader.stdout", "grader.stderr", "grading.json"} <= left  # fmt: skip
    proof = verify_bundle(
        (Path(verdict.out) / "bundle.json").read_bytes(), trust=Trust.pinned(verdict.public_key),
        artifacts_folder=verdict.out, nonce="ab" * 32,
    )  # fmt: skip
    assert proof.signers == (verdict.public_key,)
    assert "answer.txt" in _log(verdict, "final.diff")


def test_a_wrong_answer_fails_and_is_clean(runs: Runs) -> None:
    verdict = runs("sh -c 'echo 41 > answer.txt'")
    assert (verdict.passed, verdict.status, verdict.score) == (False, "clean", 0.0)


def test_who_reads_the_oracle_by_name_gets_nothing_and_is_compromised(runs: Runs, task: Path) -> None:
    verdict = runs(f"sh -c 'cat /oracle/expected.txt; cat {task}/oracle/expected.txt; echo 42 > answer.txt'")
    assert verdict.passed and verdict.status == "compromised" and verdict.score == 0.0
    assert "42" not in _log(verdict)
    paths = [json.loads(line)["path"] for line in _log(verdict, "violations.jsonl").splitlines()]
    assert paths == ["/oracle/expected.txt", f"{task}/oracle/expected.txt"]


def test_what_an_agent_makes_by_a_name_that_is_hidden_on_the_host_is_its_own(runs: Runs, tmp_path: Path) -> None:
    own = f"{tmp_path}/out"
    verdict = runs(f"sh -c 'rm -rf {own}; mkdir -p {own}; echo 42 > {own}/x; cat {own}/x > answer.txt; cat {own}/y'")
    assert (verdict.passed, verdict.status) == (True, "clean"), _log(verdict, "violations.jsonl")


def test_nothing_lies_under_the_mask_and_no_capability_takes_it_off(runs: Runs) -> None:  # 1
    verdict = runs("sh -c 'grep Cap /proc/self/status; umount /oracle; mount -o remount,rw /; ls /'")
    said = _log(verdict).splitlines()
    assert {line.split()[1] for line in said if line.startswith(("CapEff", "CapPrm", "CapBnd"))} == {"0" * 16}
    assert "oracle" not in said and "workspace" in said


def test_a_link_to_the_oracle_is_no_answer(runs: Runs) -> None:  # 2
    verdict = runs("ln -s /oracle/expected.txt answer.txt")
    assert not verdict.passed
    assert "answer.txt" in json.dumps(_document(verdict, "grading.json"))


def test_the_control_a_grader_that_follows_links_is_fooled(task: Path) -> None:
    work = task / "workspace"
    (work / "answer.txt").symlink_to(task / "oracle" / "expected.txt")
    script = GRADE.replace("/oracle", str(task / "oracle"))
    assert subprocess.run(["sh", "-c", script], cwd=work, check=False).returncode == 0


def test_no_descriptor_but_three_reaches_the_agent_or_the_grader(runs: Runs, task: Path) -> None:  # 3
    (task / "grade.sh").write_text("ls /proc/self/fd\n")
    verdict = runs("ls /proc/self/fd")
    for name in ("agent.stdout", "grader.stdout"):
        assert set(_log(verdict, name).split()) <= {"0", "1", "2", "3"}, name  # 3: the directory that ls reads


def test_deletions_reach_the_grader_and_a_fifo_hangs_nobody(runs: Runs, task: Path) -> None:  # 8
    (task / "grade.sh").write_text("test ! -e readme.txt && test ! -p pipe && test -d kept\n")
    verdict = runs("sh -c 'rm readme.txt; mkfifo pipe; mkdir kept; touch kept/x'")
    assert verdict.passed, verdict.grading


def test_limits_hold_and_are_on_record(runs: Runs, task: Path) -> None:  # 9
    _policy(task, "limits: {wall_time_secs: 2, pids: 20, memory_bytes: 134217728}\n")
    verdict = runs("sh -c 'echo 42 > answer.txt; sleep 600 & sleep 600'")
    phases = {phase["name"]: phase for phase in _document(verdict, "run.json")["phases"]}  # type: ignore[attr-defined]
    assert phases["agent"]["timed_out"] and phases["agent"]["wall_limit_ms"] == 2000
    rows = {row["protection"]: row for row in _document(verdict, "run.json")["enforcement"]}  # type: ignore[attr-defined]
    assert all(rows[name]["applied"] for name in ("memory", "pids", "wall_time", "network", "disk"))
    assert verdict.passed  # what it left in time counts


def test_everything_that_went_in_is_bound(runs: Runs, task: Path, tmp_path: Path) -> None:  # 12
    agent, scaffold = tmp_path / "agent.sh", tmp_path / "prompts"
    agent.write_text("cat " + str(scaffold / "hint.md") + "; echo 42 > answer.txt\n")
    scaffold.mkdir()
    (scaffold / "hint.md").write_text("think\n")
    verdict = runs(f"sh {agent}", scaffold=[str(scaffold)])
    rows = _document(verdict, "inputs.json")["inputs"]
    assert {row["role"] for row in rows} == {  # type: ignore[attr-defined]
        "task", "oracle", "grader", "instruction", "policy", "agent", "scaffold"}  # fmt: skip
    assert _log(verdict) == "think\n"
    first = _document(verdict, "run.json")
    assert len(str(first["nonce"])) == 64 and first["nonce"] != _document(runs(HONEST, "again"), "run.json")["nonce"]


def test_a_used_output_folder_is_refused(runs: Runs) -> None:  # 14
    verdict = runs(HONEST)
    with pytest.raises(UsageError):
        runs(HONEST)
    assert (Path(verdict.out) / "verdict.json").exists()


def test_the_instruction_comes_three_times(runs: Runs) -> None:  # 16
    verdict = runs("sh -c 'cat; cat /task/instruction.md; printf %s \"$PROCTOR_INSTRUCTION\"; pwd'")
    assert _log(verdict) == "What is six times seven?\n" * 3 + "/workspace\n"


def test_variables_are_given_by_name_and_written_nowhere(
    runs: Runs, task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_TOKEN", "token-8d1f")
    monkeypatch.setenv("OTHER_TOKEN", "other-77aa")
    _policy(task, "env: {allow: [MODEL_TOKEN]}\n")
    verdict = runs("sh -c 'test ${#MODEL_TOKEN} = 10 && test -z \"$OTHER_TOKEN\" && echo 42 > answer.txt'")
    assert verdict.passed
    for path in Path(verdict.out).iterdir():
        assert b"token-8d1f" not in path.read_bytes(), path
    assert _document(verdict, "inputs.json")["environment_variables"] == ["MODEL_TOKEN"]


def test_an_agent_that_fills_or_floods_what_it_can_brings_about_no_error(runs: Runs) -> None:  # 7
    verdict = runs("sh -c 'for i in 1 2 3 4 5 6; do cat /oracle/$i; done; mkdir -p a/b; echo > a/b/c; kill -9 $$'")
    assert not verdict.passed and verdict.status == "compromised"


def test_an_attempt_behind_a_flood_of_probes_is_not_clean(runs: Runs) -> None:
    """The recorder only counts what comes after the first of a kind, and a sum does not name the call."""
    ask = "import os\nfor n in range({}): os.path.exists(f'/oracle/{{n}}')\nopen('/oracle/expected.txt')\n"
    assert runs(f'python3 -c "{ask.format(3)}"', "few").status == "compromised"
    assert runs(f'python3 -c "{ask.format(1000)}"').status == "compromised"


_ASKS = "i=0; while :; do i=$((i+1)); echo asks $i >> asked; [ $i -lt 3 ] || : > begun; cat /{name}/$i; done"
_LEAVES = f"sh -c 'echo 42 > answer.txt; ({_ASKS}) > /dev/null 2>&1 & while [ ! -e begun ]; do :; done'"


@pytest.mark.parametrize("recorder", ["tripwires", "open notification"])
def test_what_an_agent_leaves_running_is_heard_until_it_is_ended(
    runs: Runs, recorder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks as long as it lives, and writes down what it asks for next: all before that has had its answer."""
    if recorder != "tripwires":
        monkeypatch.setattr(host, "has_fuse", lambda: False)
    verdict = runs(_LEAVES.format(name="oracle"))
    assert verdict.passed and verdict.status == "compromised" and verdict.score == 0.0
    asked = re.findall(r"^\+asks (\d+)$", _log(verdict, "final.diff"), re.MULTILINE)
    told = {json.loads(line)["path"] for line in _log(verdict, "violations.jsonl").splitlines()}
    assert asked and told >= {f"/oracle/{number}" for number in asked[:-1]}, (asked, told)
    proof = verify_bundle((Path(verdict.out) / "bundle.json").read_bytes(), trust=Trust.pinned(verdict.public_key))
    assert proof.signers == (verdict.public_key,)
    assert runs(_LEAVES.format(name="elsewhere"), "control").status == "clean"


@pytest.mark.parametrize("mode", ["0", "300", "555"])
def test_an_agent_that_shuts_its_workspace_is_graded(runs: Runs, mode: str) -> None:
    assert not runs(f"chmod {mode} .").passed


def test_a_log_that_cannot_be_written_is_an_error_and_no_verdict(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # 7
    def fail(*_: object) -> None:
        raise EvidenceError("no room")

    monkeypatch.setattr(records, "write_beside", fail)
    with pytest.raises(SandboxError):
        runs(HONEST)
    assert not (tmp_path / "out" / "verdict.json").exists()


def test_nothing_is_left_beside_the_output(runs: Runs, tmp_path: Path) -> None:
    runs("sh -c 'mkdir -p a/b/c; chmod 0 a; echo 42 > answer.txt'")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "sum"]


def test_steps_run_one_after_the_other_in_one_workspace(runs: Runs, task: Path) -> None:
    (task / "task.yaml").write_text(
        "steps:\n  - {name: plan, command: \"sh -c 'echo 42 > plan'\"}\n  - {name: work, command: mv plan answer.txt}\n"
    )
    verdict = runs("unused")
    assert verdict.passed and len(verdict.agents) == 2
    assert "task.yaml" in [row["name"] for row in _document(verdict, "inputs.json")["inputs"]]  # type: ignore[attr-defined]
    assert [phase["name"] for phase in _document(verdict, "run.json")["phases"]] == [  # type: ignore[attr-defined]
        "agent", "agent 2: work", "grader"]  # fmt: skip


def test_an_agent_that_shuts_the_workspace_keeps_no_other_out(runs: Runs, task: Path) -> None:
    work = "{name: work, command: \"sh -c 'echo 42 > answer.txt'\"}"
    (task / "task.yaml").write_text(f"steps:\n  - {{name: shut, command: chmod 0 /workspace}}\n  - {work}\n")
    assert runs("unused").score == 1.0


@pytest.mark.parametrize("name", ["sum/out", "sum/workspace/out", "sum/oracle/a/b", "link/out"])
def test_an_output_in_the_task_is_refused_before_anything_is_made(runs: Runs, tmp_path: Path, name: str) -> None:
    """A key that such a run left there would be in the next agent's workspace."""
    (tmp_path / "link").symlink_to("sum/workspace")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match="is in the task"):
        runs(HONEST, name)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_output_may_have_a_long_name(runs: Runs) -> None:
    assert runs(HONEST, "o" * 250).passed


@pytest.mark.long
def test_without_a_named_folder_a_run_writes_into_a_new_one(
    task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(proctor_run, "_end_by_signal", lambda: None)  # the signals are the tests'
    monkeypatch.chdir(tmp_path)
    assert cli.proctor_main(["run", f"--task={task}", f"--agent={HONEST}"]) == 0
    capsys.readouterr()
    (made,) = Path("proctor-out").iterdir()
    assert made.name.startswith("sum-") and json.loads((made / "verdict.json").read_text())["pass"] is True
    assert cli.proctor_main(["run", f"--task={task}", "--agent=@nobody"]) == 2
    assert capsys.readouterr().err.startswith("proctor: @nobody is not a ready-made agent\n"), "nothing is said before"
    assert list(Path("proctor-out").iterdir()) == [made], "a run that does not begin leaves no directory"


@pytest.mark.parametrize(("place", "shown"), [
    ("", "--scaffold={}"), ("", "--agent=cat {}/ops.key"), ("", "--agent=cat ops.key"), ("sum", "--agent=true"),
    ("sum/workspace", "--agent=true"), ("sum/oracle", "--agent=true"), ("env", "--agent={}/env/bin/python3"),
])  # fmt: skip
def test_a_key_that_an_agent_or_a_grader_would_see_is_refused(
    task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str,
    shown: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    _environment(tmp_path / "env")
    key = tmp_path / place / "ops.key"
    key.write_text("12" * 32)
    key.chmod(0o600)
    words = ["run", f"--task={task}", "--agent=true", shown.format(tmp_path), f"--key={key}", "--out=out"]
    assert cli.proctor_main(words) == 2 and "would be shown to the agent" in capsys.readouterr().err
    assert not Path("out").exists()


def _environment(folder: Path) -> None:
    """An environment of Python's, which a sandbox shows whole because a command names its interpreter."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python3").symlink_to(os.path.realpath(sys.executable))
    (folder / "pyvenv.cfg").write_text(f"home = {os.path.dirname(os.path.realpath(sys.executable))}\n")


def test_the_control_a_key_in_the_oracle_would_be_read_while_grading(runs: Runs, task: Path) -> None:
    """Its file is nobody else's to read, but graders have copies."""
    (task / "oracle" / "ops.key").write_text("12" * 32)
    (task / "oracle" / "ops.key").chmod(0o600)
    (task / "grade.sh").write_text("sh /workspace/tool\n")
    assert "12" * 32 in _log(runs("sh -c 'echo cat /oracle/ops.key > tool'"), "grader.stdout")


def test_the_control_a_key_in_an_environment_would_be_read_by_the_agent(runs: Runs, tmp_path: Path) -> None:
    _environment(tmp_path / "env")
    key = tmp_path / "env" / "ops.key"
    key.write_text("12" * 32)
    key.chmod(0o600)
    (tmp_path / "read.py").write_text(f"print(open({str(key)!r}).read())\n")
    verdict = runs(f"{tmp_path}/env/bin/python3 {tmp_path}/read.py")
    assert "12" * 32 in _log(verdict), _log(verdict, "agent.stderr")


def test_a_scaffold_above_the_task_shows_nothing_of_it(runs: Runs, tmp_path: Path) -> None:
    """Also in /tmp, where the sandbox has a directory of its own and hides nothing else."""
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "sum").rename(project / "sum")
    (project / "agent.sh").write_text(
        f"cd {project}; cat hint.md sum/oracle/expected.txt data > /workspace/answer.txt\n"
    )
    for name in ("hint.md", "data"):
        (project / name).write_text("42\n")
    task = replace(Task.from_folder(project / "sum"), sources=(str(project / "data"),))
    verdict = proctor(task, f"sh {project}/agent.sh", tmp_path / "out", scaffold=[str(project)])
    assert (verdict.passed, verdict.status) == (True, "compromised"), "of the scaffold it had the hint"
    assert _log(verdict, "final.diff").count("+42\n") == 1 and len(verdict.findings) == 2


def test_a_scaffold_that_holds_another_run_shows_nothing_of_it(runs: Runs, tmp_path: Path) -> None:
    """What another agent handed in, its key, and the copies of oracle and grader beside it while it goes on."""
    data = tmp_path / "data"
    runs(HONEST, "data/earlier")
    (data / ".now.proctor-run-x" / "held").mkdir(parents=True)
    for name in (".now.proctor-run-x/held/expected.txt", "hint.md"):
        (data / name).write_text("42\n")
    read = f"cd {data}; ls -A; cat hint.md; cat earlier/final.diff; cat .now.proctor-run-x/held/expected.txt; true"
    verdict = runs(f'sh -c "{read}"', scaffold=[str(data)])
    assert _log(verdict) == "hint.md\n42\n", "the control: the rest of the scaffold is there"
    assert verdict.status == "compromised"
    asked = {finding.path for finding in verdict.findings}
    assert {f"{data}/earlier/final.diff", f"{data}/.now.proctor-run-x/held/expected.txt"} <= asked, asked


def test_a_workspace_that_holds_another_run_is_refused(runs: Runs, task: Path, tmp_path: Path) -> None:
    runs(HONEST, "earlier")
    (tmp_path / "earlier").rename(task / "workspace" / "earlier")
    with pytest.raises(UsageError, match="directory of another proctored run"):
        runs(HONEST)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("agent", "scaffold", "name"), [
    ("sh agent.sh", ".", "out"), ("sh agent.sh", ".", "below/out"), ("cat sum/oracle/expected.txt", "", "out"),
    ("true", "sum/oracle", "out"),
])  # fmt: skip
def test_what_would_show_an_agent_what_grades_it_is_refused(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: str, scaffold: str, name: str
) -> None:
    """A run has copies of oracle and grader beside its output directory."""
    monkeypatch.chdir(tmp_path)
    Path("agent.sh").write_text("true\n")
    with pytest.raises(UsageError, match="would be shown to the agent"):
        runs(agent, name, scaffold=[scaffold] if scaffold else [])
    assert not Path(name).exists()


@pytest.mark.parametrize("named", ["{}/private.txt", "private.txt"])
def test_a_task_names_no_file_of_the_operators(
    runs: Runs, task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """A step's command comes from whoever wrote the task; that of --agent is the operator's."""
    (tmp_path / "private.txt").write_text("of the operator")
    monkeypatch.chdir(tmp_path)
    assert "of the operator" in _log(runs("cat private.txt", "own"))
    (task / "task.yaml").write_text(f"steps:\n  - {{name: look, command: cat {named.format(tmp_path)}}}\n")
    verdict = runs("true")
    assert "of the operator" not in _log(verdict) and "No such file" in _log(verdict, "agent.stderr")


@pytest.mark.parametrize("first", ["rm tool", "sh -c 'echo \"#!/none\" > tool'"])
def test_an_agent_that_breaks_the_next_step_brings_about_no_error(runs: Runs, task: Path, first: str) -> None:
    (task / "workspace" / "tool").write_text("#!/bin/sh\necho ran\n")
    (task / "workspace" / "tool").chmod(0o755)
    (task / "task.yaml").write_text("steps:\n  - {name: first}\n  - {name: second, command: ./tool}\n")
    assert _log(runs("true", "whole")) == "ran\n"
    broken = runs(first)
    assert not broken.passed and len(broken.agents) == 1


def test_a_step_that_is_not_there_at_all_is_the_operators_error(runs: Runs, task: Path) -> None:
    (task / "task.yaml").write_text("steps:\n  - {name: first}\n  - {name: second, command: no-such-program}\n")
    with pytest.raises(SetupError, match="no-such-program"):
        runs("true")


def test_a_set_up_makes_the_workspace_and_one_that_fails_is_the_operators(
    runs: Runs, task: Path, tmp_path: Path
) -> None:
    (task / "setup.sh").write_text("echo made > given.txt\n")
    verdict = runs("sh -c 'cat given.txt; echo 42 > answer.txt'")
    assert verdict.passed and _log(verdict) == "made\n" and "given.txt" not in _log(verdict, "final.diff")
    (task / "setup.sh").write_text("echo no >&2; exit 3\n")
    with pytest.raises(SetupError, match="exit code 3"):
        runs(HONEST, "again")
    assert not (tmp_path / "again").exists(), "a run that does not come to its agent leaves no directory"


@pytest.mark.parametrize("wrong", ["a FIFO in the workspace", "a repository in the workspace", "a link to the oracle"])
def test_a_task_that_is_refused_after_the_start_leaves_no_folder(
    runs: Runs, task: Path, tmp_path: Path, wrong: str
) -> None:
    place = task / "workspace"
    if "FIFO" in wrong:
        os.mkfifo(place / "fifo")
    elif "repository" in wrong:
        (place / ".git").mkdir()
    else:
        (place / "link").symlink_to("../oracle")
    with pytest.raises(UsageError):
        runs(HONEST, "below/out")
    assert [path.name for path in tmp_path.iterdir()] == ["sum"]


def test_many_at_once_are_neither_lost_nor_mixed_up(task: Path, tmp_path: Path) -> None:
    def one(number: int) -> Verdict:
        own = tmp_path / f"task-{number}"
        shutil.copytree(task, own)
        (own / "oracle" / "expected.txt").write_text(f"{number}\n")
        answer = number if number % 2 else -1
        return proctor(Task.from_folder(own), f"sh -c 'echo {answer} > answer.txt'", tmp_path / f"out-{number}")

    with ThreadPoolExecutor(4) as at_once:
        verdicts = list(at_once.map(one, range(8)))
    assert [verdict.passed for verdict in verdicts] == [bool(number % 2) for number in range(8)]
    assert [verdict.task_id for verdict in verdicts] == [f"task-{number}" for number in range(8)]


def test_attempts_are_recorded_by_tripwires_unless_the_task_lies_where_a_job_may_write(runs: Runs, task: Path) -> None:
    """They see what was asked for; a notification of a call sees what a thread may change behind it."""
    with tempfile.TemporaryDirectory(dir=pwd.getpwuid(os.geteuid()).pw_dir) as home:
        kept = shutil.copytree(task, f"{home}/task")
        apart = proctor(Task.from_folder(kept), HONEST, f"{home}/out").agents[0]
    expected = "tripwires" if host.has_fuse() else "open notification"
    assert expected in apart.enforced["hidden_paths"].details
    assert "open notification" in runs(HONEST).agents[0].enforced["hidden_paths"].details


@pytest.mark.parametrize("shut", [".", "sub/f sub", "sub/f sub .", "readme.txt sub ."])
def test_no_mode_keeps_what_an_agent_changed_out_of_the_diff(runs: Runs, shut: str) -> None:
    work = "echo 42 > answer.txt; mkdir sub; echo deep > sub/f; echo more >> readme.txt"
    verdict = runs(f"sh -c '{work}; chmod 0 {shut}'")
    told = _log(verdict, "final.diff")
    assert all(word in told for word in ("+42", "+deep", "+more")), told
    assert verdict.passed


def test_a_flood_of_attempts_is_ended_and_compromises(runs: Runs) -> None:
    """Not by the wall time, which is half an hour; few are not ended."""
    ask = "import itertools\nfor n in {}:\n try: open('/oracle/%d' % n)\n except OSError: pass\nprint('done')"
    few = runs(f'python3 -c "{ask.format("range(20)")}"', "few")
    assert few.status == "compromised" and _log(few) == "done\n"
    flood = runs(f'python3 -c "{ask.format("itertools.count()")}"')
    assert flood.status == "compromised" and not flood.passed and _log(flood) == ""
    assert len(flood.findings) >= 200
