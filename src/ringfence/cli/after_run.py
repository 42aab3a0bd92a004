"""What happens to a run's changes if that is not decided beforehand: they are kept, asked about, or built on.

Loaded only by runs that keep something or have to ask.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

from ringfence.cli.attached import exit_code, need_layer, print_result, run_attached
from ringfence.cli.commit import ways_out
from ringfence.cli.state_folder import new_place
from ringfence.cli.stored_sandbox import StoredSandbox, from_here, print_diff, take
from ringfence.engine.run import transaction_kind
from ringfence.errors import CheckpointError, ConflictError, UsageError
from ringfence.manager.registry import Registry
from ringfence.model.job import Job
from ringfence.model.outcome import Outcome
from ringfence.model.paths import within
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace
from ringfence.model.state_folder import sandboxes_folder
from ringfence.model.system_text import escape_controls
from ringfence.model.ways.walk import real

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from io import FileIO

_YES, _NO, _LATER = ("y", "yes"), ("n", "no"), ("l", "later")
_MOST_QUESTIONS = 10
_MAX_ANSWER_BYTES = 80
_QUESTION = "Apply these changes? [y]es, [n]o (discard), [l]ater (keep)  "


def execute(arguments: argparse.Namespace | SimpleNamespace, job: Job, policy: SandboxPolicy) -> int:
    """A run with --ask or --transaction."""
    if arguments.transaction:
        return _resume(arguments, job, policy)
    need_layer(policy, "--ask")
    _terminal().close()  # before anything has been done
    sandboxes_folder()  # the same: it fails here if the changes could not be kept
    outcome = run_attached(arguments, job, policy, keep=new_place())
    if outcome.transaction:
        outcome = register(outcome, job, policy)
        with StoredSandbox(Registry(sandboxes_folder()), outcome.transaction) as kept:
            outcome = _decide(kept, outcome)
    print_result(arguments, outcome)
    return exit_code(arguments, outcome)


def register(outcome: Outcome, job: Job, policy: SandboxPolicy) -> Outcome:
    """Register the changes: the outcome gets the id of the sandbox that keeps them, instead of the directory."""
    base = real(job.cwd or ".")
    registry = Registry(sandboxes_folder())
    return replace(outcome, transaction=take(registry, outcome.transaction, policy.isolation, base, job.argv))


def _decide(kept: StoredSandbox, outcome: Outcome) -> Outcome:
    """Show what it changed and do what the person says. Nothing is thrown away without an answer, and nothing is
    carried over that was not shown."""
    try:
        sealed = kept.transaction.seal()
        print_diff(kept.transaction.diffs())
        answer = _ask()
    except CheckpointError as error:
        return _told(error, outcome)
    except (KeyboardInterrupt, BrokenPipeError):
        return outcome  # not all of it was seen
    if answer in _NO:
        kept.throw_away()
        return replace(outcome, transaction="", changes=())
    if answer not in _YES:
        return outcome
    try:
        kept.transaction.commit(sealed=sealed)
    except CheckpointError as error:
        return _told(error, outcome)
    kept.remove_if_done()
    return replace(outcome, transaction="", committed=True)


def _told(error: CheckpointError, outcome: Outcome) -> Outcome:
    print(f"ringfence: {escape_controls(str(error))}", file=sys.stderr)
    for way in ways_out(outcome.transaction, error.paths) if isinstance(error, ConflictError) and error.paths else ():
        print(f"  {escape_controls(way)}", file=sys.stderr)
    return outcome


def _ask() -> str:
    """Ask again until the answer is one of those offered. Empty: no answer, e.g. because the terminal is gone."""
    try:
        with _terminal() as terminal:
            answers = (_answer(terminal) for _ in range(_MOST_QUESTIONS))
            return next((answer for answer in answers if answer in ("", *_YES, *_NO, *_LATER)), "")
    except (OSError, UsageError):
        return ""


def _answer(terminal: FileIO) -> str:
    """Read one line; empty: the terminal is gone, or the person ended the input."""
    _make_ready(terminal)
    terminal.write(_QUESTION.encode())
    try:
        line = terminal.readline(_MAX_ANSWER_BYTES)
    except KeyboardInterrupt:
        line = b""
    if not line.endswith(b"\n"):
        terminal.write(b"\n")
    return line.strip().lower().decode("ascii", "replace") or ("?" if line else "")


def _make_ready(terminal: FileIO) -> None:
    """Discard what was typed before the question, and the terminal's replies to sequences that the job printed: neither
    is an answer. A job may also have left the terminal in a mode in which nobody can answer."""
    import termios

    try:
        mode = termios.tcgetattr(terminal)
        mode[0] |= termios.ICRNL
        mode[3] |= termios.ICANON | termios.ECHO | termios.ISIG
        termios.tcsetattr(terminal, termios.TCSAFLUSH, mode)
    except termios.error as error:
        raise OSError(*error.args) from error


def _terminal() -> FileIO:
    """Open the person's terminal, wherever the command reads and writes."""
    try:
        return open("/dev/tty", "r+b", buffering=0)
    except OSError:
        raise UsageError("--ask needs a terminal to ask on", hint="decide now, with --commit or --discard") from None


def _resume(arguments: argparse.Namespace | SimpleNamespace, job: Job, policy: SandboxPolicy) -> int:
    """Run in a kept sandbox, as it was left."""
    if arguments.ask or arguments.discard:
        flag = "--ask" if arguments.ask else "--discard"
        raise UsageError(f"{flag} can't be combined with --transaction, which keeps the changes",
                         hint="apply them with --commit")  # fmt: skip
    registry = Registry(sandboxes_folder())
    with StoredSandbox(registry, arguments.transaction) as kept:
        _need_its_level(kept, policy)
        kept.transaction.create_checkpoint(f"before {' '.join(job.argv)}"[:60])
        registry.touch(kept.sandbox_id)
        here = real(job.cwd or "")
        inside = any(within(here, base) for base in kept.transaction.bases)
        outcome = run_attached(arguments, job if inside else replace(job, cwd=None), policy, commit=arguments.commit,
                       transaction=kept.transaction)  # fmt: skip
        if not outcome.committed or not kept.remove_if_done():
            outcome = replace(outcome, transaction=kept.sandbox_id)
    if not arguments.json:
        outcome = replace(outcome, changes=tuple(replace(each, path=from_here(each.path)) for each in outcome.changes))
    print_result(arguments, outcome)
    return exit_code(arguments, outcome)


def _need_its_level(kept: StoredSandbox, policy: SandboxPolicy) -> None:
    made = kept.metadata.isolation
    if policy.isolation != made and transaction_kind(policy) != kept.transaction.kind:
        raise UsageError(f"{kept.sandbox_id} was made under isolation {made}, but this run has {policy.isolation}",
                         hint=f"add --isolation {made}")  # fmt: skip
