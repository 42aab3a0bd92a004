"""The agent's sandbox: the staged workspace at its place, the instruction three times, and nothing of the answer.

Runs the set-up and the agents of a task one after the other. The outcomes say what they did; only a mistake of the
operator's is an exception.
"""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Sequence

from ringfence.checkpoint.transaction import Transaction
from ringfence.engine.run import run
from ringfence.errors import SetupError, UsageError
from ringfence.model.job import Job
from ringfence.model.outcome import Outcome
from ringfence.model.paths import within
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import record, replace
from ringfence.model.ways.walk import absolute, real
from ringfence.proctor.place import other_runs
from ringfence.proctor.rooted import phase
from ringfence.proctor.submission import let_in
from ringfence.proctor.suite import agents
from ringfence.proctor.task import Step, Task
from ringfence.proctor.watching import Watching
from ringfence.sandbox.root import PRIVATE, SYSTEM_FOLDERS

TASK_FOLDER = "/task"
INSTRUCTION, SETUP = f"{TASK_FOLDER}/instruction.md", f"{TASK_FOLDER}/setup.sh"
ORACLE, GRADER = "/oracle", "/grader"
VARIABLE, FILE_VARIABLE = "PROCTOR_INSTRUCTION", "PROCTOR_INSTRUCTION_FILE"
_OWN = "ringfence-"
"""How the names of our temporary directories begin."""
_LONGEST_VARIABLE = 100_000
"""The kernel takes 128 KiB in one variable; a longer instruction is only in the file and on standard input."""
_IN_THE_WAY = (errno.ENOTDIR, errno.ELOOP, errno.ENOENT, errno.EEXIST, errno.EBUSY, errno.EACCES)
_OF_A_SHELL = frozenset("|&;<>()$`\\\"'*?[]#~=%!{}\n")


@record
class Ran:
    """One step that has run."""

    step: Step
    policy: SandboxPolicy
    outcome: Outcome


def words_of(command: str) -> tuple[str, ...]:
    """The command as a program and its arguments; a command that needs a shell is given to one. Files of the caller get
    their full path: the agent begins in another directory."""
    return tuple(absolute(word) if _is_own_file(word) else word for word in _plain_words(command))


