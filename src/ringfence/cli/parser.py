"""Reads a command's arguments: argparse, but a mistake is reported in two lines, with the nearest valid word.

Loaded only if the command has no quicker reader, or that reader found something unknown.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from ringfence.errors import UsageError
from ringfence.model.system_text import escape_controls

_NO_GPU = "strict and container show a job no GPU"
_PASSED_ON = "leave it out: input and output are passed through"
_NO_PRIVILEGE = "leave it out: no option gives a job more privileges"
_ELSEWHERE: Mapping[str, tuple[str, str]] = {
    "--cpus": ("--cpu-share", "use --cpu-share CORES"),
    "--mem": ("--memory", "use --memory BYTES"),
    "-m": ("--memory", "use --memory BYTES"),
    "--pids-limit": ("--pids", "use --pids COUNT"),
    "--timeout": ("--wall", "use --wall SECONDS"),
    "--net": ("--network", "use --network RULE"),
    "-e": ("--env", "use --env NAME=TEXT"),
    "-v": ("--readable", "use --readable PATH, or --writable PATH"),
    "--volume": ("--readable", "use --readable PATH, or --writable PATH"),
    "--mount": ("--readable", "use --readable PATH, or --writable PATH"),
    "--ro-bind": ("--readable", "use --readable PATH"),
    "--bind": ("--writable", "use --writable PATH"),
    "--rm": ("--discard", "use --discard, which throws away what the job changed"),
    "-i": ("--discard", _PASSED_ON),
    "-t": ("--discard", _PASSED_ON),
    "-it": ("--discard", _PASSED_ON),
    "--gpu": ("--isolation", _NO_GPU),
    "--gpus": ("--isolation", _NO_GPU),
    "--device": ("--isolation", "strict and container show a job no device of the host"),
    "--privileged": ("--isolation", _NO_PRIVILEGE),
    "--cap-add": ("--isolation", _NO_PRIVILEGE),
    "-p": ("--network", "no option publishes a port; --network host shares the host's network"),
    "--publish": ("--network", "no option publishes a port; --network host shares the host's network"),
}
"""Options of Docker and others: an option that a command must have for the advice to fit, and the advice."""


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
        return f"there is no option {escape_controls(options[0])}{self._advice(options[0])}"

    def _advice(self, option: str) -> str:
        """What to use instead of an option that others have, else the nearest."""
        known = self._option_string_actions
        joined = option if option.startswith("--") else option[:2]  # -v/data:/data
        needed, advice = _ELSEWHERE.get(option) or _ELSEWHERE.get(joined) or ("", "")
        return f"; {advice}" if needed in known else did_you_mean(option, known)

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
