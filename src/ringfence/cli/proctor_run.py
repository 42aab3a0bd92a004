"""Run an agent on a task in a sandbox without the answer, grade what it left in another, and sign what happened."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

from ringfence.cli.quick_words import QuickFlags, read_quickly

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from contextlib import AbstractContextManager

    from ringfence.evidence.keys import SigningKey
    from ringfence.proctor import Task
    from ringfence.proctor.submission_manifest.bound import Bound

EXAMPLES = """\
examples:
  %(prog)s --task ./task --agent "my-agent --solve"
  %(prog)s --task ./task --agent "python3 agent.py" --policy ./policy.yaml --out ./out --key ops.key
  %(prog)s --task ./task --agent my-agent --scaffold ./prompts --out ./out --json

The agent gets the instruction as the file /task/instruction.md, in PROCTOR_INSTRUCTION and on standard input. The
output directory must be new or empty; without --out it is a new one, ./proctor-out/TASK-TIME. Exit code 0 when a
verdict was written, even if the run failed or was compromised, 1 when there is none, 2 for bad usage.
docs/reference/proctor.md describes the rest; `proctor init` writes a task to start from.
"""

FLAGS = QuickFlags(
    switches={"--no-env": "no_env", "--json": "json"},
    values={"--task": "task", "--agent": "agent", "--out": "out", "--policy": "policy", "--manifest": "manifest",
            "--agent-binary": "agent_binary", "--signing-seed": "signing_seed", "--key": "key", "--nonce": "nonce"},
    constants={},
    lists={"--scaffold": "scaffold", "--instructions": "instructions"},
)  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", metavar="DIR", required=True, help="the directory of the task")
    configure_run(parser)
    parser.add_argument("--policy", metavar="FILE", help="the agent's policy (default: policy.yaml of the task)")


def configure_run(parser: argparse.ArgumentParser, *, agent_needed: bool = True) -> None:
    """What every command that runs a task has. ``agent_needed``: else it may do without one."""
    parser.add_argument("--agent", metavar="CMD", required=agent_needed,
                        help="the command that solves the task; @NAME: a ready-made agent; oracle: the task's own "
                             "solution; nop: nothing")  # fmt: skip
    parser.add_argument("--out", metavar="DIR", default="", help="a new directory for verdict, bundle and logs "
                        "(default: proctor-out/TASK-TIME)")  # fmt: skip
    parser.add_argument(
        "--scaffold", metavar="PATH", action="append", default=[],
        help="a file or directory that the agent may read; its digest is part of the evidence (repeatable)",
    )  # fmt: skip
    parser.add_argument("--manifest", metavar="FILE", help="the manifest of the submission, from `proctor manifest "
                        "create`; the run is refused if the files differ")  # fmt: skip
    parser.add_argument(
        "--instructions", metavar="PATH", action="append", default=[],
        help="with --manifest: a file of instructions that the agent may read (repeatable)",
    )  # fmt: skip
    parser.add_argument("--agent-binary", metavar="PATH", help="with --manifest: the agent's program (default: what "
                        "the command starts)")  # fmt: skip
    parser.add_argument("--no-env", action="store_true",
                        help="pass on none of your variables, whatever the policy asks for")  # fmt: skip
    secret = parser.add_mutually_exclusive_group()
    secret.add_argument("--signing-seed", metavar="HEX", help="sign with this seed (default: PROCTOR_SIGNING_SEED, "
                        "else a new one, signing-seed.hex in the output directory)")  # fmt: skip
    secret.add_argument("--key", metavar="FILE", help="sign with a key file made by `proctor keygen --out`")
    parser.add_argument("--nonce", metavar="HEX", default="", help="the challenge that the run carries: 64 hex digits")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line: events, then the verdict")


def parse_quickly(words: list[str]) -> SimpleNamespace | None:
    """Read ``--flag value …`` with the flags that most runs have."""
    found = SimpleNamespace()
    rest = read_quickly(words, found, FLAGS)
    found.out, found.nonce = found.out or "", found.nonce or ""
    two_keys = found.key is not None and found.signing_seed is not None  # argparse counts an empty one too
    is_plain = rest == [] and found.task and found.agent and not two_keys
    return found if is_plain else None


def execute(arguments: argparse.Namespace | SimpleNamespace) -> int:
    from ringfence.proctor import Task

    return run_task(Task.from_folder(arguments.task, policy=arguments.policy), arguments)


def run_task(task: Task, arguments: argparse.Namespace | SimpleNamespace) -> int:
    """Run the agent on a task, whatever format that has."""
    from ringfence.evidence.keyfile import SEED_FILE
    from ringfence.model.record import replace
    from ringfence.proctor import proctor
    from ringfence.proctor.agents.resolve import resolve
    from ringfence.proctor.display import Display

    if arguments.no_env:
        task = replace(task, policy=replace(task.policy, env_allow=()))
    resolve(arguments.agent, task)  # an agent that does not exist is refused before anything is made or said
    bound = _bound(arguments, task)
    key = signing_key(arguments, task, (*arguments.scaffold, *bound.shown))
    display = Display(task.id, as_json=arguments.json)
    display.asks(*task.policy.asks())
    _end_by_signal()
    try:
        with _output(arguments, task.id) as out:
            _tell_of_watching(task, out)
            verdict = proctor(
                task, arguments.agent, out, key=key, scaffold=arguments.scaffold, display=display,
                nonce=arguments.nonce, bound=bound,
            )  # fmt: skip
    finally:
        display.close()
    if key is None:
        kept = os.path.join(verdict.out, SEED_FILE)
        print(f"proctor: a new key has signed this, {kept}; its public key is {verdict.public_key}", file=sys.stderr)
    return 0


def _tell_of_watching(task: Task, out: str) -> None:
    """What a task costs where it lies."""
    from ringfence.model.system_text import escape_controls
    from ringfence.proctor.agent_run import watched_for

    path = watched_for(task, out)
    if path:
        print(f"proctor: {escape_controls(path)} is where a sandbox has its own files, as in /tmp, so each call of the "
              "agent that names a file is watched; elsewhere it would run faster", file=sys.stderr)  # fmt: skip


def _output(arguments: argparse.Namespace | SimpleNamespace, task_id: str) -> AbstractContextManager[str]:
    """The directory that was named, else a new one."""
    from contextlib import nullcontext

    from ringfence.proctor.place.new_output import new_output

    return nullcontext(arguments.out) if arguments.out else new_output(task_id)


def _end_by_signal() -> None:
    """Whoever ends us by a signal gets its exit status once nothing is left of the run: no process, no directory."""
    import _signal as signal  # type: ignore[import-not-found]  # loads nothing, see ADR 0003

    def end(number: int, _: object) -> None:
        for each in numbers:  # what is being cleaned up is not broken off by a second one
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for each in numbers:
        if signal.getsignal(each) != signal.SIG_IGN:  # of a shell without job control, or nohup
            signal.signal(each, end)


def _bound(arguments: argparse.Namespace | SimpleNamespace, task: Task) -> Bound:
    """What ties the run to its manifest; nothing where there is none."""
    from ringfence.errors import UsageError
    from ringfence.proctor.agents.resolve import resolve
    from ringfence.proctor.submission_manifest.bound import NOT_BOUND

    if not arguments.manifest:
        if arguments.instructions or arguments.agent_binary:
            raise UsageError("--instructions and --agent-binary need --manifest",
                             hint="add --manifest FILE, or show files with --scaffold")  # fmt: skip
        return NOT_BOUND
    from ringfence.proctor.submission_manifest.binding import binary_of, bind
    from ringfence.proctor.submission_manifest.document import Submitted

    command = resolve(arguments.agent, task).command
    binary = arguments.agent_binary or binary_of(command)
    if not binary:
        raise UsageError("the agent's program is unknown", hint="name it with --agent-binary")
    submitted = Submitted(agent_binary=binary, scaffold=tuple(arguments.scaffold),
                          instructions=tuple(arguments.instructions), environment=task.policy.env_allow)  # fmt: skip
    return bind(arguments.manifest, submitted, task, command, _answers(arguments))


def _answers(arguments: argparse.Namespace | SimpleNamespace) -> list[str]:
    """Return the file of an instance of SWE-bench, which names tests and patches; not a whole data set."""
    return [arguments.instance] if getattr(arguments, "instance", "") and not arguments.instance_id else []


def signing_key(
    arguments: argparse.Namespace | SimpleNamespace, task: Task, shown: tuple[str, ...]
) -> SigningKey | None:
    """The one that was given; None: one is made in the output directory. ``shown``: what else the agent may read."""
    from ringfence.attest.signing import chosen_key
    from ringfence.evidence.keys import SEED_VARIABLE

    if arguments.key:
        from ringfence.proctor.place.key_place import refuse_in_task

        refuse_in_task(arguments.key, task, arguments.agent, shown)
    if not (arguments.key or arguments.signing_seed or SEED_VARIABLE in os.environ):
        return None
    return chosen_key(arguments.signing_seed, arguments.key).key
