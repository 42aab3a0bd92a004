"""The quick readers of a command line say what argparse says, or leave it to argparse."""

from __future__ import annotations

from types import ModuleType

import pytest

from ringfence.cli import proctor_run, run
from ringfence.cli.parser import Parser

RUN, PROCTOR = (run, "ringfence run"), (proctor_run, "proctor run")
BOTH = ["--task", "t", "--agent", "my-agent --solve"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (RUN, ["--", "true"]),
        (RUN, ["--strict", "--memory", "256M", "--json", "--", "python3", "-c", "--json"]),
        (RUN, ["--isolation", "process", "--strict", "--commit", "--", "x"]),
        (RUN, ["--strict", "--isolation", "process", "--", "x"]),
        (RUN, ["--wall", "5", "--python", "script.py", "--its-own"]),
        (RUN, ["--env", "A=1", "--env", "B", "--readable", "/r", "--writable", "w", "--hidden", "h", "--", "x"]),
        (RUN, ["--isolation", "none", "--allow-partial", "--env", "", "--", "x", "--env", "Y"]),
        (RUN, ["true"]),
        (RUN, ["--quiet", "echo", "--memory", "--", "-1"]),
        (RUN, ["--python", "--wall", "5", "script.py", "--json"]),
        (PROCTOR, BOTH),
        (PROCTOR, [*BOTH, "--scaffold", "s", "--instructions", "i", "--scaffold", "t"]),
        (PROCTOR, [*BOTH, "--out", "o", "--policy", "p.yaml", "--json", "--no-env"]),
        (PROCTOR, [*BOTH, "--key", "k", "--nonce", "00", "--manifest", "m", "--agent-binary", "b"]),
        (PROCTOR, ["--agent", "a", "--task", "x", "--task", "y", "--signing-seed", "s"]),
        (PROCTOR, [*BOTH, "--key", ""]),
    ],
)
def test_a_plain_line_is_read_as_argparse_reads_it(command: tuple[ModuleType, str], words: list[str]) -> None:
    quick, slow = command[0].parse_quickly(words), _by_argparse(*command, words)
    assert quick is not None
    known = {name: value for name, value in slow.items() if name in vars(quick) or value not in (None, False, [], "")}
    assert {name: vars(quick).get(name) for name in known} == known


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (RUN, ["--help"]),
        (RUN, ["--memory=1M", "--", "x"]),
        (RUN, ["--memory", "-1", "--", "x"]),
        (RUN, ["", "x"]),
        (RUN, ["-x", "true"]),
        (RUN, ["--python"]),
        (PROCTOR, ["--task", "t"]),
        (PROCTOR, ["--task"]),
        (PROCTOR, [*BOTH, "--help"]),
        (PROCTOR, [*BOTH, "--scaffold"]),
        (RUN, ["--env", "-x", "--", "x"]),
        (RUN, ["--readable", "--", "x"]),
        (PROCTOR, [*BOTH, "--key", "k", "--signing-seed", "s"]),
        (PROCTOR, [*BOTH, "--key", "", "--signing-seed", "00"]),
        (PROCTOR, [*BOTH, "--signing-seed", "", "--key", "k"]),
        (PROCTOR, [*BOTH, "too", "many"]),
        (PROCTOR, [*BOTH, "--", "x"]),
        (PROCTOR, ["--task", "", "--agent", "a"]),
    ],
)
def test_all_else_is_left_to_argparse(command: tuple[ModuleType, str], words: list[str]) -> None:
    assert command[0].parse_quickly(words) is None


def _by_argparse(module: ModuleType, program: str, words: list[str]) -> dict[str, object]:
    parser = Parser(program, module)
    module.configure(parser)
    found = vars(parser.read(words))
    found.pop("passed_on")  # of commands that hand on what follows --
    return found
