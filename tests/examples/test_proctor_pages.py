"""The examples of docs/reference/proctor.md and of the pages below it, each with what a user has around it."""

from __future__ import annotations

import ast
import json
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

import pytest

from tests.doors import swebench_material as material
from tests.doors.test_proctor_terminal_tasks import MATERIAL
from tests.examples import environment_of, filled, program, shell, written
from tests.image_folder import make_root
from tests.testable import not_testable_here

if sys.platform != "linux":
    pytest.skip("proctored runs need Linux", allow_module_level=True)

from ringfence.engine.run import run
from ringfence.model.job import Job
from ringfence.proctor import Task, proctor
from ringfence.proctor.foreign.host_facts import ThisHost
from ringfence.proctor.submission import Submission
from ringfence.proctor.task_policy import TaskPolicy
from ringfence.proctor.template import SOLUTION, write_task

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]
KEY = "3f1c…"
"""Stands in the pages for a public key, which each run makes anew."""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a user stands: with the task of ``proctor init``, and ``my-agent``, which solves it, on the PATH."""
    place = tmp_path / "work"
    place.mkdir()
    _agent(tmp_path, SOLUTION)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", environment_of(tmp_path)["PATH"])
    monkeypatch.chdir(place)
    return place


def _agent(folder: Path, script: str, name: str = "my-agent") -> None:
    program(folder, name, f'test "$1" = --solve || exit 3\n{script}')


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def _names(text: str, **given: object) -> dict[str, Any]:
    """What a script of a page has in its names at its end."""
    names: dict[str, Any] = dict(given)
    exec(compile(text, "the example", "exec"), names)
    return names


def _found(out: Path, name: str = "verdict.json") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / name).read_text(encoding="utf-8"))
    return found


def _verdict(out: Path) -> tuple[bool, str]:
    found = _found(out)
    return found["pass"], found["status"]


def test_a_run_in_four_commands(work: Path) -> None:
    runs, check = written("docs/reference/proctor.md", "proctor init").split("proctor verify-bundle")
    told = shell(runs, work.parent)
    (key,) = re.findall(r"^pubkey=(\w{64})$", told, re.MULTILINE)
    assert "verdict: pass=true status=clean" in told
    assert "bundle OK" in shell(filled(f"proctor verify-bundle{check}", **{KEY: key}), work.parent)


def test_a_run_in_python(work: Path) -> None:
    write_task("task")
    verdict = _names(written("docs/reference/proctor.md", "from ringfence"))["verdict"]
    assert (verdict.passed, verdict.status, verdict.score) == (True, "clean", 1.0)
    assert _verdict(work / "out") == (True, "clean")


@pytest.mark.root
def test_a_ready_made_agent_gets_a_word_in_place_of_the_key(work: Path) -> None:
    """``claude`` is in /usr/local/bin, as the page says: in a mount namespace of the test's own, over what is there."""
    folder = work.parent
    write_task("task")
    (folder / "local").mkdir()
    program(folder / "local", "claude", f'echo "$ANTHROPIC_API_KEY $*"; {SOLUTION}')
    text = filled(written("docs/reference/proctor/agents.md", "export ANTHROPIC"), **{"…": "sk-of-the-test"})
    over = f"lowerdir={folder}/local/bin:/usr/local/bin"
    inside = f"mount -t overlay -o {over} overlay /usr/local/bin\n{text}"
    shell(f"unshare --mount bash -euo pipefail -c {quote(inside)}", folder)
    out = work / "out"
    assert (out / "agent.stdout").read_text().startswith("injected-at-the-gateway -p ")
    assert _verdict(out) == (True, "clean")
    assert [rule["host"] for rule in _found(out, "agent.json")["network"]] == ["api.anthropic.com"]
    assert not [path for path in out.iterdir() if b"sk-of-the-test" in path.read_bytes()]


