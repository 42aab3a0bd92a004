"""What an attack is: a small program, what it is after, which levels promise that it fails, and a control.

The probe is Python source, run by a plain interpreter with one argument, a literal: what the stage prepared for it.
It prints ``ESCAPED`` when it got what it must not get. It runs in the sandbox, where it must not, and plainly
on the host with the same stage as the positive control, where it must.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from ringfence import Job, Outcome, Pool, SandboxPolicy, run
from ringfence.sandbox import host
from ringfence.steps import wall_steps as confinement

ESCAPED = b"ESCAPED"
PROCESS, STRICT = "process", "strict"
PARTIAL = "strict_partial"
"""What is left of strict where user namespaces are not to be had; see ``promises``."""
BOTH = (PROCESS, STRICT)
_NO_NAMESPACES = ("user namespaces", "none: this is a test")
_MODULES = ("json", "time", "socket", "signal", "errno", "ctypes")
"""What a probe may use without a word of its own, beside ``os`` and ``sys``."""


class Stage(ExitStack):
    """What lies on the host while an attack runs; everything is cleaned up when it closes."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        """A directory outside of every workspace, readable by all."""
        self.policy: dict[str, object] = {}
        """Policy fields that a prepare function adds, such as hidden_paths."""
        self.cwd: Path | None = None
        """A workspace, if the attack needs one."""
        self.started_by: tuple[str, ...] = ()
        """Words before the probe's own command."""
        self.script: Path | None = None
        """Where the probe lies as a program, which these words start; absent: an interpreter is given its source."""
        self.outcome: Outcome | None = None
        """How the attack ended, for ``escaped`` to look at; absent in a control."""
        self.level: str | None = None
        """The level that the attack runs on; absent in a control."""
        self.alone = False
        """It looks at what a sandbox leaves behind: a pool is made for it, and closed before it looks."""
        self.escaped: Callable[[], bool] = lambda: False
        """Asked after the run: was something reached that the probe itself can't see?"""

    def enter_level(self, level: str) -> None:
        """From here on jobs run at this level. The partial one is told that there are no namespaces, while there are:
        so an attack that needs one must be stopped by what is left."""
        self.level = level
        if level == PARTIAL:
            close_pools()  # one that refills would be told as well
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


    @property
    def workspace(self) -> bool:
        """It needs a workspace, which a sandbox that stands by does not have."""
        return getattr(self.prepare, "makes_workspace", False)


Prepare = Callable[[Stage], Mapping[str, object]]


def in_workspace(prepare: Prepare) -> Prepare:
    """Mark a function that sets ``stage.cwd``."""
    prepare.makes_workspace = True  # type: ignore[attr-defined]
    return prepare


def perform(attack: Attack, level: str, stage: Stage) -> Outcome:
    """Run the attack in a sandbox of this level."""
    prepared, policy = _prepared(attack, level, stage)
    job = Job(argv=_command_on(stage, attack.probe, prepared), cwd=str(stage.cwd) if stage.cwd else None)
    stage.outcome = run(job, policy)
    return stage.outcome


def perform_warm(attack: Attack, level: str, stage: Stage) -> Outcome:
    """Run the attack as a command in a sandbox that stood by."""
    prepared, policy = _prepared(attack, level, stage)
    return _in_pool(policy, stage, lambda pool: pool.run(command_of(attack.probe, prepared)))


def perform_source(attack: Attack, level: str, stage: Stage) -> Outcome:
    """Run the attack as a Python job, which is a fork of a process of ours, in a sandbox that stood by."""
    prepared, policy = _prepared(attack, level, stage)
    given = [ascii(dict(prepared))]
    return _in_pool(policy, stage, lambda pool: pool.run_source(_started(attack.probe), arguments=given))


def _prepared(attack: Attack, level: str, stage: Stage) -> tuple[Mapping[str, object], SandboxPolicy]:
    stage.enter_level(level)
    prepared = attack.prepare(stage)
    assert bool(stage.cwd) == attack.workspace, f"{attack.name}: workspace={bool(stage.cwd)} is not said"
    return prepared, stage.sandbox_policy(attack.policy)


def _in_pool(policy: SandboxPolicy, stage: Stage, go: Callable[[Pool], Outcome]) -> Outcome:
    if stage.alone:
        close_pools()
    stage.outcome = go(pool_of(policy))
    if stage.alone:
        close_pools()
    return stage.outcome


_pools: dict[str, Pool] = {}
_MOST_POOLS = 3


def pool_of(policy: SandboxPolicy) -> Pool:
    """A pool that attacks under the same policy share; the last few are kept."""
    key = repr(policy)
    pool = _pools.pop(key, None) or Pool(policy, warm=1, at_once=2)
    _pools[key] = pool
    while len(_pools) > _MOST_POOLS:
        _pools.pop(next(iter(_pools))).close()
    return pool


def close_pools() -> None:
    while _pools:
        _pools.popitem()[1].close()


def control(attack: Attack, stage: Stage) -> bytes:
    """Run the same without a sandbox."""
    prepared = attack.prepare(stage)
    command = _command_on(stage, attack.control or attack.probe, prepared)
    done = subprocess.run(command, capture_output=True, timeout=60, check=False, cwd=stage.cwd or stage.folder,
                          close_fds=False, stdin=subprocess.DEVNULL,
                          env=os.environ | {"RINGFENCE_CONTROL": "1"})  # fmt: skip
    return done.stdout + (ESCAPED if stage.escaped() else b"") + done.stderr


def _command_on(stage: Stage, source: str, prepared: Mapping[str, object]) -> tuple[str, ...]:
    if stage.script is None:
        return (*stage.started_by, *command_of(source, prepared, stage.level))
    stage.script.write_text(f"#!{interpreter_for(stage.level)} -I\n{_started(source)}")
    stage.script.chmod(0o755)
    return (*stage.started_by, ascii(dict(prepared)))


def interpreter_for(level: str | None) -> str:
    """Without mounts, root's own interpreter may be out of reach for the job's id; the system's never is."""
    closed = level == PARTIAL and host.is_the_hosts_root() and confinement.closed_to_others(sys.executable)
    return "/usr/bin/python3" if closed else sys.executable


def command_of(source: str, prepared: Mapping[str, object], level: str | None = None) -> tuple[str, ...]:
    return (interpreter_for(level), "-I", "-c", _started(source), ascii(dict(prepared)))


def _started(source: str) -> str:
    """With the modules that it names: to load all of them, and json for the argument, took longer than most attacks."""
    named = [name for name in _MODULES if re.search(rf"\b{name}\b", source)]
    return f"import {', '.join(('os', 'sys', *named))}\nGIVEN = eval(sys.argv[1])\n{source}"