def _plain_words(command: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", command) if _OF_A_SHELL & set(command) else tuple(shlex.split(command))


def _is_own_file(word: str) -> bool:
    return os.path.isfile(word) and not os.path.isabs(word)


def files_of(command: str) -> tuple[str, ...]:
    """Files of the caller that the command names; they are shown to the agent, and bound by the evidence. Never for a
    task's own command: a task from somebody else could then name any file of the caller."""
    if command in agents.NAMES:
        return ()
    named = [word for word in words_of(command) if os.path.isabs(word) and os.path.isfile(word)]
    return tuple(dict.fromkeys(path for path in map(real, named) if not _is_of_the_system(path)))


def _is_of_the_system(path: str) -> bool:
    return any(within(path, folder) for folder in SYSTEM_FOLDERS)


def steps_of(task: Task, agent: str) -> tuple[Step, ...]:
    """What runs one after the other, each with its command and its instruction."""
    steps = task.steps or (Step(name="agent"),)
    return tuple(
        replace(step, command=step.command or agent, instruction=step.instruction or task.instruction) for step in steps
    )


def never_seen(task: Task, out: str) -> tuple[str, ...]:
    """All names of what no agent may reach, on the host and inside; attempts on them are recorded."""
    inside = [task.grader.oracle_at if task.grader else ORACLE, *([agents.SOLUTION] if task.root is not None else [])]
    outside = (path for path in _on_host(task, out) if not _is_random(path))
    return tuple(dict.fromkeys((ORACLE, GRADER, *inside, *task.policy.forbidden_reads, *outside)))


def _on_host(task: Task, out: str) -> list[str]:
    grader = task.grader.script if task.grader else ""
    reference = task.grader.reference if task.grader else ""
    own = (task.folder, task.oracle, grader, reference, task.solution, *task.sources, out)
    return [real(path) for path in own if path]


def watched_for(task: Task, out: str) -> str:
    """The first name on the host that makes it necessary to watch calls one by one; empty: tripwires can be laid."""
    names = (path for path in never_seen(task, out) if any(within(path, folder) for folder in PRIVATE))
    return next(names, "") if task.root is None else ""


def _is_random(path: str) -> bool:
    """Whether it lies in a temporary directory that we made for this run: nobody can guess its name, the sandbox has
    its own /tmp, and a name in there would rule out tripwires."""
    return any(path.startswith(f"{folder}/{_OWN}") for folder in PRIVATE)


def refuse_answers(task: Task, agent: str, scaffold: Sequence[str], out: str) -> None:
    """UsageError where the command or the scaffold names what no agent may read. Beside the output directory lies the
    run's own, with copies of everything that grades."""
    closed, folder = _on_host(task, out), real(out)
    for path in map(real, (*scaffold, *files_of(agent))):
        if within(folder, path):
            raise UsageError(f"the output directory {out} would be shown to the agent, in {path}",
                             hint="name one elsewhere, or less of the scaffold")  # fmt: skip
        if any(within(path, each) for each in closed):
            raise UsageError(f"{path} would be shown to the agent, and belongs to the task itself",
                             hint="keep what belongs to the agent outside of the task's directory")  # fmt: skip


def set_up(task: Task, staged: str, place: str, out: str) -> Outcome | None:
    """Run the task's own set-up on the staged workspace and keep what it made; SetupError where it fails. Over a root,
    which stays as it is, the agents go on in its layer."""
    if not task.setup:
        return None
    shown = {**_workspace(task, staged), task.setup: SETUP}
    hidden = tuple(path for path in never_seen(task, out) if not within(task.setup, path))
    policy = task.policy.sandbox_policy(
        "setup", shown_at=shown, hidden_paths=hidden, **phase.fields(task, task.environment)
    )
    job = Job(argv=("/bin/sh", SETUP), cwd=phase.start(task))
    with _layers_of_setup(task, staged, place) as transaction:
        outcome = run(job, policy, transaction=transaction)
        if not outcome.ok:
            said = outcome.stderr.decode("utf-8", "replace").strip().splitlines()
            raise SetupError("set up the task", f"{outcome.reason}: {ascii(said[-1]) if said else 'it said nothing'}")
        if task.root is None:
            transaction.commit()
    return outcome


def _layers_of_setup(task: Task, staged: str, place: str) -> Transaction:
    if task.root is not None:
        return phase.layers(task, staged, place)
    return Transaction.create(os.path.join(place, "setup"), [staged], kind="overlay")


def _workspace(task: Task, staged: str) -> dict[str, str]:
    """Where it is shown; with a root there may be none."""
    return {staged: task.policy.mount_at} if staged else {}


def run_agents(
    task: Task, agent: str, transaction: Transaction, place: str, out: str, scaffold: Sequence[str],
    watching: Watching, staged: str,
) -> list[Ran]:  # fmt: skip
    """Run each. An agent that hits a limit is the last one. So is an agent after which the next step can't begin in the
    workspace that it left: no agent can cause an error."""
    ran: list[Ran] = []
    for number, step in enumerate(steps_of(task, agent)):
        file = os.path.join(place, f"instruction-{number}.md")
        own = agent if step.command == agent else ""  # a task can't have the solution shown to its own steps
        policy = policy_of(task, staged, file, out, (*scaffold, *files_of(agent)), own)
        job = _job(step, _argv(task, step, agent), file, phase.start(task))
        for _, layer in transaction.layers:  # the previous agent may have locked it, and that is no error of ours
            let_in(os.path.join(layer, "upper"))
        try:
            with watching.phase(step.name, policy.wall_time_s) as (on_event, attach):
                outcome = run(job, policy, transaction=transaction, on_event=on_event, attach=attach)
        except SetupError as error:
            if not ran or not _is_of_the_workspace(error, job.argv[0], task):
                raise
            break
        ran.append(Ran(step=step, policy=policy, outcome=outcome))
        if outcome.limits_hit and not outcome.ok:
            break
    return ran


def _is_of_the_workspace(error: SetupError, program: str, task: Task) -> bool:
    """Whether a step could not begin because its directory is locked, or because its program, which lies in the
    workspace, can't be started. In a root, the previous agent could change everything."""
    if task.root is not None:
        return error.step in ("chdir", "exec") or error.errno in _IN_THE_WAY
    own = "/" in program and (not os.path.isabs(program) or within(os.path.normpath(program), task.policy.mount_at))
    return error.step == "chdir" or (error.step == "exec" and own)


def _argv(task: Task, step: Step, agent: str) -> tuple[str, ...]:
    if step.command != agent:
        return _plain_words(step.command)
    return agents.words_of(agent, task) or words_of(agent)


def _overlap(one: str, other: str) -> bool:
    return within(one, other) or within(other, one)


def policy_of(
    task: Task, staged: str, instruction: str, out: str, given: Sequence[str] = (), agent: str = ""
) -> SandboxPolicy:
    """What binds the agent. ``given``: what else of the host it may read. ``agent``: its command or name."""
    own = agents.shown_to(agent, task)
    shown = {**_workspace(task, staged), instruction: INSTRUCTION, **own}
    readable = tuple(dict.fromkeys(map(real, given)))
    open_to_it = [*map(real, own), *own.values()]
    seen = (*never_seen(task, out), *other_runs.found_in(readable))
    hidden = tuple(path for path in seen if not any(_overlap(path, each) for each in open_to_it))
    variables = {**task.environment, **task.solution_environment} if own else task.environment
    return task.policy.sandbox_policy(
        "agent", shown_at=shown, readable_paths=readable, hidden_paths=hidden, **phase.fields(task, variables)
    )


def _job(step: Step, argv: tuple[str, ...], file: str, start: str | None) -> Job:
    """The instruction as a file, in a variable and on standard input."""
    text = step.instruction.encode("utf-8", "surrogateescape")
    with open(file, "xb") as written:
        written.write(text)
    told = {FILE_VARIABLE: INSTRUCTION}
    if len(text) < _LONGEST_VARIABLE and b"\0" not in text:
        told[VARIABLE] = step.instruction
    return Job(argv=argv, environment=told, stdin=text, cwd=start)