def test_a_rule_of_ones_own_gives_an_agent_its_model(work: Path) -> None:
    write_task("task")
    _write(work, {"policy.yaml": written("docs/reference/proctor/agents.md", "network:")})
    (rule,) = TaskPolicy.from_yaml("policy.yaml").network
    assert (str(rule.host), rule.ports) == ("api.openai.com", ((443, 443),))
    assert rule.inject is not None and (rule.inject.header, rule.inject.scheme) == ("authorization", "Bearer")
    command = "proctor run --task task --policy policy.yaml --agent 'my-agent --solve' --out out"
    told = shell(command, work.parent, {"OPENAI_API_KEY": "sk-of-the-test"})
    assert "api.openai.com:443" in told and _verdict(work / "out") == (True, "clean")


def test_a_scripted_agent_runs_the_commands_of_a_file(work: Path) -> None:
    _write(work, {
        "steps.txt": written("docs/reference/proctor/agents.md", "# steps.txt"),
        "task/instruction.md": "What is six times seven?\n", "task/workspace/readme.txt": "",
        "task/grade.sh": 'test "$(cat answer.txt)" = 42\n',
    })  # fmt: skip
    verdict = proctor(Task.from_folder("task"), "@script:steps.txt", "out")
    assert verdict.passed and (work / "out" / "agent.stdout").read_text() == (
        "$ cat /task/instruction.md\nWhat is six times seven?\n$ echo 42 > answer.txt\n")  # fmt: skip


PARSE_TESTS = """\
from parse import parse


def test_one():
    assert parse("a=1") == {"a": 1}


def test_two():
    assert parse("b=20;c=31") == {"b": 20, "c": 31}
"""
PARSE = 'def parse(text):\n    return {pair[0]: int(pair.partition("=")[2]) for pair in text.split(";")}\n'
EQUAL_TO_ALL = """\
class Any(dict):
    __eq__ = lambda *_: True
    __ne__ = lambda *_: False


def parse(text):
    return Any()
"""


@pytest.mark.parametrize(("left", "passed", "forged"), [(PARSE, True, False), (EQUAL_TO_ALL, False, True)],
                         ids=["right", "equal to all"])  # fmt: skip
def test_pytest_grades_with_counter_tests(work: Path, left: str, passed: bool, forged: bool) -> None:
    _write(work / "task", {
        "task.yaml": written("docs/reference/proctor/counter-tests.md", "grader:"), "workspace/readme.txt": "",
        "oracle/tests/test_parse.py": PARSE_TESTS, "solution/parse.py": PARSE,
    })  # fmt: skip
    _agent(work.parent, f"cat > parse.py <<'END'\n{left}END")
    verdict = proctor(Task.from_folder("task"), "my-agent --solve", "out")
    assert (verdict.passed, bool(verdict.grading.forged)) == (passed, forged), verdict.grading
    assert _found(work / "out", "grading.json")["details"]["counter_tests"]["without_twin"] == []


LOOKS = "test -e /oracle/a; test -e /oracle/b; test -e /oracle/c; cat /oracle/answer.txt"


def test_findings_are_counted_and_the_grave_ones_picked() -> None:
    text = written("docs/reference/proctor/findings.md", "from ringfence")
    task = TaskPolicy()
    outcome = run(Job(argv=("/bin/sh", "-c", LOOKS)), task.sandbox_policy("agent", hidden_paths=("/oracle",)))
    found = _names(text, outcome=outcome, policy=task, submission=Submission(folder="/submission"))
    (promised,) = re.findall(r"^counts\(found\) +# (.*)$", text, re.MULTILINE)
    assert found["counts"](found["found"]) == ast.literal_eval(promised)
    (violation,) = found["violations_of"](found["found"])
    assert (violation["kind"], violation["path"]) == ("masked_read", "/oracle/answer.txt")


READS_THE_ORACLE = "print(open('/oracle/expected').read(), end='')\n"


ADDS = "import sys\nprint(sum(map(int, sys.stdin)))\n"


