"""What the tests of pools share."""

from __future__ import annotations

from pathlib import Path

from ringfence import SandboxPolicy
from ringfence.kernel.proc import procfs

LEVELS = ("process", "strict")
_ROOMY = {"mem_bytes": 1 << 30, "wall_time_s": 60}


def policy_of(level: str, **fields: object) -> SandboxPolicy:
    return SandboxPolicy.from_dict({"isolation": level, **_ROOMY, **fields})


def lives(pid: int) -> bool:
    row = procfs.stat(pid)
    return row is not None and not row.zombie


def pid_of(pidfd: int) -> int:
    """-1 when it has ended."""
    return int(Path(f"/proc/self/fdinfo/{pidfd}").read_text().partition("\nPid:")[2].split()[0])
