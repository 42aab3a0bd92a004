"""Watch a hostile script run into its limits: what it tried, what happened, what enforced it.

Under strict isolation where this host has it, else at the process level, which hides nothing.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from ringfence.cli.hostile import ATTEMPTS, HELPFUL, HIDDEN, REACHED, UNDER_WAY, Bait
from ringfence.cli.policy_flags import add_policy_flags, policy_from
from ringfence.engine.run import backend_for, run
from ringfence.model.events import EventKind
from ringfence.model.job import Job
from ringfence.model.limits import IsolationLevel, format_size
from ringfence.model.outcome import Outcome
from ringfence.model.policy import SandboxPolicy
from ringfence.model.printed import counted

EXAMPLES = """\
examples:
  ringfence demo
  ringfence demo --isolation process       the same at the level that hides nothing
  ringfence demo --pids 12 --memory 1G
"""

_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hostile.py")


def configure(parser: argparse.ArgumentParser) -> None:
    add_policy_flags(parser, "strict where this host has it, else process")
    parser.add_argument("--json", action="store_true", help="print what was tried, and each result, as JSON")


def execute(arguments: argparse.Namespace) -> int:
    policy = policy_from(arguments)
    strict = _under_strict(policy)
    available = not backend_for(strict.isolation).lacks(strict)
    if os.name == "nt" and not arguments.policy:
        policy = policy.with_changes(allow_partial=True)  # the table that is shown lists what is not enforced
    if available and not (arguments.isolation or arguments.policy):
        policy = strict
    if arguments.json:
        _print_data(policy, strict_available=available)
        return 0
    _show(policy, strict_available=available)
    return 0


def _show(policy: SandboxPolicy, *, strict_available: bool) -> None:
    """For people."""
    available = "available" if strict_available else "not available"
    print(f"{_title()}: strict isolation {available}  ·  ringfence probe has the details\n")
    print(f"▸ a hostile script under isolation {policy.isolation}  ({_limits(policy)})")
    outcomes = []
    with _bait() as bait:
        for outcome in _runs(policy, bait):
            outcomes.append(outcome)
            _tell_attempts(outcome)
    print()
    for outcome in outcomes:
        _tell_end(outcome)
    print("\nenforced by")
    for name, entry in outcomes[-1].enforced.items():
        print(f"  {'yes' if entry.applied else 'NO '}  {name:<14} {entry.mechanism:<36} {entry.details}".rstrip())


def _print_data(policy: SandboxPolicy, *, strict_available: bool) -> None:
    from ringfence.cli.json_text import print_json

    with _bait() as bait:
        outcomes = list(_runs(policy, bait))
    tried = {name: result for outcome in outcomes for name, result in _told(outcome).items()}
    rows = [{"name": name, "result": result, "reached": result.startswith(REACHED)} for name, result in tried.items()]
    print_json({"strict_available": strict_available, "isolation": policy.isolation, "attempts": rows,
                "runs": [outcome.to_dict() for outcome in outcomes]})  # fmt: skip


def _title() -> str:
    from ringfence import __version__

    system = f" on {os.uname().sysname} {os.uname().release}" if hasattr(os, "uname") else f" on {sys.platform}"
    return f"ringfence {__version__}{system}"


def _under_strict(policy: SandboxPolicy) -> SandboxPolicy:
    return policy.with_changes(isolation=IsolationLevel.STRICT, readable_paths=(*policy.readable_paths, _SCRIPT),
                               hidden_paths=(*policy.hidden_paths, HIDDEN))  # fmt: skip


def _limits(policy: SandboxPolicy) -> str:
    network = ", no network" if policy.network_rule == "none" else ""
    return (
        f"{policy.wall_time_s:g} s wall, {policy.cpu_time_s:g} s cpu, {format_size(policy.mem_bytes)}, "
        f"{policy.pids_max} processes{network}"
    )


@contextmanager
def _bait() -> Iterator[Bait]:
    """Real targets on this host while the script runs, so that «not reached» means something."""
    os.environ["DEMO_SECRET_TOKEN"] = "must not be seen"
    with tempfile.TemporaryDirectory(prefix="ringfence-demo-") as folder, socket.socket() as service:
        path = os.path.join(folder, "secret")
        with open(path, "w", encoding="ascii") as file:
            file.write("must not be seen\n")
        service.bind(("127.0.0.1", 0))
        service.listen()
        yield Bait(path, service.getsockname()[1], os.getpid())


def _runs(policy: SandboxPolicy, bait: Bait) -> Iterator[Outcome]:
    """As many runs as it takes: the next one skips the attempt that ended the last."""
    begin = 0
    while begin < len(ATTEMPTS):
        words = (str(begin), *map(str, bait))
        outcome = run(Job(argv=(sys.executable, "-I", "-S", _SCRIPT, *words), channel=True), policy)
        yield outcome
        begin += len(_told(outcome)) or len(ATTEMPTS)


def _told(outcome: Outcome) -> dict[str, str]:
    """The last result of each attempt; the attempt that was under way at the end gets that end as its result."""
    lines = (outcome.message or b"").decode("utf-8", "replace").splitlines()
    told = dict(line.split("\t", 1) for line in lines if "\t" in line)
    return {name: outcome.reason if result == UNDER_WAY else result for name, result in told.items()}


def _tell_attempts(outcome: Outcome) -> None:
    recorded = any(event.kind is EventKind.VIOLATION and HIDDEN in str(event.details) for event in outcome.events)
    for name, result in _told(outcome).items():
        mark = "✓" if name == HELPFUL else "!" if result.startswith(REACHED) else "✗"
        print(f"  {mark} {name:<36} {result}{'; recorded' if recorded and HIDDEN in name else ''}")


def _tell_end(outcome: Outcome) -> None:
    usage = outcome.usage
    cut = f"  output cut by {format_size(outcome.stdout_dropped)}" if outcome.stdout_dropped else ""
    print(
        f"status {outcome.status} (rc {outcome.rc})  {usage.wall_s:.2f} s  "
        f"peak {format_size(usage.peak_memory_bytes)}  {counted(usage.processes, 'process')}{cut}"
    )
