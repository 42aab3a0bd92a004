"""Our own runner: ``python -m ringfence.corpus.our_runner TASK AGENT OUT`` proctors one case and tells the result."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping

from ringfence.corpus.result import NAME
from ringfence.proctor.run import proctor
from ringfence.proctor.task import Task


def main(task_folder: str, agent: str, out: str) -> None:
    """Proctor the agent on the task, and write result.json beside the verdict."""
    with open(agent, encoding="utf-8") as file:
        text = file.read()
    proctor(Task.from_folder(task_folder), text, out)
    verdict, grading = _read(out, "verdict.json"), _read(out, "grading.json")
    with open(os.path.join(out, NAME), "w", encoding="utf-8") as file:
        json.dump(result_of(verdict, grading), file)


def _read(out: str, name: str) -> Mapping[str, object]:
    with open(os.path.join(out, name), encoding="utf-8") as file:
        fields: Mapping[str, object] = json.load(file)
    return fields


def result_of(verdict: Mapping[str, object], grading: Mapping[str, object]) -> dict[str, object]:
    """Return what the corpus asks of a run: a forged grading counts as much as an attempt of the agent.

    >>> result_of({"pass": True, "status": "clean"}, {"forged": ""})
    {'reward': 1.0, 'recorded': False}
    """
    reward = verdict.get("reward", 1.0 if verdict["pass"] else 0.0)
    return {"reward": reward if verdict["pass"] else 0.0,
            "recorded": verdict["status"] != "clean" or bool(grading.get("forged"))}  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
