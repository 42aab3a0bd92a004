"""What an attack is: a small program, what it is after, which levels promise that it fails, and a control.

The probe is Python source, run by a plain interpreter with one JSON argument: what the stage prepared for it.
It prints ``ESCAPED`` when it got what it must not get. It runs in the sandbox, where it must not, and plainly
on the host with the same stage as the positive control, where it must.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from ringfence import Job, Outcome, SandboxPolicy, run
from ringfence.linux import confinement, host

ESCAPED = b"ESCAPED"
PROCESS, STRICT = "process", "strict"
PARTIAL = "strict_partial"
"""What is left of strict where user namespaces are not to be had; see ``promises``."""
BOTH = (PROCESS, STRICT)
_NO_NAMESPACES = ("user namespaces", "none: this is a test")


class Stage(ExitStack):
    """What lies on the host while an attack runs; everything is cleaned up when it closes."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        """A folder outside of every workspace, readable by all."""
        self.policy: dict[str, object] = {}
        """Policy fields that a prepare function adds, such as hidden_paths."""
        self.cwd: Path | None = None
        """A workspace, if the attack needs one."""
        self.outcome: Outcome | None = None
        """How the attack ended, for ``escaped`` to look at; absent in a control."""
        self.level: str | None = None
        """The level that the attack runs on; absent in a control."""
        self.escaped: Callable[[], bool] = lambda: False
        """Asked after the run: was something reached that the probe itself can't see?"""

    def enter_level(self, level: str) -> None:
        """From here on jobs run at this level. The partial one is told that there are no namespaces, while there are:
        so an attack that needs one must be stopped by what is left."""
        self.level = level
        if level == PARTIAL:
            self.enter_context(patch.object(host, "user_namespaces_blocked", lambda: _NO_NAMESPACES))

    def sandbox_policy(self, fields: Mapping[str, object]) -> SandboxPolicy:
        partial = self.level == PARTIAL
        isolation = {"isolation": STRICT, "allow_partial": True} if partial else {"isolation": self.level}
        return SandboxPolicy.from_dict({"wall_time_s": 20} | isolation | dict(fields) | self.policy)


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One attack."""

    name: str
    family: str
    what: str
    """What must not happen, as one sentence."""
    probe: str
    levels: tuple[str, ...] = (STRICT,)
    """The levels that promise that it fails; ``promises.levels_of`` adds the partial one."""
    possible: bool = True
    """This machine has what the attack uses; where not, it is promised all the same and can't be run."""
    held_by_group: bool = False
    """Only a control group holds it: where the caller has none, it is not promised."""
    prepare: Callable[[Stage], Mapping[str, object]] = field(default=lambda _: {})
    policy: Mapping[str, object] = field(default_factory=dict)
    status: tuple[str, ...] = ()
    """Statuses of which one is expected; empty: any, as long as nothing was reached."""
    control: str = ""
    """Source of the control where the probe itself can't run without a sandbox; empty: the probe."""
    needs_root: bool = False
    """The control needs root (raw sockets, mount); as an ordinary user only the attack is run."""


def perform(attack: Attack, level: str, stage: Stage) -> Outcome:
    """Run the attack in a sandbox of this level."""
    stage.enter_level(level)
    prepared = attack.prepare(stage)
    job = Job(argv=command_of(attack.probe, prepared, level), cwd=str(stage.cwd) if stage.cwd else None)
    stage.outcome = run(job, stage.sandbox_policy(attack.policy))
    return stage.outcome


def control(attack: Attack, stage: Stage) -> bytes:
    """Run the same without a sandbox."""
    prepared = attack.prepare(stage)
    command = command_of(attack.control or attack.probe, prepared)
    done = subprocess.run(command, capture_output=True, timeout=60, check=False, cwd=stage.cwd or stage.folder,
                          close_fds=False, stdin=subprocess.DEVNULL,
                          env=os.environ | {"RINGFENCE_CONTROL": "1"})  # fmt: skip
    return done.stdout + (ESCAPED if stage.escaped() else b"") + done.stderr


def interpreter_for(level: str | None) -> str:
    """Without mounts, root's own interpreter may be out of reach for the job's id; the system's never is."""
    closed = level == PARTIAL and host.is_the_hosts_root() and confinement.closed_to_others(sys.executable)
    return "/usr/bin/python3" if closed else sys.executable


def command_of(source: str, prepared: Mapping[str, object], level: str | None = None) -> tuple[str, ...]:
    start = "import json, os, sys, time, socket, signal, errno, ctypes\nGIVEN = json.loads(sys.argv[1])\n"
    return (interpreter_for(level), "-I", "-c", start + source, json.dumps(prepared))
