"""Print the manual page of ringfence or proctor, written from the same words as every --help."""

from __future__ import annotations

import argparse

TYPE_CHECKING = False
if TYPE_CHECKING:
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
            ".SH COMMANDS"]  # fmt: skip
    body = [line for command in commands_of(program) for line in _section(program, command)]
    return "\n".join([*head, *body]) + "\n"


def _section(program: str, command: Command) -> list[str]:
    lines = [f".SS {_text(f'{program} {command.name}')}"]
    lines += [line for part in command.description.split("\n\n") for line in (".PP", *map(_text, part.splitlines()))]
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
