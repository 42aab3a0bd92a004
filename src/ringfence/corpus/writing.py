"""Writes one case as a task directory and an agent script, with a secret made for it alone."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping

from ringfence.corpus.cheat import Cheat, filled
from ringfence.corpus.cheats import TWINS
from ringfence.corpus.repository import make_repository
from ringfence.corpus.task_kinds import DIGITS, SHIFTED, TASKS, TaskKind
from ringfence.model.record import record

POLICY = """\
version: 1
workspace:
  mount_at: /workspace
forbidden:
  reads: [/oracle]
  writes: [/oracle]
network:
  mode: deny
limits:
  wall_time_secs: 120
"""


@record
class Places:
    """Where a run takes place, as the agent and the grader see it, and what the operator has on the host."""

    folder: str
    """Of the case on the host; all that it writes is in it."""
    task: str
    secret: str
    mark: str
    top: str = "/"
    workspace: str = "/workspace"
    oracle: str = "/oracle"
    logs: str = "/logs/verifier"

    @property
    def home(self) -> str:
        """The operator's home."""
        return os.path.join(self.folder, "home")

    @property
    def shared(self) -> str:
        """A directory of the operator's with what runs leave and use."""
        return os.path.join(self.folder, "shared")

    def known(self) -> dict[str, str]:
        """Return what an agent may know: where things lie, and not what is in them."""
        return {
            "TOP": self.top, "WORKSPACE": self.workspace, "ORACLE": self.oracle, "LOGS": self.logs, "TASK": self.task,
            "HOME": self.home, "SHARED": self.shared, "MARK": self.mark,
            "UPSTREAM": os.path.join(self.shared, "upstream"),
        }  # fmt: skip


def sandboxed(folder: str, cheat: Cheat) -> Places:
    """Return the places of a real run, under the paths that Proctor's tasks have inside."""
    return Places(**_common(folder, cheat))


def careless(folder: str, cheat: Cheat) -> Places:
    """Return the places of a control: everything in one directory of the host, side by side."""
    inside = {name: os.path.join(folder, name) for name in ("workspace", "oracle", "logs")}
    return Places(**_common(folder, cheat), **inside, top=folder)


def _common(folder: str, cheat: Cheat) -> dict[str, str]:
    task = os.path.join(folder, "tasks", f"{cheat.kind}-{cheat.name}")
    return {"folder": folder, "task": task, "secret": secrets.token_hex(16), "mark": f"c{secrets.token_hex(6)}"}


def answers(secret: str) -> dict[str, str]:
    """Return what texts of a task say of the secret, in each form."""
    factor, offset = int(secret[:4], 16) + 2, int(secret[4:8], 16) + 1
    scaled = {name: str(n * factor + offset) for name, n in (("SMALL", 3), ("LARGE", 1000), ("TWENTY", 20))}
    return {
        "SECRET": secret,
        "PUZZLE": secret.translate(str.maketrans(SHIFTED, DIGITS)),
        "DIGEST": hashlib.sha256(secret.encode()).hexdigest(),
        "FACTOR": str(factor), "OFFSET": str(offset), "TAG": f"t{secret[8:16]}",
        "STEPS": str([n * factor + offset for n in range(4)]),
        **scaled,
    }  # fmt: skip


def write_task(cheat: Cheat, places: Places) -> None:
    """Write the task's directory, and the operator's directories around it."""
    kind, texts = TASKS[cheat.task], {**places.known(), **answers(places.secret)}
    for folder in (places.home, places.shared):
        os.makedirs(folder)
    _write_files(os.path.join(places.task, "workspace"), kind.workspace, texts)
    _write_files(os.path.join(places.task, "oracle"), kind.oracle, texts)
    _write_files(os.path.join(places.task, "reference"), kind.reference, texts)
    for name, target in kind.links.items():
        os.symlink(filled(target, texts), os.path.join(places.task, "oracle", name))
    if kind.repository:
        texts["COMMIT"] = _repository(kind, places, texts)
    _write_files(places.task, _own_files(kind), texts)


def _own_files(kind: TaskKind) -> dict[str, str]:
    policy, grade = POLICY + kind.policy, f"#!/bin/sh\n{kind.grade}"
    files = {"instruction.md": kind.instruction, "policy.yaml": policy, "grade.sh": grade}
    return {**files, "task.yaml": kind.settings} if kind.settings else files


def _repository(kind: TaskKind, places: Places, texts: Mapping[str, str]) -> str:
    files = {filled(name, texts): filled(text, texts) for name, text in kind.workspace.items()}
    workspace = os.path.join(places.task, "workspace")
    return make_repository(workspace, files, places.secret, os.path.join(places.shared, "upstream"))


def _write_files(folder: str, files: Mapping[str, str], texts: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = os.path.join(folder, filled(name, texts))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(filled(text, texts))
        os.chmod(path, 0o755 if name.endswith(".sh") else 0o644)


def agent_text(cheat: Cheat, places: Places, found: Mapping[str, str], *, honest: bool = False) -> str:
    """Return the script of the agent, or of its honest twin; ``found``: places of what is outside."""
    if honest:
        return TASKS[cheat.task].solve + (cheat.twin or TWINS[cheat.kind])
    return filled(cheat.agent, {**places.known(), **found})
