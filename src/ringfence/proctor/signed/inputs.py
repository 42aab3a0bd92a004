"""What goes into a proctored run, by content: hashed before anything has run, and bound by its evidence."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence

from ringfence.errors import EvidenceError, UsageError
from ringfence.evidence.canonical import canonical
from ringfence.evidence.inputs import Input, data_input, file_input, image_input, tree_input
from ringfence.model.ways.walk import real
from ringfence.proctor import agent_run
from ringfence.proctor.suite import agents
from ringfence.proctor.task import Task

_OF_THE_TASK = (errno.ELOOP, errno.ENOENT, errno.ENOTDIR, errno.ENXIO)
"""Errors of a read where something has become a link or a socket, or is gone."""


def inputs_of(task: Task, agent: str, scaffold: Sequence[str]) -> tuple[Input, ...]:
    """The inputs, hashed before anything has run. UsageError where one is not a file, directory or link."""
    try:
        return _hashed(task, agent, scaffold)
    except EvidenceError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno not in _OF_THE_TASK:
            raise
        raise UsageError(f"task {task.id}: {error}", hint="a task has files, directories and links") from error


def _hashed(task: Task, agent: str, scaffold: Sequence[str]) -> tuple[Input, ...]:
    grader = task.grader
    found = [
        *([tree_input("task", "workspace", task.workspace)] if task.workspace else []),
        *_image_inputs(task),
        *_settings(task),
        data_input("instruction", "instruction.md", in_bytes(task.instruction)),
        data_input("policy", "policy.yaml", task.policy.text),
        data_input("agent", "command", in_bytes(agent)),
        data_input("grader", "command", in_bytes(" ".join(grader.argv if grader else ()))),
    ]
    found += [tree_input("oracle", "oracle", task.oracle)] if task.oracle else []
    found += [data_input("oracle", "instance.json", grader.instance.text)] if grader and grader.instance else []
    found += [_input("grader", path) for path in ((grader.script, grader.reference) if grader else ()) if path]
    found += [file_input("other", "setup.sh", task.setup)] if task.setup else []
    found += [data_input("task", "notes", in_bytes("\n".join(task.notes)))] if task.notes else []
    described = os.path.join(task.folder, "task.yaml")
    found += [file_input("task", "task.yaml", described)] if task.folder and os.path.isfile(described) else []
    found += [file_input("agent", path, path) for path in agent_run.files_of(agent)]
    found += [_input("agent", path, "solution") for path in agents.shown_to(agent, task)]
    return (*found, *(_input("scaffold", real(path)) for path in scaffold))


def _image_inputs(task: Task) -> list[Input]:
    """An image by its digest; if nobody names one, by the content of its files."""
    root = task.root
    if root is None:
        return []
    if root.image_digest:
        return [image_input(root.image_ref or "image", root.image_digest)]
    found = tree_input("image", root.image_ref or "image", root.folder)
    return [image_input(found.name, f"sha256:{found.sha256}")]


def _settings(task: Task) -> list[Input]:
    """What a task says beyond its files: variables, how its image is used, and whom the operator lets it reach."""
    told: dict[str, object] = {"environment": _without_values(task, task.environment)}
    told["grader_environment"] = _without_values(task, task.grader.environment) if task.grader else {}
    if task.solution_environment:
        told["solution_environment"] = _without_values(task, task.solution_environment)
    networks = {name: getattr(task.policy, name) for name in ("setup_network", "network", "grader_network")}
    told |= {name: [rule.plain() for rule in rules] for name, rules in networks.items() if rules}
    if task.root is not None:
        told["root"] = {"environment": dict(task.root.environment), "workdir": task.root.workdir,
                        "user": task.root.user}  # fmt: skip
    return [data_input("task", "settings", in_bytes(plain_text(told)))] if any(told.values()) else []


def _without_values(task: Task, variables: Mapping[str, str]) -> dict[str, str | None]:
    """The operator's variables by their names alone: anybody can guess a short secret from its digest."""
    return {name: None if name in task.private_variables else value for name, value in variables.items()}


def _input(role: str, path: str, name: str = "") -> Input:
    return (tree_input if os.path.isdir(path) else file_input)(role, name or path, path)


def in_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def plain_text(document: Mapping[str, object]) -> str:
    """File names need not be valid text: what can't be encoded is replaced."""
    return canonical(_cleaned(document)).decode("utf-8")


def _cleaned(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        return {str(_cleaned(name)): _cleaned(item) for name, item in value.items()}
    return [_cleaned(item) for item in value] if isinstance(value, list | tuple) else value
