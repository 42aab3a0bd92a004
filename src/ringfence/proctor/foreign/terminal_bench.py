"""Tasks of Terminal-Bench 1: a directory with ``task.yaml``, ``run-tests.sh`` and ``tests/``, read into our own
``Task``.

Every key of ``task.yaml`` and of the compose file is honoured, told in a note, or refused with its name. The exit
status of ``run-tests.sh`` decides, by our own channel; pytest's printed summary can only take a pass away.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ringfence.container.engine import Engine
from ringfence.errors import UsageError
from ringfence.model.network_list import read_rules
from ringfence.model.policy_file import policy_bytes
from ringfence.model.record import replace
from ringfence.proctor.foreign import checking, compose, scripts
from ringfence.proctor.foreign.compose import Compose
from ringfence.proctor.foreign.environment import Described, prepare
from ringfence.proctor.foreign.host_facts import HostFacts
from ringfence.proctor.task import Grader, Task, TaskFolder
from ringfence.proctor.task_policy import TaskPolicy

FILE = "task.yaml"
TESTS, SOLUTION, SCRIPT = "/tests", "/solution", "run-tests.sh"
_OWN = (FILE, "tests", SCRIPT, "solution.sh", "solution.yaml", "docker-compose.yaml")
"""In the task's directory, which is the context of its Dockerfile: no COPY may have them."""
_AGENT_S, _TEST_S = 360.0, 60.0
_NOTHING: Mapping[str, str] = MappingProxyType({})
_TEXTS = ("instruction", "author_name", "author_email", "difficulty", "category", "tags", "parser_name")


def _same_shell(value: object) -> str:
    return checking.flag(value) or ("tests in the agent's own shell are not run: the grader has another sandbox"
                                    if value else "")  # fmt: skip


def _parser(value: object) -> str:
    return "" if value == "pytest" else f"{value!r} is not read; there is pytest"


_KEYS: checking.Table = {
    "instruction": checking.filled, "author_name": None, "author_email": None,
    "difficulty": checking.one_of("easy", "medium", "hard", "unknown"), "category": None,
    "tags": None, "parser_name": _parser, "max_agent_timeout_sec": checking.seconds,
    "max_test_timeout_sec": checking.seconds, "run_tests_in_same_shell": _same_shell,
    "disable_asciinema": checking.flag, "estimated_duration_sec": None, "expert_time_estimate_min": None,
    "junior_time_estimate_min": None,
}  # fmt: skip


def read(path: str) -> Mapping[str, object]:
    """The file's values, checked key by key; PolicyError names the file, and line and key of everything wrong."""
    return checking.read_yaml(path, _checked, _TEXTS)


def _checked(values: Mapping[str, object]) -> Mapping[str, object]:
    problems = [*checking.problems(values, _KEYS)]
    if isinstance(values, Mapping) and "instruction" not in values:
        problems.append(("instruction", "is missing"))
    if problems:
        raise checking.first_of(problems, values)
    return values


def load(
    path: str, *, rootfs: str, allow: Sequence[str] = (), environment: Mapping[str, str] = _NOTHING,
    build_network: str = "", engine: Engine | None = None, host: HostFacts | None = None,
) -> Task:  # fmt: skip
    """The task of a directory. ``rootfs``: host or image. ``allow``: hosts that agent and tests may reach; in
    Terminal-Bench they have the whole network. No task of this kind asks for variables of the operator's
    (``environment``)."""
    folder = TaskFolder(path)
    file = folder.needed(folder.file(FILE), FILE)
    values = read(file)
    script = folder.needed(folder.file(SCRIPT), f"{SCRIPT}, which decides")
    composed = _composed(folder)
    described = replace(_described(folder, file, composed), build_network=build_network)
    ready = prepare(described, rootfs, engine=engine, host=host)
    tests = folder.needed(folder.directory("tests"), "tests/, which the grader has")
    agent_s, test_s = (float(str(values.get(f"max_{who}_timeout_sec", default)))
                       for who, default in (("agent", _AGENT_S), ("test", _TEST_S)))  # fmt: skip
    return Task(
        id=os.path.basename(folder.path), kind="terminal-bench", workspace=ready.workspace, root=ready.root,
        folder=folder.path, instruction=str(values["instruction"]), oracle=tests, solution=folder.file("solution.sh"),
        grader=Grader(
            argv=(*scripts.interpreter(script), f"/grader/{SCRIPT}"), script=script, oracle_at=TESTS, results="pytest",
            wall_time_s=test_s, environment={**ready.environment, **composed.environment, "TEST_DIR": TESTS},
        ),
        policy=_policy(policy_bytes(file), ready.mount_at, composed, agent_s, test_s, allow),
        environment={**ready.environment, **composed.environment},
        notes=(*_notes(folder, file, composed, allow), *ready.notes),
    )  # fmt: skip


def _composed(folder: TaskFolder) -> Compose:
    file = folder.file("docker-compose.yaml")
    return compose.read(file) if file else Compose(environment=_NOTHING)


def _described(folder: TaskFolder, file: str, composed: Compose) -> Described:
    dockerfile = folder.file(composed.dockerfile)
    if not dockerfile:
        raise UsageError(f"{folder.path} has no {composed.dockerfile}, which says what the agent has",
                         hint="docker-compose.yaml may name another")  # fmt: skip
    return Described(where=file, name=os.path.basename(folder.path), context=folder.path, dockerfile=dockerfile,
                     network=composed.network, workdir=composed.workdir, own=_OWN)  # fmt: skip


def _policy(
    data: bytes, mount_at: str, composed: Compose, agent_s: float, test_s: float, allow: Sequence[str]
) -> TaskPolicy:
    memory = {"memory_bytes": composed.memory_bytes} if composed.memory_bytes else {}
    rules = read_rules(allow if composed.network else ())
    return TaskPolicy(
        mount_at=mount_at, keep_git=True, text=data, forbidden_reads=(TESTS, SOLUTION), wall_time_s=agent_s,
        grader_wall_time_s=test_s, network=rules, grader_network=rules,
        **memory,  # type: ignore[arg-type]
    )  # fmt: skip


def _notes(folder: TaskFolder, file: str, composed: Compose, allow: Sequence[str]) -> list[str]:
    found = []
    if composed.network and not allow:
        found.append(f"{file}: Terminal-Bench gives the whole network; here agent and tests have none; "
                     "--allow HOST names whom they may reach")  # fmt: skip
    if folder.file("solution.yaml"):
        found.append(f"{folder.path}/solution.yaml: keys typed into a terminal are not played; the oracle needs "
                     "solution.sh")  # fmt: skip
    return found
