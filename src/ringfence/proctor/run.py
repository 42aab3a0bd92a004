"""The proctored run: stage, set up, agent, submission, grader, evidence. One function reads from top to bottom.

What the agent does is in the verdict. What the operator or we get wrong is an exception, and then there is none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from ringfence.attest.signing import chosen_key
from ringfence.checkpoint.transaction import Transaction
from ringfence.engine.run import ACCEPT_LESS
from ringfence.errors import UnavailableError
from ringfence.evidence.keys import SigningKey
from ringfence.model.outcome import Outcome
from ringfence.model.record import record, replace
from ringfence.proctor import agent_run, grading, staging, submission
from ringfence.proctor.agent_run import Ran
from ringfence.proctor.agents.resolve import resolve
from ringfence.proctor.display import Display
from ringfence.proctor.findings import Finding, findings_of, gaps_of
from ringfence.proctor.grading import Grading
from ringfence.proctor.load_ahead import load_ahead
from ringfence.proctor.place import other_runs
from ringfence.proctor.place.holding import hold
from ringfence.proctor.place.new_output import output_of_run
from ringfence.proctor.place.workplace import workplace
from ringfence.proctor.rooted import phase
from ringfence.proctor.signed.inputs import inputs_of
from ringfence.proctor.submission import Submission
from ringfence.proctor.submission_manifest.bound import NOT_BOUND, Bound
from ringfence.proctor.task import Task
from ringfence.proctor.watching import Watching

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.proctor.signed.records import About

_AFTER_THE_AGENT = ("ringfence.proctor.script_grader", "ringfence.proctor.signed.records")


@record
class Verdict:
    """What a proctored run came to; all of it is in the bundle too."""

    task_id: str
    passed: bool
    status: str
    """``clean`` or ``compromised``."""
    reward: float | None
    """Absent: the task has none."""
    findings: tuple[Finding, ...]
    grading: Grading
    agents: tuple[Outcome, ...]
    out: str
    public_key: str

    @property
    def score(self) -> float:
        """The reward, or 1 for a pass without one; nothing for a run that is not clean."""
        earned = float(self.passed) if self.reward is None else self.reward
        return earned if self.status == "clean" else 0.0


def proctor(
    task: Task, agent: str, out: str | os.PathLike[str], *,
    key: SigningKey | None = None, scaffold: Sequence[str] = (), display: Display | None = None, nonce: str = "",
    bound: Bound = NOT_BOUND,
) -> Verdict:  # fmt: skip
    """Run the agent on the task in a sandbox without the answer, grade what it left in another, and sign what
    happened.

    ``agent``: its command, or ``@NAME`` of a ready one. ``scaffold``: files and directories that it may read; they are
    bound by the evidence. ``nonce``: the challenge of whoever wants to know that the run is fresh. ``bound``: the
    manifest of what was handed in, as ``submission_manifest.binding.bind`` has compared it. The output directory must
    be new or empty; where no key is given, one is made there. """
    ready = resolve(agent, task)
    agent, task = ready.command, ready.task
    scaffold = tuple(dict.fromkeys((*scaffold, *bound.shown)))
    _refuse(task, agent, scaffold, os.fspath(out))
    with output_of_run(os.fspath(out)) as folder:
        key = key or chosen_key(folder=folder).key
        started, watching = datetime.now(UTC), Watching(task, display)
        given = inputs_of(task, agent, scaffold)
        watching.tell(bound.findings)
        with workplace(folder) as place, _held_whole():
            staged = staging.stage(task, place)
            held = hold(task, given, staged, place)
            setup = agent_run.set_up(replace(task, setup=held.setup), staged, place, folder)
            prepared = _prepare(held, staged)
            ran, left = _run_agents(task, agent, staged, place, folder, scaffold, watching)
            graded = _grade(held, prepared, left, watching)
            bound.confirm()
            found = (*bound.findings, *_findings(task, ran, left))
            from ringfence.proctor.signed import records  # loaded while the agent ran

            about = records.About(
                task=task, agent=agent, nonce=nonce, started_at=started, inputs=given, setup=setup, ran=tuple(ran),
                submission=left, grading=graded, findings=found, usage=tuple(watching.recorded),
                attached={**ready.documents, **bound.documents},
            )  # fmt: skip
            signed = records.write_all(folder, about, key)
    if display is not None:
        display.verdict(signed, os.path.join(folder, records.REPORT))
    return _verdict(about, signed, folder, key)


@contextmanager
def _held_whole() -> Iterator[None]:
    """No run is proctored with less than its policy, and there is no flag for that: so it is no advice here."""
    try:
        yield
    except UnavailableError as error:
        if ACCEPT_LESS not in error.fixes:
            raise
        fixes = tuple(fix for fix in error.fixes if fix != ACCEPT_LESS)
        raise UnavailableError(str(error), missing=error.missing, fixes=fixes) from error.__cause__


def _refuse(task: Task, agent: str, scaffold: Sequence[str], out: str) -> None:
    """UsageError, before anything is made, where an agent would see what it must not, or nothing could grade it."""
    staging.refuse_pytest_in_root(task)
    staging.refuse_output_in(task, out)
    if not task.policy.base_commit:  # else the workspace is made anew of that commit
        other_runs.refuse_in(task.workspace)
    agent_run.refuse_answers(task, agent, scaffold, out)


def _verdict(about: About, signed: dict[str, Any], folder: str, key: SigningKey) -> Verdict:
    return Verdict(
        task_id=about.task.id, passed=signed["pass"], status=signed["status"], reward=signed.get("reward"),
        findings=about.findings, grading=about.grading, agents=tuple(each.outcome for each in about.ran), out=folder,
        public_key=key.public_hex,
    )  # fmt: skip


def _prepare(task: Task, staged: str) -> object | None:
    """What a grader needs from before the agent came."""
    if task.kind == "swebench" and task.root is not None:
        from ringfence.proctor.foreign.swebench import lay_image_build

        lay_image_build(task, staged)
    if task.grader is None:
        return None
    if task.grader.instance is not None:
        from ringfence.proctor.foreign import swebench_grader

        return swebench_grader.prepare(task, staged)
    if not task.grader.pytest:
        return None
    from ringfence.proctor.pytest_grader import prepare

    return prepare(task, staged)


def _run_agents(
    task: Task, agent: str, staged: str, place: str, out: str, scaffold: Sequence[str], watching: Watching
) -> tuple[list[Ran], Submission]:
    with phase.layers(task, staged, place) as transaction:
        load_ahead(_AFTER_THE_AGENT)
        ran = agent_run.run_agents(task, agent, transaction, place, out, scaffold, watching, staged)
        for _, layer in transaction.layers:  # an agent that shut its layer would else leave no diff
            submission.let_in(os.path.join(layer, "upper"))
        from ringfence.proctor.signed.records import DIFF, write_diff

        write_diff(os.path.join(out, DIFF), transaction)
        left = _taken(task, transaction, staged, os.path.join(place, "submission"))
    return ran, left


def _taken(task: Task, transaction: Transaction, staged: str, target: str) -> Submission:
    """What is graded: of the workspace a directory, of the root a layer."""
    left = Submission(folder=target)
    if staged:
        left = submission.take(transaction, staged, target, task.policy.mount_at, task.policy.forbidden_writes)
    if task.root is None:
        return left
    from ringfence.proctor.rooted import layer

    folder, sifted = layer.take(transaction, task)
    return replace(
        left, layer=folder, dropped=(*left.dropped, *sifted.dropped), forbidden=(*left.forbidden, *sifted.forbidden),
        problem=left.problem or sifted.problem,
    )  # fmt: skip


def _grade(task: Task, prepared: object | None, left: Submission, watching: Watching) -> Grading:
    if task.grader is None:
        return Grading(passed=False, reason="the task has no grader")
    with watching.phase("grader", task.grader.wall_time_s) as (on_event, _):
        return grading.grade(task, left, on_event=on_event, prepared=prepared)


def _findings(task: Task, ran: Sequence[Ran], left: Submission) -> tuple[Finding, ...]:
    """Return the findings of all agents; what they wrote although the task forbids it is known only at the end."""
    last = len(ran) - 1
    found: list[Finding] = []
    for number, each in enumerate(ran):
        written = left.forbidden if number == last else ()
        found += [*findings_of(each.outcome.events, task.policy, written), *gaps_of(each.outcome)]
    return tuple(found)
