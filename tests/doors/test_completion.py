"""Shell completion and the manual page say what ``--help`` says, and shells read them."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests import packages
from tests.unit.source import nodes_of
from tests.unit.test_layers import MODULES

from ringfence.cli import main, man, setup
from ringfence.cli.command_words import PROGRAMS, commands_of
from ringfence.docker_sandbox import config_keys
from ringfence.model import state_folder
from ringfence.model.own import private_place

pytestmark = [pytest.mark.unmeasured]


def _printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main([*words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_and_option_is_completed(capsys: pytest.CaptureFixture[str], program: str, shell: str) -> None:
    text = _printed(capsys, "completion", shell, "--program", program)
    for command in commands_of(program):
        assert command.name in text
        for name in (name for word in command.words for name in word.names if name.startswith("--")):
            assert (f"-l {name[2:]} " if shell == "fish" else name) in text, (command.name, name)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_manual_has_every_option_with_its_help(capsys: pytest.CaptureFixture[str], program: str) -> None:
    text = _printed(capsys, "man", program).replace("\\-", "-").replace("\\e", "\\").replace("\\&", "")
    for command in commands_of(program):
        assert f".SS {program} {command.name}\n" in text
        for word in command.words:
            assert word.help in text and all(f"\\fB{name}\\fR" in text for name in word.names)


SECTIONS = ["NAME", "SYNOPSIS", "DESCRIPTION", "COMMANDS", "EXIT STATUS", "ENVIRONMENT", "FILES", "SEE ALSO"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_manual_has_the_sections_that_readers_of_manuals_look_for(
    capsys: pytest.CaptureFixture[str], program: str
) -> None:
    text = _printed(capsys, "man", program).replace("\\-", "-").replace("\\&", "")
    parts = dict(re.findall(r"^\.SH ([A-Z ]+)\n((?:(?!\.SH ).*\n)*)", text, re.MULTILINE))
    assert [*parts] == SECTIONS
    (run,) = (each for each in commands_of(program) if each.name == "run")
    codes = man.exit_codes(run)
    assert codes in run.examples and codes in parts["EXIT STATUS"] and "xit code" in codes and codes.endswith(".")
    assert all(f"\\fB{name}\\fR\n{told}\n" in parts["ENVIRONMENT"] for name, told in man.ENVIRONMENT.items())
    assert all(f"\\fB{name}\\fR\n{told}\n" in parts["FILES"] for name, told in man.FILES.items())
    assert f"{'proctor' if program == 'ringfence' else 'ringfence'} (1)" in parts["SEE ALSO"]


NOT_OF_COMMANDS = {
    "PROCTOR_CONFINE", "PROCTOR_INSTRUCTION", "PROCTOR_INSTRUCTION_FILE", "PROCTOR_REWARD_FILE", "PROCTOR_WORKSPACE",
    "RINGFENCE_CANARY", "RINGFENCE_CHANNEL", "RINGFENCE_PYTEST", "RINGFENCE_TEST_FOLDER",
}  # fmt: skip
"""What we set for jobs, graders and agents."""
OF_THE_LIBRARY = {"RINGFENCE_TOKEN"}


def test_the_manual_lists_every_variable_that_the_code_reads() -> None:
    named = re.compile(r"(?:RINGFENCE|PROCTOR)_[A-Z_]+[A-Z]|(?:DOCKER|CONTAINER)_HOST|XDG_STATE_HOME|TMPDIR")
    texts = (node.value for path in MODULES if path.stem != "man" for node in nodes_of(path)
             if isinstance(node, ast.Constant) and isinstance(node.value, str))  # fmt: skip
    found = {text for text in texts if named.fullmatch(text)}
    assert found - NOT_OF_COMMANDS - OF_THE_LIBRARY == {*man.ENVIRONMENT} - {"RINGFENCE_SECTION__KEY"}
    assert "RINGFENCE_SECTION__KEY".startswith(config_keys.PREFIX)


def test_the_manual_names_files_where_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("XDG_STATE_HOME", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    state = state_folder.state_folder().replace(str(tmp_path), "~")
    private = re.sub(r"-\d+$", "-UID", private_place.path())
    assert {*man.FILES} == {state, private, setup.PLACE}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(("line", "wanted", "unwanted"), [
    (["verify-r"], {"verify-release"}, {"run"}),
    (["run", "--mem"], {"--memory"}, {"--cpu"}),
    (["run", "--isolation", "str"], {"strict"}, {"process"}),
    (["run", "--", "bas"], {"bash"}, {"--memory"}),
    (["completion", ""], {"bash", "zsh", "fish"}, {"run", "a.yaml"}),
    (["setup", "a"], {"apparmor"}, {"a.yaml"}),
    (["setup", "apparmor", ""], {"--dry-run"}, {"a.yaml", "apparmor"}),
    (["policy", ""], {"show", "check", "--json"}, {"a.yaml"}),
    (["policy", "--json", "show", ""], {"a.yaml", "--json"}, {"show"}),
    (["run", "--policy", ""], {"a.yaml", "my file.yaml", "all*.yaml"}, {"my", "--cpu"}),
    (["validate", "my"], {"my file.yaml"}, {"my", "file.yaml"}),
    (["validate", "all"], {"all*.yaml", "all of it.yaml"}, {"a.yaml"}),
    (["run", "--", "my"], {"my file.yaml"}, {"my"}),
])  # fmt: skip
def test_bash_completes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: list[str], wanted: set[str], unwanted: set[str]
) -> None:
    for name in ("a.yaml", "my file.yaml", "all*.yaml", "all of it.yaml"):
        (tmp_path / name).touch()
    text = _printed(capsys, "completion", "bash")
    shown = 'printf "%s\\n" "${COMPREPLY[@]}"'
    asked = f'{text}\nCOMP_WORDS=(ringfence "$@"); COMP_CWORD=$#; _ringfence_complete; {shown}'
    command = ["bash", "--norc", "-c", asked, "bash", *line]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    found = set(done.stdout.splitlines())
    assert wanted <= found and not unwanted & found and not done.stderr


FISH = {"ringfence setup ": {"apparmor"}, "ringfence setup apparmor ": set(),
        "ringfence policy ": {"show", "check", "plan"}, "ringfence policy show ": {"a.yaml"},
        "ringfence config show --file ": {"a.yaml"}}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_read_it(capsys: pytest.CaptureFixture[str], tmp_path: Path, shell: str) -> None:
    path = packages.program(shell)
    text = _printed(capsys, "completion", shell)
    done = subprocess.run([path, "-n"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    if shell == "fish":
        asked = f"{text}\ncomplete -C 'ringfence run --mem'; complete -C 'ringfence verify-r'"
        told = subprocess.run([path, "--no-config", "-c", asked], capture_output=True, text=True, check=True).stdout
        assert "--memory\tmemory of the whole tree" in told and "verify-release\t" in told
        (tmp_path / "a.yaml").touch()
        for line, offered in FISH.items():
            command = [path, "--no-config", "-c", f"{text}\ncomplete -C '{line}'"]
            told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
            assert {each.split("\t")[0] for each in told.splitlines()} == offered, line
    else:
        assert "'1:show|check|plan:(show check plan)' '*:FILE:_files'" in text


@pytest.mark.skipif(shutil.which("man") is None, reason="needs man")
def test_man_reads_the_page_without_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    environment = {"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}
    for program in PROGRAMS:
        text = _printed(capsys, "man", program)
        done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-"], input=text, check=True,
                              capture_output=True, text=True, env=environment)  # fmt: skip
        assert done.stderr == "" and f"{program.upper()}(1)" in done.stdout and "the exit code" in done.stdout.lower()
