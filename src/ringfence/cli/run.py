"""Run a command under a policy: its input, output, signals and exit code are passed through.

The job sees the current directory, the system's directories and the Python that ringfence runs on. It has no network,
and what it changes is kept in a layer.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

from ringfence.cli.attached import exit_code, need_layer, print_result, run_attached
from ringfence.cli.policy_flags import LIST_FLAGS, VALUE_FLAGS, add_policy_flags, policy_from
from ringfence.cli.quick_words import QuickFlags, read_quickly
from ringfence.cli.state_folder import current_folder, new_place
from ringfence.engine.run import traits_of
from ringfence.errors import UsageError
from ringfence.model.job import Job
from ringfence.model.limits import IsolationLevel
from ringfence.model.paths import within
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace
from ringfence.model.ways.walk import real, walk

EXAMPLES = """\
examples:
  ringfence run -- python3 script.py
  ringfence run --memory 256M --wall 10 -- ./solver < input.txt
  ringfence run --policy policy.yaml --json -- make test
  ringfence run -- ./generate.py                    its changes are kept; see: ringfence sandboxes
  ringfence run --commit -- ./generate.py
  ringfence run --ask -- ./generate.py
  ringfence run --transaction 3f2a -- make test     continues where that one ended
  ringfence run --readable ~/data --python script.py --its-own-flag argument
  ringfence run --interpreter .venv/bin/python --python script.py
  ringfence run --bundle ../evidence.json -- make   signed evidence of the run; docs/explanation/bundle.md
  ringfence run --root rootfs -- sh -c 'ls /'       a directory is the job's root; what it changes there is kept
  ringfence run --isolation process -- make         limits only: the job reads and writes what you can

All of the current directory is shown, and there is no network unless --network names a host.
A directory that was there before can't be renamed in one step: git mv DIR says «cross-device link»
(use mv, then git add -A), and git clone . needs --no-hardlinks. docs/reference/programs.md has the rest.
Ctrl-Z suspends the job and everything it started; fg continues it. The deadline keeps running.

