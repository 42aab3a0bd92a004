"""Reads a command's arguments: argparse, with a mistake told in two lines and the nearest word that is right.

Loaded only where the command has no quicker reader, or that one has found something it does not know.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn


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

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        found, unknown = self.parse_known_args(words)
        if unknown:
            self.error(self._unknown(unknown))
        return found

    def _unknown(self, words: list[str]) -> str:
        options = [word.partition("=")[0] for word in words if word.startswith("-")]
        if not options:
            return f"too many arguments: {' '.join(words)}"
        return f"there is no option {options[0]}{did_you_mean(options[0], self._option_string_actions)}"

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}\n  {self.prog} --help tells more", file=sys.stderr)
        sys.exit(2)


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
