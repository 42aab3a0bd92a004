"""The warden's own zygote: makes pid 1 of each sandbox, as a child of the warden.

Runs as: maker, two to eight for each warden: its zygotes
Parent: warden
Holds: a mount namespace with what sandboxes share, drafts of requests; the descriptors of a sandbox for the moment of
    one clone
Must not have: what the warden has heard of any sandbox; a job, its streams or its data

Forked before the warden has led anything: nothing of a job was ever in its memory. It ends with the warden.
"""

from __future__ import annotations

import gc
import marshal
import os

from ringfence.roles import first_process, job_start
from ringfence.steps.executor import StepFailed
from ringfence.steps.state import SETUP
from ringfence.transport import passing, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.transport.request import StandbyRequest

MADE, FAILED = b"p", b"f"
BODY_BYTES = 16 * 1024


class Maker:
    """Takes one order after the other."""

    def __init__(self, door: int, owner: list[int]) -> None:
        self._door = door
        self._owner = owner

    def serve(self) -> None:
        """Serve until the warden is gone."""
        while True:
            kind, descriptors, body = passing.receive_with_body(self._door, BODY_BYTES)
            if not kind:
                return
            try:
                if kind == passing.DRAFT and descriptors:
                    self._keep_draft(descriptors[0])
                elif len(descriptors) == 6:
                    self._carry_out(descriptors, *marshal.loads(body))
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _keep_draft(self, file: int) -> None:
        number, draft = wire.read_draft(file)
        # Orders for drafts that were just dropped may still come.
        job_start.keep_draft(number, first_process.lean(draft), most=2 * wire.MOST_DRAFTS)
        del draft
        gc.collect()
        gc.freeze()  # else a fork that looks for garbage copies their pages

    def _carry_out(self, descriptors: list[int], ticket: int, request: StandbyRequest, identity: int) -> None:
        *kept, post, door = descriptors

        def made(pid: int) -> None:
            """Before pid 1 is let go: the warden knows it before anything can be heard of it."""
            passing.send(self._door, MADE, [], marshal.dumps((ticket, pid)))

        try:
            SETUP.identify(identity, self._owner)
            first_process.make(job_start.whole(request), [post], kept, door, made)
        except StepFailed as failed:
            self._tell(ticket, failed.step, failed.errno, failed.problem)
        except Exception as error:
            self._tell(ticket, "lead", 0, f"{type(error).__name__}: {error}")

    def _tell(self, ticket: int, step: str, number: int, problem: str) -> None:
        passing.send(self._door, FAILED, [], marshal.dumps((ticket, step, number, problem[:4096])))
