"""``Run``: one run of a service, from the queue to its document, led by ``Runs``; what memory keeps of those that are
over, and which run a client's key stands for."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ringfence.client.wire import from_bytes, shown
from ringfence.engine.supervision import Listeners
from ringfence.errors import UsageError
from ringfence.model.events import Event, EventKind
from ringfence.model.outcome import Outcome, Status
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace
from ringfence.service import store as stored
from ringfence.service.admission import Full, ReservedRoom
from ringfence.service.event_log import EventLog
from ringfence.service.json_text import Written, json_in_steps, json_text
from ringfence.service.tokens import Tenant
from ringfence.service.work import Work

_LARGE_BYTES, _MANY = 256 << 10, 1000
_MOST_KEYS = 1_000_000
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
    """A run, from its acceptance until its result is dropped."""

    kept_bytes = 0
    """The part of its memory, once it is over, whose size a client or the program chose."""

    is_large = False
    """It becomes text in a thread."""

    is_drained = False
    """The service is told to end, and ends it."""

    def __init__(
        self, tenant: Tenant, policy_name: str, policy: SandboxPolicy, work: Work, place: ReservedRoom | None,
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
        self.bundle: Written | None = None
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
        self.key: tuple[str, str] | None = None
        """What ``Keys`` knows it by, where its client gave a key."""

    def with_reason(self, outcome: Outcome) -> Outcome:
        """A client must not take the end of the service for a kill that somebody asked for, or for the job's own."""
        if not self.is_drained or outcome.status is not Status.KILLED_KILL:
            return outcome
        return replace(outcome, reason=f"{outcome.reason}; the service was told to end, and drain_s was over")

    def weigh(self, outcome: Outcome) -> None:
        texts = (outcome.stdout, outcome.stderr, outcome.message or b"")
        self.is_large = sum(map(len, texts)) > _LARGE_BYTES or len(outcome.events) + len(outcome.changes) > _MANY

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

    def kept(self) -> Callable[[], str]:
        """The present content of its file; put together in a thread, since it may be large."""
        if self.state in OVER:
            text, bundle, key = self.text, self.bundle or "null", json_text(self.key)
            return lambda: f'{text[:-1]},"bundle_document":{bundle},"key":{key}}}'
        spec = {"spec": self.spec} if self.state == QUEUED else {}  # one that has begun is not begun again
        told = {**self.whole(), "key": self.key, **spec}
        return lambda: json_in_steps(told)

    def settle(self, text: str) -> None:
        """It has ended, and this is its document: drop what nobody asks for any more."""
        self.text = Written(text)
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


class Kept:
    """What memory has of one tenant's runs that are over, the oldest first."""

    def __init__(self) -> None:
        self.runs: OrderedDict[str, Run] = OrderedDict()
        self.bytes = 0

    def add(self, run: Run) -> None:
        self.runs[run.id] = run
        self.bytes += run.kept_bytes

    def forget(self, run: Run) -> None:
        if self.runs.pop(run.id, None) is not None:
            self.bytes -= run.kept_bytes

    def too_old(self, most: int, most_bytes: int) -> Run | None:
        """One that must go; the newest never does."""
        is_too_much = len(self.runs) > most or (self.bytes > most_bytes and len(self.runs) > 1)
        return next(iter(self.runs.values())) if is_too_much else None


class Keys:
    """Which run each Idempotency-Key of a tenant stands for, until that run has been over for as long as results are
    kept. Apart from the runs: memory may have dropped one whose key must not begin a second. A client may send a key
    with every run, so only digests are kept."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[bytes, bytes]] = {}
        """Tenant → digest of the key → id of the run and digest of its request."""
        self._over: deque[tuple[float, str, bytes]] = deque()

    def find(self, tenant: str, key: str, spec_digest: str) -> str:
        """The id of the run that this tenant has begun with the same key, or nothing; UsageError where that was another
        run; Full where no further key can be kept."""
        known = self._runs.get(tenant, {})
        found = known.get(_digest(key))
        if found is None:
            if len(known) >= _MOST_KEYS:
                raise Full(f"{len(known)} runs with an Idempotency-Key are remembered for {tenant}", 60.0, "keys")
            return ""
        if found[12:] != bytes.fromhex(spec_digest)[:16]:
            raise UsageError("this Idempotency-Key was used for another run", hint="use a key once")
        return found[:12].hex()

    def remember(self, run: Run, key: str, spec_digest: str) -> None:
        run.key = (_digest(key).hex(), spec_digest)
        self.recall(run.tenant.name, run.id, run.key)

    def recall(self, tenant: str, run_id: str, key: tuple[str, str]) -> None:
        name, spec_digest = map(bytes.fromhex, key)
        self._runs.setdefault(tenant, {})[name] = bytes.fromhex(run_id) + spec_digest[:16]

    def note_over(self, tenant: str, key: tuple[str, str] | None) -> None:
        """From now on it is kept as long as a result."""
        if key is not None:
            self._over.append((time.monotonic(), tenant, bytes.fromhex(key[0])))

    def sweep(self, keep_s: float) -> None:
        while self._over and time.monotonic() - self._over[0][0] > keep_s:
            _, tenant, name = self._over.popleft()
            self._runs.get(tenant, {}).pop(name, None)


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=16).digest()
