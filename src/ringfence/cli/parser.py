"""Reads a command's arguments: argparse, but a mistake is reported in two lines, with the nearest valid word.

Loaded only if the command has no quicker reader, or that reader found something unknown.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn

from ringfence.errors import UsageError
from ringfence.model.system_text import escape_controls


class Parser(argparse.ArgumentParser):
    """For one command; its description is the module's docstring, its epilog the module's examples."""

    def __init__(self, program: str, module: object) -> None:
        super().__init__(
            prog=program,
            description=module.__doc__,
            epilog=getattr(module, "EXAMPLES", None),
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=_width()),
            allow_abbrev=False,
        )
        self._passes_on = getattr(module, "PASSES_ON", False)
        self._as_json = False

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments. For a command with PASSES_ON, ``passed_on`` has what follows ``--``."""
        own, passed_on = _split(words)
        self._as_json = "--json" in own
        if self._passes_on:
            words = own
        # Options may stand between paths, but not where the following words are not ours to read.
        mixed = "--" not in words and all(each.nargs != argparse.REMAINDER for each in self._get_positional_actions())
        found, unknown = (self.parse_known_intermixed_args if mixed else self.parse_known_args)(words)
        found.passed_on = passed_on
        if unknown:
            self.error(self._unknown(unknown))
        return found

    def _unknown(self, words: list[str]) -> str:
        options = [word.partition("=")[0] for word in words if word.startswith("-")]
        if not options:
            return f"too many arguments: {escape_controls(' '.join(words))}"
        nearest = did_you_mean(options[0], self._option_string_actions)
        return f"there is no option {escape_controls(options[0])}{nearest}"

    def error(self, message: str) -> NoReturn:
        hint = f"{self.prog} --help has the details"
        if self._as_json:
            from ringfence.cli.json_text import error_object, print_json

            print_json(error_object(UsageError(f"{self.prog}: {message}", hint=hint), 2))
        else:
            print(f"{self.prog}: {message}\n  {hint}", file=sys.stderr)
        sys.exit(2)


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words before the first ``--`` and those after it."""
    place = list(words).index("--") if "--" in words else len(words)
    return list(words[:place]), list(words[place + 1 :])


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean …?``, or nothing where nothing is near."""
    from difflib import get_close_matches

    near = get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _width() -> int:
    """Asked here because argparse would load shutil, with all its archive formats, to ask."""
    try:
        return min(os.get_terminal_size().columns, 110) - 2
    except OSError:
        return 98
