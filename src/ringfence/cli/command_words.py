"""Every command with its options, arguments and their help as data, taken from the parsers behind ``--help``.

Completion and the manual are written from it, so both agree with ``--help``.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from importlib import import_module
from typing import NamedTuple

from ringfence.cli import COMMANDS, PROCTOR_COMMANDS
from ringfence.cli.parser import Parser

PROGRAMS: Mapping[str, Mapping[str, tuple[str, str]]] = {"ringfence": COMMANDS, "proctor": PROCTOR_COMMANDS}


class Word(NamedTuple):
    """An option, or a positional argument."""

    names: tuple[str, ...]
    """Empty: it is not an option."""
    value: str
    """What its value is called; empty: it takes none."""
    choices: tuple[str, ...]
    help: str


class Command(NamedTuple):
    """One command of a program."""

    name: str
    line: str
    """What it does, in one line."""
    description: str
    examples: str
    words: tuple[Word, ...]


def commands_of(program: str) -> list[Command]:
    """Return all commands of a program, in the order of its help."""
    return [_command(program, name, module, line) for name, (module, line) in PROGRAMS[program].items()]


def _command(program: str, name: str, module_name: str, line: str) -> Command:
    module = import_module(f"ringfence.cli.{module_name}")
    parser = Parser(f"{program} {name}", module)
    module.configure(parser)
    words = tuple(_word(action, parser.prog) for action in parser._actions if action.help != argparse.SUPPRESS)
    examples = (parser.epilog or "") % {"prog": parser.prog} if parser.epilog else ""
    return Command(name, line, (parser.description or "").strip(), examples.strip(), words)


def _word(action: argparse.Action, program: str) -> Word:
    choices = tuple(map(str, action.choices or ())) or _braced(action.metavar)
    takes = action.nargs != 0
    shown = action.metavar or ("|".join(choices) if choices else action.dest.upper())
    value = (shown if isinstance(shown, str) else " ".join(shown)) if takes else ""
    told = (action.help or "") % {**vars(action), "prog": program} if action.help else ""
    return Word(tuple(action.option_strings), value, choices, " ".join(told.split()))


def _braced(metavar: object) -> tuple[str, ...]:
    """The allowed words, where the command checks them itself: {a,b}."""
    braced = isinstance(metavar, str) and metavar.startswith("{") and metavar.endswith("}")
    return tuple(str(metavar)[1:-1].split(",")) if braced else ()
