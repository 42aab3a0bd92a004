"""Run an agent on all tasks of a suite, each in a process of its own, and sign all results together."""

from __future__ import annotations

import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from types import FrameType
    from typing import Any

    from ringfence.proctor.suite.bench import Benched, Plan

EXAMPLES = """\
examples:
  %(prog)s ./tasks --agent "my-agent --solve" --out ./out --jobs 4
  %(prog)s ./tasks --agent oracle --out ./oracle              each task's own solution: every score is 1
  %(prog)s ./terminal-bench --image --agent my-agent --out ./out --jobs 8
  %(prog)s verified.jsonl --repos ./clones --grade --image --agent my-agent --out ./out

A suite is a directory of tasks, whose format shows in their files, or a data set of SWE-bench. Started again with the
same output directory, it continues where it was interrupted: a result counts if its bundle verifies and binds the same
task, agent and policy. Exit code 0 when every task has a verdict, 1 when one has none, 2 for bad usage, 130 when it was
interrupted. docs/reference/proctor/suites.md describes the rest.
"""
_ENDINGS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("suite", metavar="SUITE", help="a directory of tasks, or a *.json or *.jsonl of SWE-bench")
    parser.add_argument("--agent", metavar="CMD", required=True,
                        help="the command that solves each task; or oracle, or nop")  # fmt: skip
    parser.add_argument("--out", metavar="DIR", required=True, help="a directory for all results; used again to resume")
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="how many tasks run at once (default: 1)")
    parser.add_argument("--on", metavar="WHERE", default="local", help="local, ray or ray://ADDRESS (default: local)")
    parser.add_argument("--repos", metavar="DIR", default="", help="clones for SWE-bench, such as DIR/owner__name")
    root = parser.add_mutually_exclusive_group()
    root.add_argument("--image", action="store_true", help="run each task in the root of its image")
    root.add_argument("--rootfs", choices=["host"], default="", help="run them on the host's root, images or not")
    parser.add_argument("--grade", action="store_true", help="SWE-bench: run the tests; without it, no pass, no reward")
    parser.add_argument("--python", metavar="FILE", default="", help="SWE-bench: the interpreter for the tests")
    parser.add_argument("--allow", metavar="HOST", action="append", default=[],
                        help="a host that agents and graders may reach, if the task asks for the whole network "
                             "(repeatable)")  # fmt: skip
    parser.add_argument("--env", metavar="NAME", action="append", default=[],
                        help="a variable of yours that a task may ask for by its name (repeatable)")  # fmt: skip
    parser.add_argument("--build-network", choices=("none", "default", "host"), default="",
                        help="the network of image build steps (default: as each task says)")  # fmt: skip
    parser.add_argument("--no-env", action="store_true",
                        help="pass on none of your variables, whatever a policy asks for")  # fmt: skip
    _configure_run(parser)


def _configure_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", metavar="FILE", default="", help="the agent's policy, instead of a task's own")
    parser.add_argument(
        "--scaffold", metavar="PATH", action="append", default=[],
        help="a file or directory that the agent may read; its digest is part of the evidence (repeatable)",
    )  # fmt: skip
    parser.add_argument("--only", metavar="GLOB", action="append", default=[], help="only these tasks (repeatable)")
    parser.add_argument("--skip", metavar="GLOB", action="append", default=[], help="not these tasks (repeatable)")
    parser.add_argument("--retries", metavar="N", type=int, default=2,
                        help="how often to retry a task that failed because of the machine (default: 2)")  # fmt: skip
    secret = parser.add_mutually_exclusive_group()
    secret.add_argument("--signing-seed", metavar="HEX", help="sign with this seed (default: PROCTOR_SIGNING_SEED, "
                        "else signing-seed.hex in the output directory, created if missing)")  # fmt: skip
    secret.add_argument("--key", metavar="FILE", help="sign with a key file made by `proctor keygen --out`")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line: results, then the summary")


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.proctor.suite.bench import bench
    from ringfence.proctor.suite.progress import SuiteProgress

    caught = [number for number in _ENDINGS if signal.getsignal(number) != signal.SIG_IGN]  # e.g. not under nohup
    for number in caught:
        signal.signal(number, _interrupt)
    try:
        benched = bench(
            _plan(arguments), seed=arguments.signing_seed, key_file=arguments.key,
            progress=SuiteProgress(as_json=arguments.json),
        )  # fmt: skip
    except KeyboardInterrupt:
        print("proctor: interrupted; the same command continues from here", file=sys.stderr)
        raise
    finally:
        for number in caught:
            signal.signal(number, signal.SIG_DFL)
    _tell(benched, as_json=arguments.json)
    return 0 if benched.complete else 1


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _plan(arguments: argparse.Namespace) -> Plan:
    from ringfence.proctor.suite.bench import Plan

    same = ("suite", "agent", "out", "jobs", "on", "repos", "grade", "policy", "python", "retries", "no_env",
            "build_network")  # fmt: skip
    lists = ("scaffold", "only", "skip", "allow", "env")
    values: dict[str, Any] = {name: getattr(arguments, name) for name in same}
    values |= {name: tuple(getattr(arguments, name)) for name in lists}
    return Plan(**values, rootfs="image" if arguments.image else arguments.rootfs)


def _tell(benched: Benched, *, as_json: bool) -> None:
    from ringfence.model.printed import json_text
    from ringfence.model.system_text import escape_controls
    from ringfence.proctor.suite.results import summary_of
    from ringfence.proctor.suite.table import table

    if as_json:
        print(json_text({"event": "summary", **summary_of(benched.rows)}, indent=None))
    else:
        print(f"\n{table(benched.rows)}", end="")
        for note in (f"proctor: {row.id}: {each}" for row in benched.rows for each in row.notes):
            print(escape_controls(note), file=sys.stderr)
    if benched.word:
        print(f"proctor: {benched.word}", file=sys.stderr)
