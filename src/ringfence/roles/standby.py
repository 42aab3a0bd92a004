"""A process that has everything behind it but the job: it waits for one, with its streams, and becomes it.

Runs as: standby, one for each sandbox of a pool that has no job yet; then it is the job.
Parent: pid 1 of a sandbox, leader
Holds: the socket on which its order comes, the pipe of failed steps; all that confines the job is in force.
Must not have: anything of any job before its order; the request, the plan or a hidden path in its memory.

The caller's half sends an order, straight to the waiting process; the other half runs inside the sandbox, with all
that confines the job already in force. Until the order is here nothing of any job is in its memory.
"""

from __future__ import annotations

import marshal
import os

from ringfence.steps import executor as plan
from ringfence.transport import passing, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from ringfence.transport.request import JobOrder

READY, RUNS = b"\x01", b"\x02"
"""Sent through the pipe of failed steps, whose texts never begin like this: it waits for a job; a Python job runs."""
TOKEN_BYTES = 16
"""Sent after ``RUNS``, and again before the exit status: having the descriptor is not enough to forge that."""
INLINE_BYTES = 32 * 1024
"""A larger order goes into a file in memory, which is sent with the streams."""


class Waiting:
    """What the waiting process needs to know; set between its fork and its plan."""

    post = -1
    """Where the order arrives."""
    problems = -1
    """Where a failed step is told; its end says that the program runs."""
    forget: Callable[[], None] = lambda: None
    """Drops from memory what is left of making the sandbox."""
    interpreter: ModuleType
    """The module that runs Python jobs, and what makes the memory of a process its own again; set by a zygote."""
    show_memory: Callable[[], None] = lambda: None


# ---- the caller's half


def send_order(post: int, order: JobOrder, streams: tuple[int, ...]) -> None:
    """OSError when nobody waits any more."""
    body = wire.packed(order)
    if len(body) <= INLINE_BYTES:
        return passing.send(post, passing.JOB, list(streams), body)
    file = wire.file_with("order", body)
    try:
        passing.send(post, passing.JOB, [*streams, file], b"")
    finally:
        os.close(file)


# ---- the other half


def await_job(python: bool) -> None:
    """The last step of the plan of a sandbox that stands by; ``python``: also for Python jobs. Never returns."""
    Waiting.forget()
    Waiting.problems, Waiting.post = plan.place_descriptors((0, 1, 2), [Waiting.problems, Waiting.post])
    await_in_place(python)


def await_in_place(python: bool) -> None:
    """The same once nothing is open but what is needed. Never returns."""
    interpreter = _rehearsed() if python else None
    os.write(Waiting.problems, READY)
    kind, descriptors, body = passing.receive_with_body(Waiting.post, INLINE_BYTES)
    if kind != passing.JOB:
        os._exit(0)  # nobody needs this sandbox any more
    order: JobOrder = marshal.loads(body or _read(descriptors.pop()))
    _put_files(order["files"])
    (problems,) = plan.place_descriptors(descriptors, [Waiting.problems])
    try:
        plan.execute([("terminal",)] if order["terminal"] else [])
        plan.execute([("chdir", order["folder"])] if order["folder"] else [])
        work = order["python"]
        if work and interpreter is not None:
            token = os.urandom(TOKEN_BYTES)
            os.write(problems, RUNS + token)
            # As an exec does. Else only root could see what it writes, and it could not read its own files in /proc.
            Waiting.show_memory()
            channel = plan.CHANNEL_FD if len(descriptors) > plan.CHANNEL_FD else -1
            environment = order["environment"]
            order["python"] = None
            interpreter.run(work, environment=environment, channel=channel, farewell=problems, token=token)
        plan.execute([("exec", order["argv"], order["environment"])])
    except plan.StepFailed as failed:
        os.write(problems, wire.failure(failed.step, failed.errno, failed.problem))
    finally:
        os._exit(127)


def _rehearsed() -> ModuleType:
    """The module, in a process that has rehearsed its steps once."""
    marshal.loads(marshal.dumps({"argv": ["python"], "environment": {"PATH": ""}, "files": {}, "python": b""}))
    plan.execute([])
    Waiting.interpreter.rehearse()
    return Waiting.interpreter


def _read(file: int) -> bytes:
    size = os.fstat(file).st_size
    body = os.pread(file, size, 0)
    while len(body) < size:
        body += os.pread(file, size - len(body), len(body))
    os.close(file)
    return body


def _put_files(files: dict[str, bytes]) -> None:
    """Write into the working directory, which no job has used before."""
    try:
        for name, content in files.items():
            if "/" in name:
                os.makedirs(os.path.dirname(name), exist_ok=True)
            with open(name, "xb") as file:
                file.write(content)
    except OSError as error:
        raise plan.StepFailed("put the job's files", error) from error
