"""What an outcome says of its run, as parts of run.json: the phase, the protections, and the host that it ran on.

Owns: the words and units. Nothing here judges; all of it is the sandbox's own statement (docs/explanation/bundle.md).
"""

from __future__ import annotations

import os

from ringfence import __version__
from ringfence.attest.plain import Plain
from ringfence.evidence.runrecord import Host, Phase, Protection
from ringfence.model.outcome import Enforcement, Outcome, Status

_SIGNAL_STATUSES = (Status.KILLED_TERM, Status.KILLED_KILL, Status.KILLED_SIGNAL, Status.CRASHED)
"""Their return code is 128 and the signal."""
_DETAIL_CHARS = 1000
_POSTURE = {
    "lsm": "/sys/kernel/security/lsm",
    "yama.ptrace_scope": "/proc/sys/kernel/yama/ptrace_scope",
    "unprivileged_userns_clone": "/proc/sys/kernel/unprivileged_userns_clone",
    "max_user_namespaces": "/proc/sys/user/max_user_namespaces",
}
_MOST_BYTES = 1000


def phase(name: str, outcome: Outcome, wall_limit_s: float | None) -> Phase:
    """One run as a phase. An exit code or a signal is told where the status leaves no doubt which it was."""
    exited = outcome.status in (Status.OK, Status.FAILED)
    signalled = outcome.status in _SIGNAL_STATUSES and outcome.rc > 128
    return Phase(
        name=name,
        status=str(outcome.status),
        exit_code=outcome.rc if exited else None,
        signal=outcome.rc - 128 if signalled else None,
        timed_out=outcome.status is Status.TIMEOUT,
        wall_limit_ms=None if wall_limit_s is None else int(wall_limit_s * 1000),
        wall_ms=max(0, outcome.duration_ms),
        usage=_usage(outcome),
    )


def _usage(outcome: Outcome) -> dict[str, int]:
    used = outcome.usage
    return {
        "rc": outcome.rc,
        "cpu_ms": int((used.cpu_user_s + used.cpu_system_s) * 1000),
        "peak_memory_bytes": used.peak_memory_bytes,
        "processes": used.processes,
        "written_bytes": used.written_bytes,
        "network_bytes": used.network_bytes,
        "stdout_dropped_bytes": outcome.stdout_dropped,
        "stderr_dropped_bytes": outcome.stderr_dropped,
    }


def protections(outcome: Outcome, prefix: str = "") -> tuple[Protection, ...]:
    """What was asked for and what became of it. ``prefix`` tells the phases of one run apart."""
    rows = tuple(_protection(f"{prefix}{name}", entry) for name, entry in outcome.enforced.items())
    nothing = Protection(protection=f"{prefix}sandbox", requested=True, applied=False, detail="nothing is in force")
    return rows or (nothing,)


def _protection(name: str, entry: Enforcement) -> Protection:
    plain = Plain(_DETAIL_CHARS)
    asked = plain.text(_words(entry.requested))
    detail = plain.text(entry.details)
    return Protection(
        protection=name,
        requested=entry.requested is not None and entry.requested is not False,
        applied=entry.applied,
        mechanism=plain.text(entry.mechanism),
        detail=f"{asked}; {detail}" if detail else asked,
    )


def _words(requested: object) -> str:
    if isinstance(requested, list | tuple):
        return ", ".join(str(each) for each in requested)
    return str(requested)


def host() -> Host:
    """The system that this process runs on, by its own word."""
    system = os.uname()
    found = {name: text for name, path in _POSTURE.items() if (text := _first_line(path))}
    caller = "root" if os.geteuid() == 0 else "ordinary user"
    return Host(
        system=system.sysname,
        kernel=system.release,
        machine=system.machine,
        posture={**found, "caller": caller, "ringfence": __version__},
    )


def _first_line(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return Plain().text(file.read(_MOST_BYTES).decode("utf-8", "replace").strip())
    except OSError:
        return ""
