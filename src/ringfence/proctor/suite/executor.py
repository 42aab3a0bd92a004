"""What runs the tasks of a suite: the protocol, and the one function that runs a task.

A worker's word is never a verdict. It says that a directory is complete; the collector reads the verdict from the
bundle in that directory, and verifies it first. """

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from ringfence.errors import SandboxError, UnavailableError, UsageError
from ringfence.proctor.suite.entry import Entry, Order, Result, State
from ringfence.roles.removal import remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.proctor.task_policy import TaskPolicy

__all__ = ["Entry", "Executor", "Order", "Result", "State", "private_prefix", "run_entry"]



class Executor(Protocol):
    """Runs entries, each at most once per submission.

    All methods are called from one thread, which lives as long as the executor does.
    """

    slots: int
    """How many run at once."""

    def submit(self, entry: Entry) -> None:
        """Run it as soon as there is a slot. May be called while ``results`` is read, and again after a failure."""

    def results(self) -> Iterator[Result]:
        """Each as it comes; ends when nothing that was submitted is left. Never raises for what a worker does."""

    def cancel(self, entry_id: str) -> None:
        """End it with all its sandboxes; its result says so. Does nothing for an unknown or ended entry."""

    def close(self) -> None:
        """End all that still runs, and leave no process and no private directory. May be called again."""


def run_entry(entry: Entry, order: Order, out: str) -> Result:
    """Run one task to its end. Afterwards ``out`` is complete or not there; where it was complete before, nothing runs.

    For a process of its own: it sets the variables of the order, and what it starts ends with it. If two processes run
    the same entry, the first one's directory stays and the other's is thrown away. Interrupted by an exception such as
    KeyboardInterrupt, it cleans up and lets that through.
    """
    started = time.monotonic()
    os.environ.update(order.environment or {})
    try:
        with _private_beside(out) as place:
            return _to_its_end(entry, order, out, place, started)
    except (UsageError, UnavailableError) as error:
        return _without(State.REFUSED, entry, error, started)
    except (SandboxError, OSError, MemoryError) as error:
        return _without(State.FAILED, entry, error, started)


def _to_its_end(entry: Entry, order: Order, out: str, place: str, started: float) -> Result:
    from ringfence.evidence.keys import SigningKey
    from ringfence.proctor.run import proctor
    from ringfence.proctor.suite import agents, completeness
    from ringfence.proctor.suite.loading import load

    task, key = load(entry, _made(place, "task")), SigningKey.from_seed_hex(order.seed)
    agents.words_of(order.agent, task)  # an oracle without a solution ends here
    if order.cluster:
        _keep_from(order.cluster, task.policy)
    wanted = completeness.Wanted(
        task=task, agent=order.agent, scaffold=order.scaffold, nonce=order.nonce(entry.id), public_key=key.public_hex
    )
    reused = completeness.is_complete(out, wanted)
    if not reused:
        remove_tree(out)  # torn, foreign, or of another task, agent or policy
        made = _made(place, "out")
        proctor(task, order.agent, made, key=key, scaffold=order.scaffold, nonce=wanted.nonce)
        completeness.write_receipt(made, wanted.nonce, key)
        reused = not _moved(made, out)
    return Result(id=entry.id, state=State.VERDICT, out=out, reused=reused, notes=task.notes,
                  took_s=time.monotonic() - started)  # fmt: skip


def _keep_from(nodes: Sequence[str], policy: TaskPolicy) -> None:
    """A task may be somebody else's: it must not reach the cluster that it runs on, by any address of this node."""
    from ringfence.cluster.routes import check_route
    from ringfence.egress.upstream import is_own

    check_route((*policy.setup_network, *policy.network, *policy.grader_network), nodes, is_own)


def _made(place: str, name: str) -> str:
    path = os.path.join(place, name)
    os.mkdir(path, 0o700)
    return path


def _moved(made: str, out: str) -> bool:
    """Whether the directory got its name; not where another worker was faster."""
    try:
        os.rename(made, out)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


@contextmanager
def _private_beside(out: str) -> Iterator[str]:
    """A directory for everything that the work leaves behind. Its name begins with a dot and has the process in it:
    whoever reaps that process can remove it."""
    place = tempfile.mkdtemp(prefix=private_prefix(os.getpid()), dir=os.path.dirname(out))
    try:
        yield place
    finally:
        remove_tree(place)


def private_prefix(pid: int) -> str:
    """How the names of private directories of a worker begin."""
    return f".{pid}."


def _without(state: State, entry: Entry, error: BaseException, started: float) -> Result:
    told = str(error) or type(error).__name__
    return Result(id=entry.id, state=state, error=told, hint=getattr(error, "hint", ""),
                  took_s=time.monotonic() - started)  # fmt: skip
