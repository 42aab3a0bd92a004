"""Run a command under a policy: its input, output, signals and exit code are passed through."""

from __future__ import annotations

import os
import sys
from _collections_abc import Iterable, Sequence
from types import SimpleNamespace

from ringfence.cli.policy_flags import VALUE_FLAGS, add_policy_flags, policy_from
from ringfence.cli.state_folder import current_folder, new_place
from ringfence.engine.run import NOT_CARRIED_OVER, NOT_KEPT, run, transaction_kind
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
  ringfence run --strict -- ./generate.py                    its changes are kept; see: ringfence sandboxes
  ringfence run --strict --commit -- ./generate.py
  ringfence run --strict --ask -- ./generate.py
  ringfence run --strict --transaction 3f2a -- make test     goes on where that one ended
  ringfence run --strict --python script.py --its-own-flag argument

The exit code is the command's own, or 124 (deadline), 152 (processor time), 137 (memory, killed),
143 (terminated), 159 (forbidden system call), 126/127 (can't be executed, not found),
2 (ringfence could not do what you asked), 1 (ringfence failed).
"""


TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from ringfence.checkpoint.transaction import Transaction
    from ringfence.cli.usage_recording import Recording

DECISIONS = ("commit", "discard", "ask")
SWITCHES = {f"--{name}": name for name in ("json", "quiet", "python", "usage", *DECISIONS)}
VALUES = VALUE_FLAGS | {"--transaction": "transaction", "--usage-file": "usage_file"}


def configure(parser: argparse.ArgumentParser) -> None:
    add_policy_flags(parser)
    parser.add_argument("--json", action="store_true", help="print the whole result as JSON, nothing else")
    parser.add_argument("--quiet", action="store_true", help="no word on stderr about limits that were hit")
    deciding = parser.add_mutually_exclusive_group()
    deciding.add_argument("--commit", action="store_true", help="carry over what it changed (strict)")
    deciding.add_argument("--discard", action="store_true", help="throw away what it changed (strict)")
    deciding.add_argument("--ask", action="store_true", help="show what it changed, and ask (strict)")
    parser.add_argument("--transaction", metavar="ID", help="go on in a kept sandbox, with a checkpoint before")
    parser.add_argument("--python", action="store_true",
                        help="the command is a Python file and its arguments; - is stdin")  # fmt: skip
    parser.add_argument("--usage", action="store_true", help="record what it uses over time; see ringfence usage")
    parser.add_argument("--usage-file", metavar="FILE", help="the same, into this file")
    parser.add_argument("command", nargs="...", metavar="-- COMMAND …", help="the program and its arguments")


def parse_quickly(words: list[str]) -> SimpleNamespace | None:
    """Read ``--flag value … -- command``, or the same with ``--python FILE …``, without argparse, which takes longer
    to load than a small job takes to run. Anything else (help, mistakes, rarer flags) is left to argparse: None.
    """
    found = SimpleNamespace(env=[], allow_partial=None, **dict.fromkeys(SWITCHES.values(), False))
    vars(found).update(dict.fromkeys(VALUES.values()))
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
        elif word in VALUES and place + 1 < len(words) and not words[place + 1].startswith("-"):
            setattr(found, VALUES[word], words[place + 1])
            place += 2
        else:
            return None
    found.command = words[place:]
    decided = sum(getattr(found, name) for name in DECISIONS) > 1
    return found if found.command and not decided else None


def execute(arguments: argparse.Namespace | SimpleNamespace) -> int:
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise UsageError("no command was given", hint="ringfence run -- PROGRAM ARGUMENTS…")
    policy = policy_from(arguments)
    if arguments.python:
        command, policy = _python(command, policy)
    interactive = not arguments.json and os.isatty(0) and os.isatty(1)
    job = Job(argv=tuple(command), cwd=current_folder(), stdin=0, terminal=interactive, stderr_apart=not os.isatty(2))
    if arguments.transaction or arguments.ask:
        from ringfence.cli import deciding

        return deciding.execute(arguments, job, policy)
    if arguments.discard:
        need_layer(policy, "--discard")
    keep = new_place() if policy.isolation is IsolationLevel.STRICT and not arguments.discard else ""
    outcome = lead(arguments, job, policy, commit=arguments.commit, keep=keep)
    if outcome.transaction:
        from ringfence.cli import deciding

        outcome = deciding.named(outcome, job, policy)
    tell(arguments, outcome)
    return outcome.rc or int(NOT_CARRIED_OVER in outcome.reason)


def need_layer(policy: SandboxPolicy, flag: str) -> None:
    if transaction_kind(policy) != "overlay":
        raise UsageError(f"{flag} needs isolation strict: else the current folder itself is written",
                         hint="add --strict")  # fmt: skip


def lead(
    arguments: argparse.Namespace | SimpleNamespace,
    job: Job,
    policy: SandboxPolicy,
    *,
    commit: bool = False,
    keep: str = "",
    transaction: Transaction | None = None,
) -> Outcome:
    """Run it with everything passed through."""
    from ringfence.cli.passthrough import Passthrough, write_through

    on_output = None if arguments.json else write_through
    recording = _recording(arguments, job, policy) if arguments.usage or arguments.usage_file else None
    try:
        with Passthrough(job) as passthrough:
            attach = recording.attaching(passthrough.attach) if recording else passthrough.attach
            outcome = run(job, policy, on_output=on_output, attach=attach, commit=commit, keep=keep,
                          transaction=transaction)  # fmt: skip
        if recording:
            recording.finish(outcome, quiet=arguments.quiet)
        return outcome
    except SetupError as error:
        error.exit_code = _exec_code(error)  # type: ignore[attr-defined]
        raise
    finally:
        if recording:
            recording.close()


def _recording(arguments: argparse.Namespace | SimpleNamespace, job: Job, policy: SandboxPolicy) -> Recording:
    from ringfence.cli.usage_recording import Recording, new_file

    return Recording(arguments.usage_file or new_file(), job.argv, policy)


def _python(command: list[str], policy: SandboxPolicy) -> tuple[list[str], SandboxPolicy]:
    """As ``python FILE …``. A sandbox that shows nothing but the current folder is shown this one file, too."""
    file, *words = command
    if file != "-" and not os.path.isfile(file):
        problem = "is not a plain file" if os.path.lexists(file) else "no such file"
        raise UsageError(f"{file}: {problem}", hint="a program that is not in a file: ringfence run --python - < it")
    path = os.path.realpath(file)
    here = os.path.realpath(current_folder())
    if file != "-" and policy.isolation is IsolationLevel.STRICT and os.path.commonpath((path, here)) != here:
        policy = replace(policy, readable_paths=(*policy.readable_paths, path))
        file = path
    if file[:1] == "-" and file != "-":
        file = f"./{file}"  # else Python takes the name for an option
    return [sys.executable, file, *words], policy


def _exec_code(error: SetupError) -> int:
    """As shells have it: 127 when there is no such program, 126 when it can't be executed."""
    if error.step != "exec":
        return 1
    return 127 if "No such file" in str(error) else 126


def tell(arguments: argparse.Namespace | SimpleNamespace, outcome: Outcome) -> None:
    if arguments.json:
        from ringfence.cli.json_text import print_json

        print_json(outcome.to_dict())
    elif not arguments.quiet and (lines := explain(outcome, discard=arguments.discard)):
        from ringfence.cli.blocks import spelled_out

        for line in lines:
            print(spelled_out(line), file=sys.stderr)


def explain(outcome: Outcome, *, discard: bool = False) -> list[str]:
    """One line for people: what ended the job and what would raise it. Nothing to say: no line.

    ``discard``: that the changes are thrown away is what was asked for.
    """
    lines = ending(outcome.status, outcome.reason, outcome.limits_hit)
    if why := outcome.reason.partition(NOT_CARRIED_OVER)[2]:
        lines.append(f"ringfence: not carried over: {why.partition(NOT_KEPT)[0]}")
    if outcome.changes:
        lines.append(f"ringfence: {_changes(outcome)}{' (thrown away)' if discard else _fate(outcome)}")
    return lines + lacking(name for name, entry in outcome.enforced.items() if not entry.applied)


def ending(status: str, reason: str, limits_hit: Sequence[str]) -> list[str]:
    """Which limit ended the job or cut its output, and what would raise it."""
    from ringfence.model.limits import LIMIT_OF

    plain = status in (Status.OK, Status.FAILED)
    if plain and "output" not in limits_hit:
        return []
    raises = [LIMIT_OF[name].flag for name in limits_hit if name in LIMIT_OF]
    advice = f". Raise it with {' or '.join(raises)}" if raises else ""
    return [f"ringfence: {'' if plain else f'{status}: '}{reason}{advice}"]


def lacking(not_applied: Iterable[str]) -> list[str]:
    """What was asked for and not held, where the policy allows that."""
    names = ", ".join(not_applied)
    return [f"ringfence: PARTIAL_ENFORCEMENT: not applied: {names}"] if names else []


def _changes(outcome: Outcome) -> str:
    """``2 paths changed: a, b``."""
    from ringfence.cli.blocks import counted

    names = [ascii(change.path)[1:-1] for change in outcome.changes[:3]]
    more = ", …" if len(outcome.changes) > 3 else ""
    untold = "" if outcome.changes_complete else " and more, too deep or too much to be told or committed"
    return f"{counted(len(outcome.changes), 'path')} changed: {', '.join(names)}{more}{untold}"


def _fate(outcome: Outcome) -> str:
    """What became of the changes, and what can be done."""
    kept = outcome.transaction
    if kept:
        return f"; keep: ringfence commit {kept}, drop: ringfence discard {kept}"
    if outcome.committed:
        return " (kept)"
    why = outcome.reason.partition(NOT_KEPT)[2]
    return f" (thrown away{f', because {why}' if why else ''}; keep it with --commit)"
