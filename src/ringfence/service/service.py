"""``Service``: all that one service has, from its start to its end. It knows no HTTP.

Its shutdown loses nothing that was promised: runs go on for a while, those that are then ended have an outcome, the
next service begins those that never began, and boxes stay on disk.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ringfence import __version__
from ringfence.attest.run_bundle import bundle
from ringfence.errors import SandboxError, UsageError
from ringfence.evidence.keyfile import find_key
from ringfence.evidence.keys import SigningKey
from ringfence.model.narrowing import narrowed
from ringfence.model.outcome import Outcome
from ringfence.model.policy import SandboxPolicy
from ringfence.service.admission import Admission, Bodies, Unfinished, Unread
from ringfence.service.answer import HostPaths
from ringfence.service.boxes import MOST_VISITS, Boxes
from ringfence.service.figures import Figures
from ringfence.service.pools import Pools
from ringfence.service.runs import Runs
from ringfence.service.settings import Settings
from ringfence.service.store import Store
from ringfence.service.tokens import Tenant, Tokens, read_tokens
from ringfence.service.work import Work

LOG = logging.getLogger("ringfence.service")
_SWEEP_S = 5.0
_MORE_THREADS = 16
_MOST_THREADS = 512
_MOST_VISITS = 4096


def tell(event: str, level: int = logging.INFO, **fields: object) -> None:
    """One line of the log, for machines."""
    if LOG.isEnabledFor(level):
        LOG.log(level, event, extra={"ringfence": {"event": event, **fields}})


class Service:
    """Runs the service in one process and one event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings.checked()
        self.tokens: Tokens = read_tokens(settings.tokens) if settings.tokens else Tokens()
        self.figures = Figures()
        self.host_paths = HostPaths(self.settings.state, self.settings.tokens)
        self.bodies = Bodies()
        self.unread = Unread()
        self.unfinished = Unfinished(settings.connections)
        self.draining = False
        self.began_s = time.time()
        self.streams: dict[str, int] = {}
        """Name of a tenant → streams of events that it reads."""
        self.writing: dict[str, int] = {}
        """The same of requests that wait for a program to read its input."""
        self._key: SigningKey | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self.also_drain: Callable[[float], Awaitable[None]] = _nothing_more
        """Other doors with lasting work get the same time to drain."""

    async def start(self) -> None:
        """In the loop that it will live in; does nothing if it was started."""
        if self._sweeper is not None:
            return
        settings = self.settings
        self.store = Store(settings.state, settings.result_s, settings.results_bytes)
        self.threads = ThreadPoolExecutor(min(_MOST_THREADS, settings.sandboxes + _MORE_THREADS), "ringfence-service")
        self.writers = ThreadPoolExecutor(_MOST_THREADS, "ringfence-input")
        # Visits have threads of their own: they take long, and one tenant's visits must not block the others.
        visits = min(_MOST_VISITS, settings.sandboxes * MOST_VISITS)
        self.visits = ThreadPoolExecutor(visits, "ringfence-visit")
        self.admission = Admission(sandboxes=settings.sandboxes, memory_bytes=settings.memory_bytes,
                                   spare_bytes=settings.spare_bytes, queue=settings.queue)  # fmt: skip
        self.runs = Runs(self.admission, self.store, self.figures, self.signed, self.host_paths.error,
                         len(self.tokens))  # fmt: skip
        self.boxes = Boxes(os.path.join(settings.state, "boxes"), self.admission, self.threads, self.visits,
                           self.figures, self.policy, self.tokens.named)  # fmt: skip
        self.pools = Pools(settings, self.threads)
        await self.pools.start()
        found = self.boxes.find_stored()
        self._sweeper = asyncio.create_task(self._sweep())
        tell("service_started", boxes=found, policies=sorted(settings.policies), tokens=self.tokens.needed)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(_SWEEP_S, self.settings.idle_s / 2))
            try:
                await self.boxes.sweep(self.settings.idle_s, self.settings.keep_s)
                await self.pools.sweep(self.settings.idle_s)
                await self.runs.sweep(self.settings.result_s)
            except Exception:
                LOG.exception("sweeping failed")

    async def drain(self, within_s: float | None = None) -> None:
        """Take nothing new, and wait for what there is."""
        if self.draining:
            return
        self.draining = True
        tell("service_draining", runs=len(self.runs.living()))
        within_s = self.settings.drain_s if within_s is None else within_s
        waiting, _ = await asyncio.gather(self.runs.drain(within_s), self.also_drain(within_s))
        self.admission.refuse_waiting(self._ending())  # boxes: a run that waits is left for the next service
        tell("service_drained", left_for_next=sum(run.promised for run in waiting))

    async def stop(self) -> None:
        """End everything, and leave nothing but what is kept."""
        await self.drain()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self.boxes.close()
        await self.pools.close()
        self.runs.feed.end()
        self.runs.close()
        self.threads.shutdown(wait=True)
        self.visits.shutdown(wait=True)
        self.writers.shutdown(wait=True)
        self.store.close()
        tell("service_stopped")

    # ---- what requests ask of it

    def policy(self, name: str, tighten: Mapping[str, Any]) -> SandboxPolicy:
        """The operator's policy of that name, tightened where the request asks for less."""
        known = self.settings.policies.get(name)
        if known is None:
            raise UsageError(f"there is no policy {name}", hint="GET /v1/policies lists them")
        return narrowed(known.policy, tighten)

    def policy_for(self, tenant: Tenant, name: str, tighten: Mapping[str, Any]) -> SandboxPolicy:
        """The same for a tenant; a policy that it may not pick does not exist for it."""
        if not tenant.may_pick(name):
            raise UsageError(f"there is no policy {name}", hint="GET /v1/policies lists them")
        return self.policy(name, tighten)

    def gauges(self) -> dict[str, float]:
        found = self.admission
        return {
            "ringfence_service_sandboxes": found.running, "ringfence_service_sandboxes_limit": found.sandboxes,
            "ringfence_service_memory_reserved_bytes": found.reserved_bytes,
            "ringfence_service_memory_limit_bytes": found.memory_bytes,
            "ringfence_service_queue": len(found.waiting), "ringfence_service_queue_limit": found.queue,
            "ringfence_service_boxes": len(self.boxes), "ringfence_service_pools": len(self.pools),
            "ringfence_service_draining": self.draining,
        }  # fmt: skip

    def status(self, tenant: Tenant) -> dict[str, object]:
        """How full it is, and what this tenant has and may have."""
        found, (sandboxes, memory) = self.admission, self.admission.used_by(tenant)
        return {
            "version": __version__, "state": "draining" if self.draining else "ok", "since": self.began_s,
            "sandboxes": {"now": found.running, "most": found.sandboxes},
            "memory_bytes": {"now": found.reserved_bytes, "most": found.memory_bytes},
            "queue": {"now": len(found.waiting), "most": found.queue},
            "tenant": {
                "name": tenant.name, "scopes": sorted(tenant.scopes),
                "sandboxes": {"now": sandboxes, "most": min(tenant.sandboxes, found.sandboxes)},
                "memory_bytes": {"now": memory, "most": min(tenant.memory_bytes, found.memory_bytes)},
                "runs_per_minute": tenant.runs_per_minute if tenant.runs_per_minute < 2**31 else None,
            },
        }  # fmt: skip

    def key(self) -> SigningKey:
        """The key that signs bundles: the environment's, or one of this service's own."""
        if self._key is None:
            self._key = find_key(None, self.settings.state)
        return self._key

    def signed(self, outcome: Outcome, policy: SandboxPolicy, work: Work, name: str) -> dict[str, object]:
        """In a thread."""
        return bundle(outcome, key=self.key(), policy=policy, job=work.job, name=name)

    def refuse_if_draining(self) -> None:
        if self.draining:
            raise self._ending()

    @staticmethod
    def _ending() -> Draining:
        return Draining("the service is shutting down", hint="try again in a few seconds")


async def _nothing_more(_: float) -> None:
    pass


class Draining(SandboxError):
    """It takes nothing new."""
