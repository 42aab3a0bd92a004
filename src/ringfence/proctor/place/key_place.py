"""Where a key that signs verdicts must not lie: in what an agent or a grader is shown, or in what is copied for them.
Whoever reads it can sign any verdict, and code of an agent runs in graders too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ringfence.errors import UsageError
from ringfence.model.job import Job
from ringfence.model.limits import IsolationLevel
from ringfence.model.paths import within
from ringfence.model.policy import SandboxPolicy
from ringfence.model.ways.walk import real
from ringfence.proctor.agent_run import files_of, steps_of, words_of
from ringfence.proctor.agents.resolve import resolve
from ringfence.proctor.task import Task
from ringfence.sandbox.showing import by_itself

_STRICT = SandboxPolicy(isolation=IsolationLevel.STRICT)


def refuse_in(key_file: str, shown: Iterable[str], commands: Iterable[Sequence[str]] = ()) -> None:
    """UsageError where the key lies in one of these, or in what a sandbox shows because of one of these commands."""
    by_itself_too = (path for argv in commands for path in by_itself(_STRICT, Job(argv=tuple(argv))))
    for path in (*shown, *by_itself_too):
        if within(real(key_file), real(path)):
            raise UsageError(f"the signing key {key_file} would be shown to the agent or its grader, in {path}",
                             hint="keep the key elsewhere, or name another")  # fmt: skip


def refuse_in_task(key_file: str, task: Task, agent: str, shown: Sequence[str]) -> None:
    """The same for all that a task and an agent's command have."""
    agent = resolve(agent, task).command
    root = task.root.folder if task.root is not None else ""
    own = (task.folder, task.workspace, root, task.setup, *task.sources, *(path for _, path in task.own_paths()))
    commands = _commands(task, agent) if task.root is None else ()
    refuse_in(key_file, (*filter(None, own), *shown, *files_of(agent)), commands)


def _commands(task: Task, agent: str) -> Iterator[Sequence[str]]:
    yield from (words_of(step.command) for step in steps_of(task, agent))
    if task.grader is not None:
        yield task.grader.argv