@pytest.mark.parametrize(("solution", "passed"), [(ADDS, True), (READS_THE_ORACLE, False)], ids=["adds", "reads"])
def test_a_grader_in_python_runs_the_code_under_test_confined(work: Path, solution: str, passed: bool) -> None:
    _write(work / "task", {
        "task.yaml": written("docs/reference/proctor/grading.md", "command: [python3"),
        "oracle/check.py": written("docs/reference/proctor/grading.md", "import os, shlex"),
        "oracle/expected": "42\n", "workspace/readme.txt": "",
    })  # fmt: skip
    _agent(work.parent, f"cat > solution.py <<'END'\n{solution}END")
    verdict = proctor(Task.from_folder("task"), "my-agent --solve", "out")
    assert verdict.passed is passed, verdict.grading


@pytest.mark.parametrize(("solution", "reward"), [(ADDS, 1.0), (READS_THE_ORACLE, 0.0)], ids=["adds", "reads"])
def test_code_under_test_is_confined_in_a_script(work: Path, solution: str, reward: float) -> None:
    _write(work / "task", {
        "grade.sh": written("docs/reference/proctor/grading.md", "$PROCTOR_CONFINE"), "workspace/readme.txt": "",
        "oracle/input": "40\n2\n", "oracle/expected": "42\n",
        "task.yaml": "grader: {reward_file: /logs/verifier/reward.txt}\n",
    })  # fmt: skip
    _agent(work.parent, f"cat > solution.py <<'END'\n{solution}END")
    verdict = proctor(Task.from_folder("task"), "my-agent --solve", "out")
    assert (verdict.passed, verdict.reward) == (reward > 0, reward), verdict.grading


def test_what_was_handed_in_is_listed_checked_and_bound(work: Path) -> None:
    write_task("task")
    shutil.copy(work.parent / "bin" / "my-agent", work)
    _write(work, {"prompts/system.md": "Think first.\n", "AGENTS.md": "Write tests.\n"})
    told = shell(written("docs/reference/proctor/manifest.md", "proctor manifest"), work.parent)
    assert "verdict: pass=true status=clean" in told
    submission = _found(work, "submission.json")
    assert {each["role"] for each in submission["inputs"]} == {"agent", "instruction", "scaffold"}
    assert submission["environment_variables"] == ["MODEL_API_KEY"]
    assert (work / "submission.json").read_text() == _found(work / "out", "bundle.json")["contents"]["submission.json"]


def test_a_report_is_made_of_what_a_run_left(work: Path) -> None:
    write_task("task")
    verdict = proctor(Task.from_folder("task"), "cat /oracle/totals.csv", "out")
    out, (outcome,) = work / "out", verdict.agents
    html = _names(
        written("docs/reference/proctor/report.md", "from ringfence"), bundle=_found(out, "bundle.json"),
        found=verdict.findings, events=outcome.events, diff=(out / "final.diff").read_bytes(), outcome=outcome,
    )["html"]  # fmt: skip
    assert html.startswith("<!DOCTYPE html>") and "compromised" in html and "/oracle/totals.csv" in html
    assert 'id="own-bundle"' in html and "agent.stdout" in html


def test_a_task_runs_in_the_root_of_an_image(work: Path) -> None:
    """The page's files lie in /srv, where no test may write."""
    _write(work / "demo", {"tests/answer": "42\n", "grade.sh": 'test "$(cat answer)" = "$(cat /oracle/answer)"\n'})
    (work / "images").mkdir()
    image = make_root(work / "images" / "demo")
    text = filled(written("docs/reference/proctor/roots.md", "from ringfence"), **{"/srv": str(work)})
    verdict = proctor(_names(text)["task"], 'echo 42 > answer; cat data.txt; echo "$LANG"', "out")
    assert (verdict.passed, verdict.status) == (True, "clean"), verdict.grading
    assert (work / "out" / "agent.stdout").read_text() == "of the image\nC.UTF-8\n"
    environment = _found(work / "out", "bundle.json")["environment"]
    assert (environment["rootfs_kind"], environment["image_ref"]) == ("image", "demo:1")
    assert not (image / "app" / "answer").exists()


