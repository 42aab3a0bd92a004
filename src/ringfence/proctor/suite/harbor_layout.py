"""The results of a suite as a Harbor job: tools that read Harbor's ``jobs`` directory can read ours.

A job has ``config.json`` and ``result.json``, and a directory for each trial with the same two, the agent's output and
the verifier's reward. The reward is the score: nothing for a compromised run. A task without a verdict is a trial
with ``exception_info`` and no rewards.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from ringfence import __version__
from ringfence.evidence.schema import format_time, parse_time
from ringfence.model.own_files import make_private, write_whole
from ringfence.model.printed import json_text
from ringfence.proctor.suite.entry import Entry
from ringfence.proctor.suite.output import TASKS
from ringfence.proctor.suite.results import Row
from ringfence.roles.removal import remove_tree

NAME = "harbor"
_LOGS = {"agent.stdout": "agent/stdout.txt", "agent.stderr": "agent/stderr.txt",
         "grader.stdout": "verifier/test-stdout.txt", "grader.stderr": "verifier/test-stderr.txt"}  # fmt: skip
_DIGITS = 7


def write_job(folder: str, rows: Sequence[Row], entries: Mapping[str, Entry], *, agent: str, suite: str) -> None:
    """Write the job into ``harbor/`` of a suite's directory, in place of an earlier one."""
    place = os.path.join(folder, NAME)
    remove_tree(place)
    make_private(place)
    for row in rows:
        _write_trial(folder, os.path.join(place, trial_name(row, suite)), row, entries[row.id], agent, suite)
    _write(os.path.join(place, "config.json"), {"job_name": NAME, "jobs_dir": folder, "n_attempts": 1,
                                                "agents": [{"name": agent}], "datasets": [], "tasks": []})  # fmt: skip
    _write(os.path.join(place, "result.json"), job_result(rows, agent=agent, suite=suite))


def trial_name(row: Row, suite: str) -> str:
    """The task and some digits of this run of the suite; the same name each time it is written."""
    return f"{row.folder}__{_id(suite, row.id).hex[:_DIGITS]}"


def job_result(rows: Sequence[Row], *, agent: str, suite: str) -> dict[str, object]:
    """result.json of the job."""
    judged = [row for row in rows if row.has_verdict]
    rewards: dict[str, list[str]] = {}
    errors: dict[str, list[str]] = {}
    for row in rows:
        key, kept = (f"{row.score}", rewards) if row.has_verdict else (_exception_type(row), errors)
        kept.setdefault(key, []).append(trial_name(row, suite))
    mean = sum(row.score for row in rows) / len(rows) if rows else 0.0
    stats = {"n_trials": len(rows), "n_errors": len(rows) - len(judged)}
    about = {**stats, "metrics": [{"mean": mean}], "reward_stats": {"reward": rewards}, "exception_stats": errors}
    return {
        "id": str(_id(suite, "")), "started_at": min((row.started_at for row in judged), default=None),
        "finished_at": max((row.ended_at for row in judged), default=None), "n_total_trials": len(rows),
        "stats": {**stats, "evals": {f"{agent}__adhoc": about}},
    }  # fmt: skip


def trial_result(row: Row, entry: Entry, *, agent: str, suite: str, uri: str) -> dict[str, object]:
    """result.json of one trial."""
    timing = dict(_timing(row))
    return {
        "id": str(_id(suite, row.id)),
        "task_name": row.task_id or row.id,
        "trial_name": trial_name(row, suite),
        "trial_uri": uri,
        "task_id": {"path": entry.path},
        "source": None,
        "task_checksum": row.task_sha256,
        "config": _config(row, entry, agent, suite),
        "agent_info": {"name": agent, "version": "unknown", "model_info": None},
        "agent_result": None,
        "verifier_result": {"rewards": {"reward": row.score}} if row.has_verdict else None,
        "exception_info": None if row.has_verdict else _exception(row),
        "started_at": row.started_at or None,
        "finished_at": row.ended_at or None,
        "environment_setup": timing.get("setup"),
        "agent_setup": None,
        "agent_execution": timing.get("agent"),
        "verifier": timing.get("grader"),
        "ringfence": {"status": row.status, "pass": row.passed, "violations": row.violations, "version": __version__},
    }


def _write_trial(folder: str, place: str, row: Row, entry: Entry, agent: str, suite: str) -> None:
    make_private(place)
    _write(os.path.join(place, "config.json"), _config(row, entry, agent, suite))
    for name, target in _LOGS.items() if row.has_verdict else ():
        source = os.path.join(folder, TASKS, row.folder, name)
        if os.path.isfile(source):
            make_private(os.path.join(place, os.path.dirname(target)))
            shutil.copyfile(source, os.path.join(place, target), follow_symlinks=False)
    if row.has_verdict:
        make_private(os.path.join(place, "verifier"))
        write_whole(os.path.join(place, "verifier", "reward.txt"), f"{row.score:g}\n".encode(), mode=0o644)
    uri = Path(place).as_uri()
    _write(os.path.join(place, "result.json"), trial_result(row, entry, agent=agent, suite=suite, uri=uri))


def _config(row: Row, entry: Entry, agent: str, suite: str) -> dict[str, object]:
    return {"task": {"path": entry.path}, "trial_name": trial_name(row, suite), "agent": {"name": agent},
            "job_id": str(_id(suite, ""))}  # fmt: skip


def _exception(row: Row) -> dict[str, object]:
    return {"exception_type": _exception_type(row), "exception_message": row.error, "exception_traceback": "",
            "occurred_at": None}  # fmt: skip


def _exception_type(row: Row) -> str:
    return {"failed": "InfrastructureError", "refused": "TaskRefusedError"}.get(row.state, "CancelledError")


def _timing(row: Row) -> Iterator[tuple[str, dict[str, str]]]:
    """When each phase began and ended. The bundle says how long they took, but not the gaps between them: so they are
    placed back to back, the last one at the end."""
    ends = parse_time(row.ended_at) if row.ended_at else None
    for name, seconds in reversed(row.phases):
        if ends is None:
            return
        begins: datetime = ends - timedelta(seconds=seconds)
        yield name.partition(" ")[0], {"started_at": format_time(begins), "finished_at": format_time(ends)}
        ends = begins


def _id(suite: str, entry_id: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_URL, f"urn:ringfence:suite:{suite}:{entry_id}")


def _write(path: str, document: Mapping[str, object]) -> None:
    write_whole(path, json_text(document).encode() + b"\n", mode=0o644)
