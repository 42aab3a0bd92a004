"""action.yml, by running its steps as GitHub's runner does: expressions are filled in, then bash runs what is left."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.examples import written

if sys.platform != "linux":
    pytest.skip("proctored runs need Linux", allow_module_level=True)

from ringfence.cli.github_action import words_of
from ringfence.errors import UsageError
from ringfence.evidence.keys import SigningKey

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS: dict[str, dict[str, Any]] = {step["name"]: step for step in ACTION["runs"]["steps"]}
KEY = SigningKey.from_seed_hex("07" * 32)
HOSTILE = "$(touch pwned) `touch pwned`; touch pwned #' \" && touch pwned"
_PYTHON = """#!/bin/sh
case " $* " in
*" -m venv "*) {python} "$@" --help > "$RUNNER_TEMP/help"
    for place; do :; done; mkdir -p "$place/bin"; cp "$0" "$place/bin/python" ;;
*" -m pip "*) {python} "$@" --help > "$RUNNER_TEMP/help" 2>&1
    printf '%s\\n' "$@" > "$RUNNER_TEMP/installed" ;;
*) exec {python} "$@" ;;
esac
"""
"""Instead of an installation the modules are asked for their help, so they are imported as they would be."""


class _Runner:
    """What a workflow has around the steps of an action."""

    def __init__(self, folder: Path, **inputs: str) -> None:
        self.folder, self.outputs = folder, dict[str, str]()
        self.inputs = {name: str(about.get("default", "")) for name, about in ACTION["inputs"].items()}
        self.inputs |= {name.replace("_", "-"): text for name, text in inputs.items()}
        (folder / "bin").mkdir(exist_ok=True)
        python = folder / "bin" / "python3"
        python.write_text(_PYTHON.format(python=sys.executable))
        python.chmod(0o755)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")},
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "RUNNER_TEMP": str(folder / "temp"),
            "GITHUB_SERVER_URL": "https://git.example", "GITHUB_OUTPUT": str(folder / "output"),
        }  # fmt: skip
        (folder / "temp").mkdir(exist_ok=True)
        (folder / "work").mkdir(exist_ok=True)

    def filled(self, text: str) -> str:
        return re.sub(r"\$\{\{ (\S+) \}\}", lambda match: self._value(match[1]), text)

    def _value(self, expression: str) -> str:
        room, _, name = expression.partition(".")
        if room == "inputs":
            return self.inputs[name]
        if room == "github":
            return {"action_repository": "owner/ringfence", "action_path": str(ROOT)}[name]
        assert expression.startswith("steps.run.outputs."), expression
        return self.outputs.get(expression.rpartition(".")[2], "")

    def step(self, name: str) -> subprocess.CompletedProcess[str]:
        step = STEPS[name]
        variables = {key: self.filled(str(value)) for key, value in step.get("env", {}).items()}
        folder = self.folder / "work" / self.filled(step.get("working-directory", "."))
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]], cwd=folder,
            env={**self.environment, **variables}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        self._read_outputs()
        return done

    def _read_outputs(self) -> None:
        path = Path(self.environment["GITHUB_OUTPUT"])
        lines = iter(path.read_text().splitlines() if path.exists() else [])
        for line in lines:
            name, _, mark = line.partition("<<")
            assert mark, line
            value = []
            while (each := next(lines)) != mark:
                value.append(each)
            self.outputs[name] = "\n".join(value)

    def not_pwned(self) -> None:
        assert not [*self.folder.rglob("pwned")]


def _task(folder: Path, does: str = "echo 42 > a") -> Path:
    for part in ("workspace", "oracle"):
        (folder / part).mkdir(parents=True)
    (folder / "workspace" / "do.sh").write_text(f"{does}\n")
    (folder / "oracle" / "e").write_text("42\n")
    (folder / "grade.sh").write_text('test "$(cat a)" = "$(cat /oracle/e)"\n')
    return folder


def _seed() -> str:
    return KEY.secret_bytes().decode().strip()


def test_the_action_has_the_inputs_and_outputs_that_workflows_know() -> None:
    assert [*ACTION["inputs"]] == [
        "run-args", "out", "signing-seed", "pubkey", "artifact-name", "upload", "proctor-ref", "working-directory",
        "proctor-version", "fail-on-compromised",
    ]  # fmt: skip
    assert [*ACTION["outputs"]] == ["pass", "verdict-status", "violations", "bundle-path", "reward"]


def test_no_input_is_ever_part_of_a_shells_text() -> None:
    for step in STEPS.values():
        assert "${{" not in step.get("run", ""), step["name"]
        assert step.get("shell", "bash") == "bash"


def test_no_key_is_uploaded_and_what_failed_is() -> None:
    upload = STEPS["Upload"]
    assert "!${{ steps.run.outputs.artifact-path }}/**/signing-seed.hex" in upload["with"]["path"].splitlines()
    assert "always()" in upload["if"]


def test_a_run_from_its_installation_to_its_outputs(tmp_path: Path) -> None:
    _task(tmp_path / "work" / "sub" / "task", "cat /oracle/e; echo 42 > a")
    args = "run --task ./task --agent 'sh ./do.sh'"
    runner = _Runner(tmp_path, run_args=args, working_directory="sub", signing_seed=_seed(), fail_on_compromised="true")
    assert runner.step("Install").returncode == 0
    assert (tmp_path / "temp" / "installed").read_text().split() == ["-I", "-m", "pip", "install", "--quiet", str(ROOT)]
    done = runner.step("Run")
    assert done.returncode == 0, done.stderr
    out = tmp_path / "work" / "sub" / "proctor-out"
    assert runner.outputs == {
        "artifact-path": str(out), "pass": "true", "verdict-status": "compromised", "violations": "1",
        "bundle-path": str(out / "bundle.json"), "reward": "",
    }  # fmt: skip
    assert json.loads((out / "verdict.json").read_text())["public_key"] == KEY.public_hex
    assert _seed() not in done.stdout + done.stderr
    lines = done.stdout.splitlines()
    token = lines[0].removeprefix("::stop-commands::")
    assert len(token) == 32 and lines[-1] == f"::{token}::"
    assert runner.step("Judge").returncode == 1
    runner.inputs["fail-on-compromised"] = "false"
    assert runner.step("Judge").returncode == 0
    runner.inputs["fail-on-compromised"] = "maybe"
    assert runner.step("Judge").returncode == 2


def test_the_steps_of_the_page_run_an_agent_and_hand_its_reward_on(tmp_path: Path) -> None:
    steps = yaml.safe_load(written("docs/reference/proctor/action.md", "- uses: OWNER"))
    given = {name.replace("-", "_"): value if isinstance(value, str) else json.dumps(value)
             for name, value in steps[0]["with"].items()}  # fmt: skip
    assert given["signing_seed"] == "${{ secrets.PROCTOR_SIGNING_SEED }}"
    runner = _Runner(tmp_path, **{**given, "signing_seed": _seed()})
    assert [*runner.inputs] == [*ACTION["inputs"]], "an input that the action does not have"
    agent = tmp_path / "bin" / "my-agent"
    agent.write_text('#!/bin/sh\ntest "$1" = --solve && echo 42 > a\n')
    agent.chmod(0o755)
    task = _task(tmp_path / "work" / "task")
    (task / "grade.sh").write_text('test "$(cat a)" = "$(cat /oracle/e)" && echo 0.5 > /logs/verifier/reward.txt\n')
    (task / "task.yaml").write_text("grader: {reward_file: /logs/verifier/reward.txt}\n")
    for name in ("Install", "Run", "Judge"):
        done = runner.step(name)
        assert done.returncode == 0, done.stderr
    assert steps[1]["env"] == {"REWARD": f"${{{{ steps.{steps[0]['id']}.outputs.reward }}}}"}
    environment = {**runner.environment, "REWARD": runner.outputs["reward"]}
    said = subprocess.run(["bash", "-e", "-c", steps[1]["run"]], env=environment, capture_output=True, check=True)
    assert said.stdout == b"0.5\n"


def test_a_suite_has_outputs_too(tmp_path: Path) -> None:
    for name in ("a", "b"):
        _task(tmp_path / "work" / "tasks" / name, "echo 42 > a" if name == "a" else "echo 41 > a")
    runner = _Runner(tmp_path, run_args='bench tasks --agent "sh ./do.sh" --jobs 2', out="o")
    runner.step("Install")
    done = runner.step("Run")
    assert done.returncode == 0, done.stderr
    assert {name: runner.outputs[name] for name in ("pass", "verdict-status", "violations", "reward")} == {
        "pass": "false", "verdict-status": "clean", "violations": "0", "reward": "0.5"}  # fmt: skip
    assert runner.outputs["bundle-path"] == str(tmp_path / "work" / "o" / "manifest.json")


@pytest.mark.parametrize("inputs", [
    {"run_args": f"run --task {HOSTILE}"},
    {"run_args": "run --task 'unfinished"},
    {"run_args": "keygen"},
    {"run_args": ""},
    {"run_args": "run --task t --agent true --signing-seed " + "0" * 64},
    {"run_args": "run --task t --agent true --out=elsewhere"},
    {"run_args": "run --task t --agent true", "out": "x\npass<<EOF\ntrue\nEOF"},
    {"run_args": "run --task t --agent true", "out": "-rf"},
    {"run_args": "run --task t --agent true", "out": ""},
    {"run_args": "run --task t --agent true", "signing_seed": HOSTILE},
    {"run_args": "run --task t --agent true", "pubkey": HOSTILE},
])  # fmt: skip
def test_hostile_inputs_of_the_run_are_words_and_nothing_more(tmp_path: Path, inputs: Mapping[str, str]) -> None:
    runner = _Runner(tmp_path, **inputs)
    assert runner.step("Install").returncode == 0
    done = runner.step("Run")
    assert done.returncode not in (0, 126, 127) and "Traceback" not in done.stderr, done.stderr
    assert "pass" not in runner.outputs
    runner.not_pwned()


@pytest.mark.parametrize("inputs", [
    {"proctor_version": HOSTILE}, {"proctor_version": "1.0 --index-url x"}, {"proctor_version": "0.1.0"},
    {"proctor_ref": "main", "proctor_version": "1.2.3"}, {"proctor_ref": HOSTILE},
    {"proctor_ref": "--upload-pack=touch pwned"}, {"proctor_ref": "a b"}, {"proctor_ref": "main#egg=x"},
    {"upload": "yes"}, {"upload": HOSTILE}, {"fail_on_compromised": "maybe"}, {"fail_on_compromised": HOSTILE},
])  # fmt: skip
def test_wrong_inputs_of_the_installation_install_nothing(tmp_path: Path, inputs: Mapping[str, str]) -> None:
    runner = _Runner(tmp_path, run_args="run", **inputs)
    assert runner.step("Install").returncode == 2
    assert not (tmp_path / "temp" / "installed").exists()
    runner.not_pwned()


@pytest.mark.parametrize("module", ["venv", "pip", "logging"])
def test_no_module_of_the_checkout_is_imported_by_the_installation(tmp_path: Path, module: str) -> None:
    runner = _Runner(tmp_path, run_args="run")
    (tmp_path / "work" / module).mkdir()
    for name in ("__init__.py", "__main__.py"):
        (tmp_path / "work" / module / name).write_text("open('pwned', 'w')\n")
    assert runner.step("Install").returncode == 0
    runner.not_pwned()


def test_a_ref_is_installed(tmp_path: Path) -> None:
    runner = _Runner(tmp_path, run_args="run", proctor_ref="v0.1.0")
    assert runner.step("Install").returncode == 0
    installed = (tmp_path / "temp" / "installed").read_text().split()[-1]
    assert installed == "git+https://git.example/owner/ringfence@v0.1.0"


def test_before_a_release_a_version_is_refused_in_words(tmp_path: Path) -> None:
    """A package of this name on an index is not this one."""
    done = _Runner(tmp_path, run_args="run", proctor_version="0.1.0").step("Install")
    assert done.returncode == 2 and "no release is published yet" in done.stderr


def test_a_verdict_of_another_key_has_no_outputs(tmp_path: Path) -> None:
    _task(tmp_path / "work" / "task")
    runner = _Runner(tmp_path, run_args="--task task --agent 'sh ./do.sh'", pubkey="1" * 64)
    runner.step("Install")
    done = runner.step("Run")
    assert done.returncode == 2 and "pass" not in runner.outputs
    assert runner.outputs["artifact-path"]
    runner.inputs["fail-on-compromised"] = "true"
    assert runner.step("Judge").returncode == 1


@pytest.mark.parametrize("args", ["run --task tasks/a --agent 'sh ./do.sh'", "bench tasks --agent 'sh ./do.sh'"])
def test_what_a_checkout_brings_along_is_no_verdict_of_this_run(tmp_path: Path, args: str) -> None:
    """Output directories are uploaded: anybody can put one that this key has signed into a branch."""
    _task(tmp_path / "work" / "tasks" / "a")
    runner = _Runner(tmp_path, run_args=args, signing_seed=_seed())
    runner.step("Install")
    assert runner.step("Run").returncode == 0 and runner.outputs.pop("pass") == "true"
    Path(runner.environment["GITHUB_OUTPUT"]).unlink()
    runner.outputs.clear()
    done = runner.step("Run")
    assert done.returncode == 2 and "already exists" in done.stderr and not runner.outputs


def test_words_are_split_as_a_shell_does_it() -> None:
    assert words_of("""--task 'a b' --agent "x \\"y\\" $HOME" """, "o") == [
        "run", "--task", "a b", "--agent", 'x "y" $HOME', "--out", "o"]  # fmt: skip
    with pytest.raises(UsageError, match="run-args"):
        words_of("rm -rf /", "o")


def test_a_python_that_is_too_old_is_named_before_anything_is_installed(tmp_path: Path) -> None:
    runner = _Runner(tmp_path, run_args="run")
    (tmp_path / "bin" / "python3").write_text('#!/bin/sh\ntest "$2" = -c && exit 1\necho Python 3.10.12\n')
    done = runner.step("Install")
    assert done.returncode == 2 and "python3 is Python 3.10.12, ringfence needs 3.11 or later" in done.stderr
