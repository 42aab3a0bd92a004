"""Print the manual page of ringfence or proctor, written from the same words as every --help."""

from __future__ import annotations

import argparse
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ringfence.cli.command_words import Command, Word

EXAMPLES = """\
examples:
  ringfence man | man -l -                              read it
  ringfence man > ~/.local/share/man/man1/ringfence.1   then: man ringfence
  ringfence man proctor > ~/.local/share/man/man1/proctor.1
"""
_WHAT = {
    "ringfence": "run code you do not trust, undo what it did, and prove what happened",
    "proctor": "run an agent on a task without the answer, and sign what happened",
}
_DESCRIPTION = """\
Each command has its own options, which its section lists. COMMAND --help prints the same texts.

A limit that this host can't enforce is refused before anything starts.
"""

ENVIRONMENT: Mapping[str, str] = {
    "XDG_STATE_HOME": "the directory above the state; absent: ~/.local/state",
    "TMPDIR": "the directory above what runs use and remove themselves; absent: /tmp",
    "RINGFENCE_CGROUP": "the control group to use; no other is tried",
    "RINGFENCE_ENGINE": "the container engine: docker, podman, or the path of either",
    "DOCKER_HOST": "the address of Docker",
    "CONTAINER_HOST": "the address of Podman",
    "RINGFENCE_RUNTIME": "the engine's runtime, such as runsc; absent: the engine's default",
    "RINGFENCE_METRICS": "the directory where all processes count their runs, or on for this process alone",
    "RINGFENCE_PURE": "if it is set, the native parts are not used",
    "RINGFENCE_SECTION__KEY": "a key of the configuration of containers, such as RINGFENCE_DOCKER__MEMORY_LIMIT",
    "PROCTOR_SIGNING_SEED": "the seed that signs evidence, where no option names a key",
}
"""The variables that the commands read; a test compares them with the code."""
FILES: Mapping[str, str] = {
    "~/.local/state/ringfence": "the state: kept changes, recordings, and the key that seals them",
    "/tmp/ringfence-UID": "what runs use and remove themselves",
    "/etc/apparmor.d/ringfence": "the profile that ringfence setup apparmor writes",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", nargs="?", choices=tuple(_WHAT), default="ringfence",
                        help="the program (default: ringfence)")  # fmt: skip


def execute(arguments: argparse.Namespace) -> int:
    print(page(arguments.program), end="")
    return 0


def page(program: str) -> str:
    """Return the page as troff."""
    from ringfence import __version__
    from ringfence.cli.command_words import commands_of

    title = f'.TH {program.upper()} 1 "" "ringfence {__version__}" "User Commands"'
    head = [title, ".SH NAME", _text(f"{program} - {_WHAT[program]}"),
            ".SH SYNOPSIS", f".B {program}", _text("COMMAND …"), ".br", f".B {program}", _text("COMMAND --help"),
            ".SH DESCRIPTION", *_paragraphs(_DESCRIPTION), ".SH COMMANDS"]  # fmt: skip
    commands = commands_of(program)
    body = [line for command in commands for line in _section(program, command)]
    (codes,) = (exit_codes(command) for command in commands if command.name == "run")
    (other,) = (name for name in _WHAT if name != program)
    tail = [".SH EXIT STATUS", _text(f"Of {program} run:"), *_paragraphs(codes), ".PP",
            _text("Where another command has exit codes of its own, its section says so."),
            ".SH ENVIRONMENT", *_listed(ENVIRONMENT), ".SH FILES", *_listed(FILES),
            ".SH SEE ALSO", f".BR {other} (1)"]  # fmt: skip
    return "\n".join([*head, *body, *tail]) + "\n"


def exit_codes(command: Command) -> str:
    """Return what the help of a command says of its exit codes: one sentence."""
    found = re.search(r"(?:The e|E)xit code .*?\.(?=\s|$)", command.examples, re.DOTALL)
    return found[0] if found else ""


def _paragraphs(text: str) -> list[str]:
    return [line for part in text.split("\n\n") for line in (".PP", *map(_text, part.splitlines()))]


def _listed(rows: Mapping[str, str]) -> Iterable[str]:
    return (line for name, text in rows.items() for line in (".TP", f"\\fB{_text(name)}\\fR", _text(text)))


def _section(program: str, command: Command) -> list[str]:
    lines = [f".SS {_text(f'{program} {command.name}')}"]
    lines += _paragraphs(command.description)
    for word in command.words:
        lines += [".TP", _name(word), _text(word.help)]
    return [*lines, ".PP", ".nf", *map(_text, command.examples.splitlines()), ".fi"] if command.examples else lines


def _name(word: Word) -> str:
    value = f" \\fI{_text(word.value)}\\fR" if word.value else ""
    return ", ".join(f"\\fB{_text(name)}\\fR{value}" for name in word.names) or value.strip()


def _text(text: str) -> str:
    """Escape text for troff: hyphens stay copyable, and no line is taken for a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped
