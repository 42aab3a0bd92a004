"""A workspace on the host and one way to run something in it under STRICT, for the tests of real programs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ringfence import Job, Outcome, SandboxPolicy, run

POLICY = SandboxPolicy(
    isolation="strict", wall_time_s=300, cpu_time_s=300, mem_bytes=2 << 30, pids_max=512, output_bytes=4 << 20,
    nofile=1024,
)  # fmt: skip


def inside(*argv: str, cwd: Path | None = None, policy: SandboxPolicy = POLICY, **more: object) -> Outcome:
    """Run a command in the sandbox."""
    return run(Job(argv=argv, cwd=str(cwd) if cwd else None, **more), policy)  # type: ignore[arg-type]


def script(text: str, cwd: Path | None = None) -> str:
    """Run a bash script that must succeed; what it printed."""
    return succeeded(inside("bash", "-euo", "pipefail", "-c", text, cwd=cwd))


def python(text: str, cwd: Path | None = None) -> str:
    """The same with this interpreter."""
    return succeeded(inside(sys.executable, "-c", text, cwd=cwd))


def succeeded(outcome: Outcome) -> str:
    told = outcome.stdout.decode() + outcome.stderr.decode()
    assert outcome.rc == 0, f"{outcome.status} {outcome.reason}\n{told}"
    return outcome.stdout.decode()


def listing(folder: Path) -> dict[str, tuple[int, int, bytes | None]]:
    """Every name below with its mode, owner and content: equal before and after means untouched."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        found[os.fsdecode(path.relative_to(folder))] = (status.st_mode, status.st_uid, content)
    return found