The exit code is the command's own, or 124 (deadline), 152 (processor time), 137 (memory, killed),
143 (terminated), 159 (forbidden system call), 126/127 (can't be executed, not found),
2 (ringfence could not do what you asked), 1 (ringfence failed).
"""


TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


DECISIONS = ("commit", "discard", "ask")
SWITCHES = {f"--{name}": name for name in ("json", "quiet", "python", "usage", *DECISIONS)}
SWITCHES |= {"--here-anyway": "here_anyway"}
VALUES = VALUE_FLAGS | {"--transaction": "transaction", "--usage-file": "usage_file", "--interpreter": "interpreter"}
VALUES |= {"--bundle": "bundle", "--signing-seed": "signing_seed", "--key": "key"}
CONSTANTS = {"--strict": ("isolation", "strict"), "--allow-partial": ("allow_partial", True)}
FLAGS = QuickFlags(switches=SWITCHES, values=VALUES, constants=CONSTANTS, lists=LIST_FLAGS)


def configure(parser: argparse.ArgumentParser) -> None:
    from ringfence.cli.interpreter import HELP as INTERPRETER_HELP

    add_policy_flags(parser, "strict")
    parser.add_argument("--json", action="store_true", help="print only the result, as JSON")
    parser.add_argument("--quiet", action="store_true",
                        help="print nothing about the run on stderr, not even the ID of kept changes")  # fmt: skip
    changes = parser.add_mutually_exclusive_group()
    changes.add_argument("--commit", action="store_true", help="apply what the job changed (strict)")
    changes.add_argument("--discard", action="store_true", help="discard what the job changed (strict)")
    changes.add_argument("--ask", action="store_true", help="show what the job changed, and ask (strict)")
    parser.add_argument("--transaction", metavar="ID", help="resume a kept sandbox (sets a checkpoint first)")
    parser.add_argument("--python", action="store_true",
                        help="the command is a Python file and its arguments; - is stdin")  # fmt: skip
    parser.add_argument("--interpreter", metavar="PYTHON", help=f"with --python: {INTERPRETER_HELP}")
    parser.add_argument("--here-anyway", action="store_true",
                        help="show the current directory even if it is a home directory or /etc")  # fmt: skip
    parser.add_argument("--usage", action="store_true", help="record what the job uses over time; see ringfence usage")
    parser.add_argument("--usage-file", metavar="FILE", help="the same, into this file")
    parser.add_argument("--bundle", metavar="FILE", help="write signed evidence of the run to this new file")
    parser.add_argument("--signing-seed", metavar="HEX",
                        help="sign with this seed (default: PROCTOR_SIGNING_SEED, else signing-seed.hex beside the "
                             "bundle, created if missing)")  # fmt: skip
    parser.add_argument("--key", metavar="FILE", help="sign with a key file made by keygen")
    parser.add_argument("command", nargs="...", metavar="-- COMMAND …", help="the program and its arguments")


def parse_quickly(words: list[str]) -> SimpleNamespace | None:
    """Read ``--flag value … -- command``, the same without ``--``, or with ``--python FILE …``."""
    found = SimpleNamespace(allow_partial=None)
    found.command = read_quickly(words, found, FLAGS, last="--python")
    decided = sum(getattr(found, name) for name in DECISIONS) > 1
    return found if found.command and not decided else None


def execute(arguments: argparse.Namespace | SimpleNamespace) -> int:
    command, policy = _asked(arguments)
    interactive = not arguments.json and os.isatty(0) and os.isatty(1)
    here = policy.root or current_folder()
    job = Job(argv=tuple(command), cwd=here, stdin=0, terminal=interactive, stderr_apart=not os.isatty(2))
    if arguments.transaction or arguments.ask:
        from ringfence.cli import after_run

        return after_run.execute(arguments, job, policy)
    for flag in ("commit", "discard"):
        if getattr(arguments, flag):
            need_layer(policy, f"--{flag}")
    keep = new_place() if traits_of(policy.isolation).has_layer and not arguments.discard else ""
    outcome = run_attached(arguments, job, policy, commit=arguments.commit, keep=keep)
    if outcome.transaction:
        from ringfence.cli import after_run

        outcome = after_run.register(outcome, job, policy)
    print_result(arguments, outcome)
    return exit_code(arguments, outcome)


def _asked(arguments: argparse.Namespace | SimpleNamespace) -> tuple[list[str], SandboxPolicy]:
    """What to run, and under which policy."""
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise UsageError("no command was given", hint="ringfence run -- PROGRAM ARGUMENTS…")
    policy = policy_from(arguments, IsolationLevel.STRICT)
    if policy.root and (arguments.here_anyway or arguments.python):
        raise UsageError("with --root, neither the current directory nor this Python is shown",
                         hint="name what the job reads: --readable PATH")  # fmt: skip
    if arguments.here_anyway and traits_of(policy.isolation).files_apart:
        policy = replace(policy, readable_paths=(*policy.readable_paths, real(current_folder())))
    if arguments.python:
        return _python(command, policy, arguments.interpreter)
    if arguments.interpreter:
        raise UsageError("--interpreter needs --python", hint="ringfence run --interpreter PYTHON --python FILE …")
    return command, policy


def _python(command: list[str], policy: SandboxPolicy, interpreter: str | None) -> tuple[list[str], SandboxPolicy]:
    """As ``python FILE …``. A sandbox that shows only the current directory gets this one file too."""
    from ringfence.cli.interpreter import chosen

    file, *words = command
    if file != "-" and not os.path.isfile(file):
        problem = "is not a plain file" if os.path.lexists(file) else "no such file"
        raise UsageError(f"{file}: {problem}", hint="for code on standard input: ringfence run --python -")
    way, here = walk(file), real(current_folder())
    if file != "-" and traits_of(policy.isolation).files_apart and not within(way.end, here):
        if any(within(link, here) for link in way.links):
            raise UsageError(f"{file} points to {way.end} through a link in {here}, which anybody may have made",
                             hint=f"if you mean that file, name it: {way.end}")  # fmt: skip
        policy = replace(policy, readable_paths=(*policy.readable_paths, way.end))
        file = way.end
    if file[:1] == "-" and file != "-":
        file = f"./{file}"  # else Python takes the name for an option
    return [chosen(interpreter), file, *words], policy
