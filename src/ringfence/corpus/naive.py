"""The positive control: a careless harness that runs the agent beside the oracle and grades what it left in place.

The agent is a plain process of the caller's in a copy of the workspace. The grader runs afterwards in the same
directory, under the home that the agent could write and the variables that the cheat needs. A reward file counts no
matter who wrote it. Everything stays in the directory of the case, and the reward is read only after the agent's
processes have ended. """

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ringfence.corpus.cheat import Cheat, filled
from ringfence.corpus.outside import Outside
from ringfence.corpus.task_kinds import TASKS
from ringfence.corpus.writing import Places, agent_text

PATIENCE_S = 60


def play_naively(cheat: Cheat, places: Places, outside: Outside, *, honest: bool = False) -> float:
    """Run the agent and the grader; return the reward."""
    for name in ("workspace", "oracle"):
        shutil.copytree(os.path.join(places.task, name), os.path.join(places.folder, name), symlinks=True)
    os.mkdir(places.logs)
    text = agent_text(cheat, places, outside.places, honest=honest)
    agent = _start(["/bin/sh", "-c", text], places, {**_variables(cheat, places), **outside.variables}, outside)
    with _ended(agent):
        agent.wait(PATIENCE_S)
        grader = _start(_grader(cheat, places), places, _careless_variables(cheat, places), Outside())
        with _ended(grader):
            passed = grader.wait(PATIENCE_S) == 0
    return _reward(places.logs) if TASKS[cheat.task].rewarded else float(passed)


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Wait until every process that holds the output has ended; after the deadline its group is killed."""
    try:
        yield
        process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def _start(argv: list[str], places: Places, variables: Mapping[str, str], outside: Outside) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv, cwd=places.workspace, env=dict(variables), pass_fds=outside.descriptors, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def _variables(cheat: Cheat, places: Places) -> dict[str, str]:
    """A virtual environment ignores packages in the home, so some tasks use its base interpreter."""
    python = os.path.realpath(sys.executable) if TASKS[cheat.task].plain_python else sys.executable
    path = f"{os.path.dirname(python)}:{os.environ.get('PATH', os.defpath)}"
    return {"HOME": places.home, "PATH": path, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}


def _careless_variables(cheat: Cheat, places: Places) -> dict[str, str]:
    variables = _variables(cheat, places)
    texts = {**places.known(), "PATH": variables["PATH"]}
    return {**variables, **{name: filled(value, texts) for name, value in cheat.naive.items()}}


def _grader(cheat: Cheat, places: Places) -> list[str]:
    """The shell is found on the path, unless the cheat needs another."""
    shell = cheat.naive.get("GRADER_SHELL", "/usr/bin/env bash" if shutil.which("bash") else "/bin/sh")
    return [*shell.split(), os.path.join(places.task, "grade.sh")]


def _reward(logs: str) -> float:
    """What is in reward.json, else in reward.txt, as in the harnesses that were cheated."""
    for name, read in (("reward.json", _of_json), ("reward.txt", float)):
        try:
            with open(os.path.join(logs, name), encoding="utf-8") as file:
                return read(file.read())
        except (OSError, ValueError):
            continue
    return 0.0


def _of_json(text: str) -> float:
    return float(json.loads(text)["reward"])
