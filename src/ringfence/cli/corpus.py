"""Run the cheat corpus in a sandbox: cheats that win against a careless grader, and their honest twins."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator

from ringfence.corpus.play import Played
from ringfence.model.ways.walk import absolute

EXAMPLES = """\
examples:
  ringfence corpus
  ringfence corpus --only oracle --only skips/xfail
  ringfence corpus --runner ./my-sandbox.sh --jobs 4 --json

A runner is called as CMD TASK AGENT OUT: the directory of a task (workspace/, oracle/, grade.sh, instruction.md,
policy.yaml), the script of an agent, and an empty directory into which it writes result.json, such as
{"reward": 0.0, "recorded": true}.
The default is ringfence's own proctor. The exit code is 0 when all is as expected, else 1.
docs/reference/corpus.md has the details.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runner", metavar="CMD", help="what runs each case (default: proctor of this installation)")
    parser.add_argument("--only", metavar="CLASS", action="append", default=[], help="only this class or class/cheat")
    parser.add_argument("--jobs", metavar="N", type=int, help="how many at a time (default: one per processor)")
    parser.add_argument("--timeout", metavar="S", type=float, default=300.0, help="seconds for one run (default: 300)")
    parser.add_argument("--list", action="store_true", help="list the cheats and run nothing")
    parser.add_argument("--results", metavar="FILE", help="write the table as Markdown")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.corpus.cheats import chosen
    from ringfence.corpus.table import summary

    cheats = chosen(arguments.only)
    if arguments.list:
        for cheat in cheats:
            print(f"{cheat.title:<36}  {cheat.what}")
        return 0
    _check_folder(arguments.results)
    played = [*_played(arguments)]
    if arguments.results:
        _write(arguments.results, played)
    if arguments.json:
        _print_json(played)
    else:
        print(f"\n{summary(played)}")
    return 0 if all(each.held for each in played) else 1


def _played(arguments: argparse.Namespace) -> Iterator[Played]:
    """Play, and report each case as it ends: on stderr if stdout is read by a program."""
    from ringfence.corpus.cheats import chosen
    from ringfence.corpus.play import play_all
    from ringfence.corpus.table import line
    from ringfence.model.system_text import escape_controls

    for each in play_all(chosen(arguments.only), _runner(arguments.runner), _jobs(arguments.jobs), arguments.timeout):
        print(escape_controls(line(each)), file=sys.stderr if arguments.json else sys.stdout, flush=True)
        yield each


def _runner(command: str | None) -> tuple[str, ...]:
    from ringfence.corpus.play import OUR_RUNNER
    from ringfence.errors import UsageError

    words = OUR_RUNNER if command is None else tuple(shlex.split(command))
    if not words:
        raise UsageError("--runner is empty", hint="give a command to --runner, or omit it")
    return words


def _jobs(number: int | None) -> int:
    from ringfence.errors import UsageError

    if number is None:
        return os.cpu_count() or 1
    if number < 1:
        raise UsageError(f"--jobs {number}: must be 1 or more")
    return number


def _check_folder(results: str | None) -> None:
    """Check now, before minutes of work are lost because a directory is missing."""
    from ringfence.errors import UsageError

    if results and not os.access(os.path.dirname(absolute(results)), os.W_OK):
        raise UsageError(f"can't write to --results {results}", hint="create the directory first, or name another")


def _write(path: str, played: list[Played]) -> None:
    from ringfence.corpus.table import document
    from ringfence.model.own_files import write_whole

    write_whole(path, document(played).encode(), mode=0o644)


def _print_json(played: list[Played]) -> None:
    from ringfence.cli.json_text import print_json
    from ringfence.corpus.table import as_data

    print_json({"held": all(each.held for each in played), "cheats": [as_data(each) for each in played]})
