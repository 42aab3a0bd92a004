"""Run a command under a policy: its input, output, signals and exit code are passed through."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

from ringfence.cli.policy_flags import VALUE_FLAGS, add_policy_flags, policy_from
from ringfence.engine.run import run
from ringfence.errors import SetupError, UsageError
from ringfence.model.job import Job
from ringfence.model.limits import IsolationLevel
from ringfence.model.outcome import Outcome, Status
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace

EXAMPLES = """\
examples:
  ringfence run -- python3 script.py
  ringfence run --memory 256M --wall 10 -- ./solver < input.txt
  ringfence run --policy policy.yaml --json -- make test
  ringfence run --strict --commit -- ./generate.py
  ringfence run --strict --python script.py --its-own-flag argument

The exit code is the command's own, or 124 (deadline), 152 (processor time), 137 (memory, killed),
143 (terminated), 159 (forbidden system call), 126/127 (can't be executed, not found),
2 (ringfence could not do what you asked), 1 (ringfence failed).
"""


TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

SWITCHES = {"--json": "json", "--quiet": "quiet", "--commit": "commit", "--python": "python"}


def configure(parser: argparse.ArgumentParser) -> None:
    add_policy_flags(parser)
    parser.add_argument("--json", action="store_true", help="print the whole result as JSON, nothing else")
    parser.add_argument("--quiet", action="store_true", help="no word on stderr about limits that were hit")
    parser.add_argument("--commit", action="store_true", help="keep what it changed in the current folder (strict)")
    parser.add_argument("--python", action="store_true",
                        help="the command is a Python file and its arguments; - is stdin")  # fmt: skip
    parser.add_argument("command", nargs="...", metavar="-- COMMAND …")


def parse_quickly(words: list[str]) -> SimpleNamespace | None:
    """Read ``--flag value … -- command``, or the same with ``--python FILE …``, without argparse, which takes longer
    to load than a small job takes to run. Anything else (help, mistakes, rarer flags) is left to argparse: None.
    """
    found = SimpleNamespace(env=[], allow_partial=None, **dict.fromkeys(SWITCHES.values(), False))
    vars(found).update(dict.fromkeys(VALUE_FLAGS.values()))
    place = 0
    while place < len(words) and words[place] != "--":
        word = words[place]
        if word == "--strict":
            found.isolation = "strict"
            place += 1
        elif word in SWITCHES:
            setattr(found, SWITCHES[word], True)
            place += 1
            if word == "--python" and words[place : place + 1] and not words[place].startswith("-"):
                break
        elif word in VALUE_FLAGS and place + 1 < len(words) and not words[place + 1].startswith("-"):
            setattr(found, VALUE_FLAGS[word], words[place + 1])
            place += 2
        else:
            return None
    found.command = words[place:]
    return found if found.command else None


def execute(arguments: argparse.Namespace | SimpleNamespace) -> int:
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise UsageError("no command was given", hint="ringfence run -- PROGRAM ARGUMENTS…")
    policy = policy_from(arguments)
    if arguments.python:
        command, policy = _python(command, policy)
    interactive = not arguments.json and os.isatty(0) and os.isatty(1)
    job = Job(argv=tuple(command), cwd=os.getcwd(), stdin=0, terminal=interactive)
    from ringfence.cli.passthrough import Passthrough, write_through

    try:
        with Passthrough(job) as passthrough:
            on_output = None if arguments.json else write_through
            outcome = run(job, policy, on_output=on_output, attach=passthrough.attach, commit=arguments.commit)
    except SetupError as error:
        error.exit_code = _exec_code(error)  # type: ignore[attr-defined]
        raise
    _tell(arguments, outcome)
    return outcome.rc


def _python(command: list[str], policy: SandboxPolicy) -> tuple[list[str], SandboxPolicy]:
    """As ``python FILE …``. A sandbox that shows nothing but the current folder is shown this one file, too."""
    file, *words = command
    if file != "-" and not os.path.isfile(file):
        problem = "is not a plain file" if os.path.lexists(file) else "no such file"
        raise UsageError(f"{file}: {problem}", hint="a program that is not in a file: ringfence run --python - < it")
    path = os.path.realpath(file)
    here = os.path.realpath(os.getcwd())
    if file != "-" and policy.isolation is IsolationLevel.STRICT and os.path.commonpath((path, here)) != here:
        policy = replace(policy, readable_paths=(*policy.readable_paths, path))
        file = path
    return [sys.executable, file, *words], policy


def _exec_code(error: SetupError) -> int:
    """As shells have it: 127 when there is no such program, 126 when it can't be executed."""
    if error.step != "exec":
        return 1
    return 127 if "No such file" in str(error) else 126


def _tell(arguments: argparse.Namespace | SimpleNamespace, outcome: Outcome) -> None:
    if arguments.json:
        import json

        print(json.dumps(outcome.to_dict(), indent=2, default=str))
    elif not arguments.quiet:
        for line in explain(outcome):
            print(line, file=sys.stderr)


def explain(outcome: Outcome) -> list[str]:
    """One line for people: what ended the job and what would raise it. Nothing to say: no line."""
    from ringfence.model.limits import LIMIT_OF

    lines = []
    if outcome.status not in (Status.OK, Status.FAILED):
        raises = [LIMIT_OF[name].flag for name in outcome.limits_hit if name in LIMIT_OF]
        advice = f". Raise it with {' or '.join(raises)}" if raises else ""
        lines.append(f"ringfence: {outcome.status}: {outcome.reason}{advice}")
    elif outcome.stdout_dropped or outcome.stderr_dropped:
        lines.append(f"ringfence: {outcome.reason}. Raise it with --output")
    if outcome.changes:
        lines.append(f"ringfence: {_changes(outcome)}")
    if outcome.partial:
        missing = [name for name, entry in outcome.enforced.items() if not entry.applied]
        lines.append(f"ringfence: PARTIAL_ENFORCEMENT: not applied: {', '.join(missing)}")
    return lines


def _changes(outcome: Outcome) -> str:
    """``2 files changed: a, b``, and what became of them."""
    names = [ascii(change.path)[1:-1] for change in outcome.changes[:3]]
    more = ", …" if len(outcome.changes) > 3 else ""
    count = len(outcome.changes)
    fate = "kept" if outcome.committed else "thrown away; keep it with --commit"
    return f"{count} {'path' if count == 1 else 'paths'} changed: {', '.join(names)}{more} ({fate})"
