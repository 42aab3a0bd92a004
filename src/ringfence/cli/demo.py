"""Watch a hostile script run into its limits: what it tried, what became of it, what enforced it."""

from __future__ import annotations

import argparse
import os
import sys

from ringfence.cli.policy_flags import add_policy_flags, policy_from
from ringfence.model.limits import format_size
from ringfence.model.outcome import Outcome
from ringfence.model.policy import SandboxPolicy

EXAMPLES = """\
examples:
  ringfence demo
  ringfence demo --pids 12 --memory 1G
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_policy_flags(parser)


def execute(arguments: argparse.Namespace) -> int:
    from ringfence import __version__
    from ringfence.engine.run import run
    from ringfence.model.job import Job

    policy = policy_from(arguments)
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hostile.py")
    os.environ["DEMO_SECRET_TOKEN"] = "must not be seen"
    print(f"ringfence {__version__}  ·  ringfence probe tells what this host can enforce\n")
    print(f"▸ a hostile script under isolation {policy.isolation}  ({_limits(policy)})")
    outcome = run(Job(argv=(sys.executable, "-I", "-S", script), channel=True), policy)
    for name, result in _attempts(outcome):
        mark = "✗" if not result.startswith("REACHED") else "!"
        print(f"  {'✓' if name == 'write a file' else mark} {name:<36} {result}")
    _summary(outcome)
    return 0


def _limits(policy: SandboxPolicy) -> str:
    return (
        f"{policy.wall_time_s:g} s wall, {policy.cpu_time_s:g} s cpu, {format_size(policy.mem_bytes)}, "
        f"{policy.pids_max} processes"
    )


def _attempts(outcome: Outcome) -> list[tuple[str, str]]:
    """The last word on each attempt; the one that was under way at the end has the end as its result."""
    lines = (outcome.message or b"").decode("utf-8", "replace").splitlines()
    told = dict(line.split("\t", 1) for line in lines if "\t" in line)
    return [(name, result if result != "…" else outcome.reason) for name, result in told.items()]


def _summary(outcome: Outcome) -> None:
    usage = outcome.usage
    print(
        f"\nstatus {outcome.status} (rc {outcome.rc})  {usage.wall_s:.2f} s  "
        f"peak {format_size(usage.peak_memory_bytes)}  {usage.processes} processes  "
        f"output cut by {format_size(outcome.stdout_dropped)}"
    )
    print("\nenforced by")
    for name, entry in outcome.enforced.items():
        print(f"  {'yes' if entry.applied else 'NO '}  {name:<12} {entry.mechanism:<26} {entry.details}")