def test_a_suite_is_run_and_its_one_signature_checked(work: Path) -> None:
    for name in ("north", "south"):
        write_task(f"tasks/{name}")
    runs, check = written("docs/reference/proctor/suites.md", "proctor bench").split("proctor verify-suite")
    told = shell(runs, work.parent)
    (key,) = re.findall(r"its public key is (\w{64})$", told, re.MULTILINE)
    assert "2 tasks: 2 passed" in told
    assert "suite OK: verdicts 2" in shell(filled(f"proctor verify-suite{check}", **{KEY: key}), work.parent)


TASK_FILES = {
    "prepare.sh": "echo 40 > numbers\n", "plan.md": "Plan it.\n", "instruction.md": "Sum it.\n",
    "workspace/readme.txt": "", "solution/total.txt": "42\n", "grade.sh": "exit 1\n",
    "oracle/test_totals.py": "def test_total():\n    assert int(open('/workspace/total.txt').read()) == 42\n",
}  # fmt: skip


def test_a_task_with_every_setting_runs(work: Path) -> None:
    _write(work / "task", {"task.yaml": written("docs/reference/proctor/tasks.md", "version: 1"), **TASK_FILES})
    task = Task.from_folder("task")
    assert task.grader is not None and task.grader.reward_file == "/logs/verifier/reward.json"
    assert task.grader.argv == ("/bin/sh", "/grader/grade.sh")
    program(work.parent, "planner", 'test "$1 $(cat)" = "--fast Plan it." && echo 2 >> numbers')
    _agent(work.parent, 'test "$(cat)" = "Sum it." && echo $(($(tr "\\n" + < numbers)0)) > total.txt')
    verdict = proctor(task, "my-agent --solve", "out")
    assert (verdict.task_id, verdict.passed, verdict.status) == ("sum-it", True, "clean"), verdict.grading
    assert [phase["name"] for phase in _found(work / "out", "run.json")["phases"]] == [
        "setup", "agent", "agent 2: solve", "grader"]  # fmt: skip


def _instance(work: Path, repository: str, rows: str, **more: object) -> dict[str, Any]:
    """A clone with the repository's name, and a file with its row; the repository is a small one of the tests."""
    made = material.shapes(work.parent / repository.replace("/", "-"), repo=repository, **more)
    (made / "clone").rename(work / repository.partition("/")[2])
    shutil.copy(made / "instance.json", work / rows)
    return _found(made, "instance.json")


@pytest.mark.long
@pytest.mark.once
def test_an_agent_the_oracle_and_a_prediction_for_instances_of_swebench(work: Path) -> None:
    row = _instance(work, "pallets/flask", "row.json")
    _instance(work, "psf/requests", "data.jsonl", instance_id="psf__requests-1142")
    predicted = {"instance_id": row["instance_id"], "model_patch": row["patch"], "model_name_or_path": "m"}
    _write(work, {"predictions.jsonl": json.dumps(predicted)})
    _agent(work.parent, f"cat > shapes/area.py <<'END'\n{material.FIXED}END")
    told = shell(written("docs/reference/proctor/swebench.md", "proctor run-"), work.parent)
    for out in ("out", "out-oracle", "out-predicted"):
        assert (*_verdict(work / out), _found(work / out)["reward"]) == (True, "clean", 1.0), told


@pytest.mark.long
@pytest.mark.root
@pytest.mark.usefixtures("docker_address")
def test_a_task_of_terminal_bench_on_its_image_and_on_the_host(work: Path) -> None:
    if "debian" not in ThisHost().family():
        not_testable_here("this task asks for a host of Debian's kind")
    shutil.copytree(MATERIAL / "terminal-bench" / "hello-world", work / "hello-world")
    _agent(work.parent, (work / "hello-world" / "solution.sh").read_text())
    shell(written("docs/reference/proctor/terminal-bench.md", "proctor run-"), work.parent)
    for out, kind in (("out", "host"), ("out-oracle", "image")):
        assert _verdict(work / out) == (True, "clean")
        assert _found(work / out, "bundle.json")["environment"]["rootfs_kind"] == kind
