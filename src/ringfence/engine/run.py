"""The main path. ``run(job, policy)``: pick a backend, refuse what it cannot promise, run, judge."""

from __future__ import annotations

import os
import sys
from _collections_abc import Mapping, Sequence

from ringfence.backends.facts import Traits
from ringfence.engine.keywords import job_of, policy_of
from ringfence.engine.supervision import Attach, Listeners, supervise
from ringfence.errors import CheckpointError, UnavailableError
from ringfence.model.events import OnEvent, OnOutput
from ringfence.model.job import Job
from ringfence.model.lack import Lack
from ringfence.model.limits import IsolationLevel
from ringfence.model.outcome import Outcome
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Never

    from ringfence.backends.contract import Backend, JobBox
    from ringfence.checkpoint.transaction import Transaction

# By name, so that a level is loaded only when it is used.
BACKENDS = {
    IsolationLevel.NONE: ("ringfence.backends.unsafe", "UnsafeBackend"),
    IsolationLevel.PROCESS: ("ringfence.backends.process", "ProcessBackend"),
    IsolationLevel.CONTAINER: ("ringfence.backends.container", "ContainerBackend"),
    IsolationLevel.STRICT: ("ringfence.backends.strict", "StrictBackend"),
}
if os.name == "nt":
    BACKENDS |= {
        IsolationLevel.NONE: ("ringfence.backends.on_windows.process", "WindowsUnsafeBackend"),
        IsolationLevel.PROCESS: ("ringfence.backends.on_windows.process", "WindowsBackend"),
    }

ACCEPT_LESS = "or accept less with allow_partial (--allow-partial)"
"""The hint for a refusal if part of the policy could still be enforced."""


def run(
    job: Job | Sequence[str | os.PathLike[str]],
    policy: SandboxPolicy | None = None,
    *,
    cwd: str | os.PathLike[str] | None = None,
    input: bytes | None = None,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    on_event: OnEvent | None = None,
    on_output: OnOutput | None = None,
    attach: Attach | None = None,
    commit: bool = False,
    transaction: Transaction | None = None,
    keep: str = "",
    **unknown: Never,
) -> Outcome:
    """Run a job under a policy and say how it ended.

    ``cwd``, ``input`` and ``env`` complete a job. With ``cwd`` the job sees that directory and works there; without
    it the job works in an empty private one. ``env`` adds to the small clean environment. ``timeout`` replaces the
    policy's wall time: when it is over, the outcome says TIMEOUT, and nothing is raised.

    What the program does is in the outcome; only errors of ringfence or of the caller are exceptions. With ``commit``
    what it changed in its workspace is carried over. Else a level with a layer throws the changes away, or makes a
    transaction of them in the new directory ``keep``, as it does with those that can't be carried over; without
    ``keep`` those are lost, and that is a CheckpointError, such as ConflictError. With ``transaction`` it works on the
    directories of that one.

    >>> run(["echo", "hello"]).stdout
    b'hello\\n'
    """
    job, policy = job_of(job, cwd=cwd, input=input, env=env, **unknown), policy_of(policy, timeout)
    backend = backend_for(policy.isolation)
    lacks = refuse(backend, policy)
    listeners = Listeners(on_event=on_event, on_output=on_output, attach=attach)
    box = backend.open(policy)
    try:
        if transaction is not None:
            box.work_on(transaction)
        outcome = supervise(box, job, policy, partial=bool(lacks), listeners=listeners)
        changes = box.changes()
        outcome = replace(outcome, changes=tuple(changes), changes_complete=changes.complete)
        if commit:
            outcome = _committed(box, outcome, keep)
        elif keep and outcome.changes:
            outcome = _kept(box, outcome, keep)
    finally:
        left = close_whole(box)
    # The state of the job's directory must not lose its outcome: a job must not be able to cause an exception.
    return replace(outcome, reason=f"{outcome.reason}; {left}", left_behind=left) if left else outcome


def close_whole(box: JobBox) -> str:
    """Close it and say what could not be removed. Ctrl-C in the middle, or another exception of a signal handler, is
    raised when nothing is left."""
    try:
        return box.close()
    except BaseException:
        box.close()
        raise


def _committed(box: JobBox, outcome: Outcome, folder: str) -> Outcome:
    """Commit; if that fails, e.g. because another process changed the same files, keep the changes if possible."""
    try:
        box.commit()
    except CheckpointError as error:
        if not folder:
            raise
        reason = f"{outcome.reason}; the changes could not be applied: {error}"
        return _kept(box, replace(outcome, reason=reason, commit_problem=str(error)), folder)
    return replace(outcome, committed=True)


def _kept(box: JobBox, outcome: Outcome, folder: str) -> Outcome:
    """A job may leave more than can be kept; that is reported, and its outcome is not lost."""
    try:
        return replace(outcome, transaction=folder) if box.keep(folder) else outcome
    except CheckpointError as error:
        reason = f"{outcome.reason}; the changes could not be kept: {error}"
        return replace(outcome, reason=reason, keep_problem=str(error))


def transaction_kind(policy: SandboxPolicy) -> str:
    """The kind of transaction that a job under this policy can work on here, for ``Transaction.create(…, kind=…)``."""
    return backend_for(policy.isolation).transaction_kind()


def backend_for(level: IsolationLevel) -> Backend:
    """The backend of an isolation level."""
    if level not in BACKENDS:
        raise UnavailableError(
            f"isolation {level} is not available in this version", missing=(str(level),),
            hint=f"choose one of {', '.join(BACKENDS)}",
        )  # fmt: skip
    module, name = BACKENDS[level]
    __import__(module)  # importlib would load much more than this one module
    backend: Backend = getattr(sys.modules[module], name)()
    return backend


def traits_of(level: IsolationLevel) -> Traits:
    """What a door has to know of a level; nothing for a level that this version does not have."""
    return backend_for(level).traits if level in BACKENDS else Traits()


def isolating_levels() -> tuple[IsolationLevel, ...]:
    """The levels whose promises can be tested: ``selfcheck`` and the conformance tests run these."""
    return tuple(level for level in BACKENDS if traits_of(level).isolates)


def refuse(backend: Backend, policy: SandboxPolicy) -> tuple[Lack, ...]:
    """Raise when this host can't hold the policy, unless the policy allows less; then say what."""
    lacks = backend.lacks(policy)
    if lacks and not policy.allow_partial:
        named = "; ".join(f"{lack.asked} needs {lack.missing}" for lack in lacks)
        where = "" if all(lack.by_level for lack in lacks) else " on this host"
        fixes = dict.fromkeys(f"{lack.field}: {lack.fix}" for lack in lacks)
        less = () if any(lack.whole for lack in lacks) else (ACCEPT_LESS,)
        raise UnavailableError(
            f"isolation {backend.level} can't enforce this policy{where}: {named}",
            missing=tuple(lack.capability for lack in lacks),
            fixes=(*fixes, *less),
        )
    return lacks
