"""Ready agents are data: what a name resolves to, that no key is in it, and what the scripted agent does."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from ringfence.egress.request_rules import InspectedRule
from ringfence.errors import PolicyError, UnavailableError, UsageError
from ringfence.evidence.keys import SEED_VARIABLE
from ringfence.model.network_rule import NetworkRule
from ringfence.proctor.agent_run import files_of, words_of
from ringfence.proctor.agents.resolve import DOCUMENT, PLACEHOLDER, resolve
from ringfence.proctor.agents.table import AGENTS
from ringfence.proctor.task import Task

ROOT = Path(__file__).resolve().parents[3]
KEYS = {each.variable: f"key-of-{each.variable}" for row in AGENTS.values() for each in row.credentials}


@pytest.fixture
def task(tmp_path: Path) -> Task:
    folder = tmp_path / "t"
    (folder / "workspace").mkdir(parents=True)
    (folder / "grade.sh").write_text("true\n")
    (folder / "policy.yaml").write_text("version: 1\nnetwork: {mode: allowlist, allow: [pypi.org:443]}\n")
    return Task.from_folder(folder)


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_reaches_its_model_and_carries_no_key(name: str, task: Task) -> None:
    found = resolve(f"@{name}", task, KEYS)
    hosts = {rule.host for rule in found.task.policy.network}
    assert hosts == {"pypi.org", *(each.host for each in AGENTS[name].credentials), *AGENTS[name].hosts}
    assert PLACEHOLDER in found.command
    told = repr((found.command, found.documents, found.task.policy))
    assert not [value for value in KEYS.values() if value in told]
    assert words_of(found.command)[:2] == ("/bin/sh", "-c")
    assert all(page.startswith("https://") for page in AGENTS[name].documents)
    assert [rule.plain() for rule in found.task.policy.network[1:]] == found.documents[DOCUMENT]["network"]
    for rule in found.task.policy.network[1:]:
        assert rule.ports == ((443, 443),)
        assert NetworkRule.of(rule.plain()) == rule


@pytest.mark.system
def test_every_command_is_one_that_a_shell_can_read(task: Task) -> None:
    for name in AGENTS:
        subprocess.run(["/bin/sh", "-n", "-c", resolve(f"@{name}", task, KEYS).command], check=True)


def test_only_models_whose_key_is_there_are_reached(task: Task) -> None:
    found = resolve("@aider", task, {"OPENAI_API_KEY": "k", "AIDER_MODEL": "gpt", "OTHER": "x"})
    assert [rule.host for rule in found.task.policy.network] == ["pypi.org", "api.openai.com"]
    assert found.task.policy.env_allow == ("AIDER_MODEL",)
    rule = found.task.policy.network[1]
    sent = InspectedRule.of(rule, rule.host, 443, {"OPENAI_API_KEY": "k\n"}).inject
    assert sent is not None and (sent.header, sent.value) == ("authorization", b"Bearer k")
    twice = resolve("@codex", task, {"OPENAI_API_KEY": "k", "CODEX_API_KEY": "c"})
    (rule,) = twice.task.policy.network[1:]
    assert rule.inject is not None and rule.inject.from_env == "CODEX_API_KEY"


@pytest.mark.parametrize("have", [{}, {"ANTHROPIC_API_KEY": " "}, {"OPENAI_API_KEY": "k"}])
def test_without_a_key_there_is_no_run(task: Task, have: dict[str, str]) -> None:
    with pytest.raises(UnavailableError, match="ANTHROPIC_API_KEY"):
        resolve("@claude-code", task, have)


def test_an_unknown_name_is_told_with_those_that_there_are(task: Task) -> None:
    with pytest.raises(UsageError) as told:
        resolve("@clod", task, {})
    assert "@claude-code" in told.value.hint and "did you mean" not in str(told.value)
    for word, near in (("@claude", "@claude-code"), ("@opncode", "@opencode"), ("@gemni", "@gemini-cli")):
        with pytest.raises(UsageError, match=f"{word} is not a ready-made agent; did you mean {near}"):
            resolve(word, task, {})
    assert resolve("my-agent --solve", task, {}).command == "my-agent --solve"


def test_no_row_asks_for_the_key_that_signs() -> None:
    for row in AGENTS.values():
        assert SEED_VARIABLE not in (*row.settings, *row.placeholders, *(each.variable for each in row.credentials))


@pytest.mark.parametrize("scheme", ["Bearer ", "a\r\nb", "two words", 5])
def test_a_scheme_is_one_word(scheme: object) -> None:
    with pytest.raises(PolicyError):
        NetworkRule.of({"host": "a.example", "inject": {"header": "x", "from_env": "K", "scheme": scheme}})


def test_the_table_of_the_document_is_the_table() -> None:
    text = (ROOT / "docs" / "reference" / "proctor" / "agents.md").read_text()
    for name, row in AGENTS.items():
        line = next(line for line in text.splitlines() if line.startswith(f"| `@{name}` | {row.title} |"))
        assert all(f"`{each.variable}`" in line for each in row.credentials), name
        assert all(f"`{each}`" in line for each in row.settings), name


# ---- the scripted agent


@pytest.mark.system
def test_a_script_is_run_command_by_command(task: Task, tmp_path: Path) -> None:
    script = tmp_path / "steps.txt"
    lines = ("# not this", "", "export GONE=1", "echo ${GONE:-fresh}", "exit 7", "cat",
             "ls -l /proc/self/fd | grep -c steps", "false")  # fmt: skip
    script.write_text("\n".join(lines))
    command = resolve(f"@script:{script}", task).command
    ran = subprocess.run(shlex.split(command), input=b"the instruction\n", capture_output=True, check=False)
    assert ran.returncode == 1
    assert ran.stdout.decode().splitlines() == [
        "$ export GONE=1", "$ echo ${GONE:-fresh}", "fresh", "$ exit 7", "[7]", "$ cat", "the instruction",
        "$ ls -l /proc/self/fd | grep -c steps", "0", "[1]", "$ false", "[1]"]  # fmt: skip


def test_the_files_of_a_script_are_shown_to_the_agent(task: Task, tmp_path: Path) -> None:
    (tmp_path / "steps.txt").write_text("true\n")
    shown = files_of(resolve(f"@script:{tmp_path / 'steps.txt'}", task).command)
    assert {os.path.basename(path) for path in shown} == {"scripted.sh", "steps.txt"}
    (tmp_path / "my steps.txt").write_text("true\n")
    with pytest.raises(UsageError, match="spaces"):
        resolve(f"@script:{tmp_path / 'my steps.txt'}", task)
    with pytest.raises(UsageError, match="no such file"):
        resolve("@script:nothing.txt", task)
