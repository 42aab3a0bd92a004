"""Requests about pools, bundles and the service itself."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from ringfence.client.wire import shown
from ringfence.errors import EvidenceError, VerificationError
from ringfence.evidence.trust import Trust
from ringfence.evidence.verify import verify_bundle
from ringfence.service import openapi
from ringfence.service.answer import Answer, Ask, Refused, not_found
from ringfence.service.box_requests import BoxRequests
from ringfence.service.event_log import as_sse
from ringfence.service.json_text import json_text
from ringfence.service.pools import KeptPool
from ringfence.service.run import OVER
from ringfence.service.run_requests import RunRequests, refuse_stream, sent_stream
from ringfence.service.service import Service

_EVERY_S = 1.0
_SHOWN_RUNS = 60


class OtherRequests:
    """Handlers, by the names that the table of routes has."""

    def __init__(self, service: Service, runs: RunRequests, boxes: BoxRequests) -> None:
        self._service, self._runs, self._boxes = service, runs, boxes
        self._pictures: dict[str, tuple[float, bytes]] = {}
        """Name of a tenant → when its last picture was made, and the picture as an event."""

    # ---- pools

    def _pool(self, ask: Ask) -> KeptPool:
        found = self._service.pools.find(ask.tenant, ask.path["pool"])
        if found is None:
            raise not_found("pool")
        return found

    async def create_pool(self, ask: Ask) -> Answer:
        service = self._service
        service.refuse_if_draining()
        name, tighten = ask.body.get("policy", "default"), ask.body.get("tighten", {})
        policy = service.policy_for(ask.tenant, name, tighten)
        made = await service.pools.create(ask.tenant, name, policy, ask.body)
        return Answer(status=201, json=made.document(), headers={"location": f"/v1/pools/{made.id}"})

    async def list_pools(self, ask: Ask) -> Answer:
        return Answer(json={"pools": [each.document() for each in self._service.pools.seen_by(ask.tenant)]})

    async def remove_pool(self, ask: Ask) -> Answer:
        await self._service.pools.remove(self._pool(ask))
        return Answer(status=204)

    async def run_in_pool(self, ask: Ask) -> Answer:
        pool = self._pool(ask)
        pool.used_s = time.time()
        spec = {**ask.body, "pool": pool.id}
        return await self._runs.begun(ask, spec, lambda: self._runs.started(ask.tenant, spec, pool))

    # ---- bundles

    async def read_key(self, ask: Ask) -> Answer:
        key = await asyncio.to_thread(self._service.key)
        return Answer(json={"public_key": key.public_hex})

    async def verify(self, ask: Ask) -> Answer:
        return Answer(json=await asyncio.to_thread(self._verdict, ask.body))

    def _verdict(self, given: dict[str, Any]) -> dict[str, object]:
        """Verify with the given key, or this service's own. A bundle that does not hold is an answer, not an error."""
        try:
            trust = Trust.pinned(given.get("public_key") or self._service.key().public_hex)
        except EvidenceError as error:
            raise Refused(400, f"public_key: {shown(str(error))}") from None
        try:
            found = verify_bundle(json.dumps(given["bundle"]).encode("utf-8", "replace"), trust=trust)
        except VerificationError as error:
            return {"holds": False, "step": error.step, "problem": shown(str(error))}
        return {
            "holds": True, "state": str(found.state), "format": found.format, "verdict": found.verdict,
            "signers": list(found.signers), "violations": [*found.violations], "notes": list(found.notes),
        }  # fmt: skip

    # ---- the service

    async def healthz(self, ask: Ask) -> Answer:
        draining = self._service.draining
        return Answer(status=503 if draining else 200, json={"status": "draining" if draining else "ok"})

    async def metrics(self, ask: Ask) -> Answer:
        text = self._service.figures.text(self._service.gauges())
        return Answer(data=text.encode(), kind="text/plain; version=0.0.4; charset=utf-8")

    async def openapi(self, ask: Ask) -> Answer:
        return Answer(json=openapi.document())

    async def status(self, ask: Ask) -> Answer:
        return Answer(json=self._service.status(ask.tenant))

    async def list_policies(self, ask: Ask) -> Answer:
        """What may be picked, without the values of variables, which may be secrets."""
        found = self._service.settings
        rows = [
            {"name": each.name, "warm": each.warm, "preload": list(each.preload),
             "policy": {**each.policy.to_dict(), "environment": sorted(each.policy.environment)}}
            for each in found.policies.values() if ask.tenant.may_pick(each.name)
        ]  # fmt: skip
        workspaces = [{"name": each.name, "commit": each.commit} for each in found.workspaces.values()
                      if ask.tenant.may_work_on(each.name)]  # fmt: skip
        return Answer(json={"policies": rows, "workspaces": workspaces})

    # ---- what happens now

    async def follow(self, ask: Ask) -> Answer:
        refuse_stream(self._service, ask.tenant)
        return Answer(events=self._happening(ask))

    async def _happening(self, ask: Ask) -> AsyncIterator[bytes]:
        """A picture of everything each second, and attempts in between."""
        last, feed = ask.last_event, self._service.runs.feed
        theirs = None if "operator" in ask.tenant.scopes else ask.tenant.name
        async with sent_stream(self._service, ask.tenant):
            while True:
                yield self._latest(ask)
                ended = feed.ended
                for each in feed.since(last, theirs):
                    last = each[0]
                    yield as_sse(each)
                if ended:
                    return
                await asyncio.sleep(_EVERY_S)

    def _latest(self, ask: Ask) -> bytes:
        """One picture for all streams of a tenant, which may have hundreds of streams and a hundred boxes."""
        made_s, event = self._pictures.get(ask.tenant.name, (0.0, b""))
        if time.monotonic() - made_s > _EVERY_S / 4:
            event = f"event: picture\ndata: {json_text(self._picture(ask))}\n\n".encode()
            self._pictures[ask.tenant.name] = time.monotonic(), event
        return event

    def _picture(self, ask: Ask) -> dict[str, object]:
        runs = [run for run, _ in zip(self._service.runs.seen_by(ask.tenant), range(_SHOWN_RUNS), strict=False)]
        return {
            "now": time.time(), "service": self._service.status(ask.tenant),
            "boxes": [self._boxes.document(box) for box in self._service.boxes.seen_by(ask.tenant)][:200],
            "runs": [run.summary() for run in sorted(runs, key=lambda run: run.state in OVER)],
        }  # fmt: skip
