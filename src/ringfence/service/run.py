"""``Run``: one run of a service, from the queue to its document. Led by ``Runs``."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ringfence.client.wire import from_bytes, shown
from ringfence.engine.supervision import Listeners
from ringfence.model.events import Event, EventKind
from ringfence.model.policy import SandboxPolicy
from ringfence.service import store as stored
from ringfence.service.admission import Place
from ringfence.service.event_log import EventLog
from ringfence.service.json_text import Written, json_text
from ringfence.service.tokens import Tenant
from ringfence.service.work import Work

QUEUED, RUNNING, ENDED, FAILED, CANCELLED, LOST = "queued", "running", "ended", "failed", "cancelled", "lost"
STATES = (QUEUED, RUNNING, ENDED, FAILED, CANCELLED, LOST)
OVER = frozenset(STATES) - {QUEUED, RUNNING}
TOLD = (EventKind.VIOLATION, EventKind.EGRESS, EventKind.LIMIT)
"""Kinds of events that the run's own client hears of."""


def is_attempt(event: Event) -> bool:
    """Whether something forbidden was tried. A connection that the gateway allows is no attempt, nor is a call that
    stays inside: ``ls -l`` looks for a socket to ask for user names."""
    decision, aim = event.details.get("decision", "refused"), event.details.get("aim")
    return event.kind in TOLD and (event.kind is not EventKind.EGRESS or (decision == "refused" and aim != "noted"))


class Run:
    """One of them."""

    def __init__(
        self, tenant: Tenant, policy_name: str, policy: SandboxPolicy, work: Work, place: Place | None,
        spec: dict[str, Any],
    ) -> None:  # fmt: skip
        """``spec``: the request, to be repeated if it had not begun when the service ended."""
        self.id = stored.new_id()
        self.tenant, self.policy_name, self.policy = tenant, policy_name, policy
        self.work: Work | None = work
        """Until it has ended."""
        self.place, self.spec = place, spec
        self.argv = [shown(word)[:200] for word in work.job.argv[:32]]
        self.wants_bundle = bool(spec.get("bundle"))
        self.text = Written()
        """The document, once it has ended: thousands are kept, and text takes a tenth of the memory."""
        self.box, self.pool = str(spec.get("box", "")), str(spec.get("pool", ""))
        self.log = EventLog()
        self.state = QUEUED
        self.created_s, self.began_s, self.ended_s = time.time(), 0.0, 0.0
        self.outcome: dict[str, object] | None = None
        self.error: dict[str, object] | None = None
        self.bundle: dict[str, object] | None = None
        self.attempts = 0
        self.promised = False
        """A client was told that there will be a result."""
        self.unwanted = False
        """Its client has said that the result may be forgotten."""
        self.writing = asyncio.Lock()
        """One write of its file at a time, in their order."""
        self.begun: Future[Any] | None = None
        """The future of its work, once that has begun."""
        self.over = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.kept_bytes = 0
        """The part of its memory, once it is over, whose size a client or the program chose."""

    def summary(self) -> dict[str, object]:
        """What a list shows."""
        outcome = self.outcome or {}
        told = {"status": outcome.get("status"), "rc": outcome.get("rc"), "reason": outcome.get("reason")}
        return {
            "id": self.id, "state": self.state, "tenant": self.tenant.name, "policy": self.policy_name,
            "argv": self.argv, "box": self.box or None,
            "pool": self.pool or None, "created": self.created_s, "began": self.began_s or None,
            "ended": self.ended_s or None, "attempts": self.attempts, "bundle": self.bundle is not None,
            "wants_bundle": self.wants_bundle, **told,
        }  # fmt: skip

    def document(self) -> dict[str, object] | Written:
        return self.text or self.whole()

    def whole(self) -> dict[str, object]:
        return {**self.summary(), "outcome": self.outcome, "error": self.error}

    def kept(self) -> Callable[[], dict[str, Any]]:
        """The present content of its file; put together in a thread, since it may be large."""
        if self.state in OVER:
            text, bundle = self.text, self.bundle
            return lambda: {**json.loads(text), "bundle_document": bundle}
        spec = {"spec": self.spec} if self.state == QUEUED else {}  # one that has begun is not begun again
        told = {**self.whole(), **spec}
        return lambda: told

    def settle(self) -> None:
        """It has ended: drop what nobody asks for any more."""
        self.text = Written(json_text(self.whole()))
        outcome = self.outcome or {}
        self.outcome = {name: outcome.get(name) for name in ("status", "rc", "reason")} if self.outcome else None
        self.work, self.begun, self.place, self.spec = None, None, None, {}

    # ---- told by the thread that leads it

    def listeners(self, on_told: Callable[[Run, Event], None]) -> Listeners:
        def on_output(stream: str, piece: bytes) -> None:
            self.log.tell("output", {"stream": stream, "data": from_bytes(piece)}, size=len(piece) + 64)

        def on_event(event: Event) -> None:
            if event.kind in TOLD:
                on_told(self, event)

        return Listeners(on_event=on_event, on_output=on_output)
