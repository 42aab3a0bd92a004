"""Pools of a service: one for each policy of the operator that has sandboxes standing by, and those that clients made.

A client's pool costs no place while nobody runs anything in it; each run in it does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ringfence.engine.pool import Pool
from ringfence.errors import UsageError
from ringfence.model.policy import SandboxPolicy
from ringfence.service import store as stored
from ringfence.service.settings import Settings
from ringfence.service.tokens import Tenant

MOST_EACH = 4
"""Pools of one tenant at one time."""
_IDLE_S = 60.0


class KeptPool:
    """A pool with an id."""

    def __init__(
        self, tenant: str, policy_name: str, policy: SandboxPolicy, warm: int, pool: Pool, preload: tuple[str, ...] = ()
    ) -> None:
        self.id = stored.new_id()
        self.tenant, self.policy_name, self.policy, self.warm, self.pool = tenant, policy_name, policy, warm, pool
        self.preload = preload
        self.created_s = self.used_s = time.time()
        self.runs = 0
        """Under way or in the queue."""

    def begin(self, run: asyncio.Task[None]) -> None:
        """It is in use until this one has ended."""
        self.runs += 1
        run.add_done_callback(self._left)

    def _left(self, _: asyncio.Task[None]) -> None:
        self.runs -= 1
        self.used_s = time.time()

    def document(self) -> dict[str, object]:
        return {"id": self.id, "tenant": self.tenant, "policy": self.policy_name, "warm": self.warm,
                "preload": list(self.preload), "created": self.created_s, "used": self.used_s}  # fmt: skip


class Pools:
    """All of a service; for the event loop alone."""

    def __init__(self, settings: Settings, threads: ThreadPoolExecutor) -> None:
        self._settings, self._threads = settings, threads
        self.of_policy: dict[str, Pool] = {}
        self._known: dict[str, KeptPool] = {}
        self._making: dict[str, int] = {}

    async def start(self) -> None:
        """Make the pools of the operator's policies; fails now if this host can't enforce one."""
        for name, each in self._settings.policies.items():
            if each.warm:
                self.of_policy[name] = await self._made(each.policy, each.warm, each.preload)

    async def _made(self, policy: SandboxPolicy, warm: int, preload: tuple[str, ...]) -> Pool:
        def make() -> Pool:
            return Pool(policy, warm=warm, preload=preload, at_once=self._settings.sandboxes, idle_s=_IDLE_S)

        making = asyncio.get_running_loop().run_in_executor(self._threads, make)
        return await asyncio.shield(making)

    async def create(
        self, tenant: Tenant, policy_name: str, policy: SandboxPolicy, given: Mapping[str, Any]
    ) -> KeptPool:
        """Make a pool of a client's own."""
        theirs = sum(each.tenant == tenant.name for each in self._known.values()) + self._making.get(tenant.name, 0)
        if theirs >= MOST_EACH:
            raise UsageError(f"{tenant.name} has {theirs} pools", hint="delete one first")
        warm = min(given.get("warm", 2), tenant.sandboxes, self._settings.sandboxes)
        preload = self._preload(policy_name, given.get("preload", ()))
        self._making[tenant.name] = self._making.get(tenant.name, 0) + 1
        try:
            pool = await self._made(policy, warm, preload)
        finally:
            self._making[tenant.name] -= 1
        made = KeptPool(tenant.name, policy_name, policy, warm, pool, preload)
        self._known[made.id] = made
        return made

    def _preload(self, policy_name: str, names: Sequence[str]) -> tuple[str, ...]:
        """Modules are imported before there is a sandbox around them, and an import runs code: so the operator names
        the allowed ones."""
        known = self._settings.policies[policy_name].preload
        if more := [name for name in names if name not in known]:
            raise UsageError(f"preload: the policy {policy_name} does not list {', '.join(map(ascii, more[:5]))}",
                             hint="the operator lists what may be imported under preload of the policy")  # fmt: skip
        return tuple(names)

    def find(self, tenant: Tenant, pool_id: str) -> KeptPool | None:
        found = self._known.get(pool_id)
        return found if found is not None and (found.tenant == tenant.name or "operator" in tenant.scopes) else None

    def seen_by(self, tenant: Tenant) -> list[KeptPool]:
        return [each for each in self._known.values() if self.find(tenant, each.id)]

    def __len__(self) -> int:
        return len(self._known)

    async def remove(self, kept: KeptPool) -> None:
        self._known.pop(kept.id, None)
        await asyncio.get_running_loop().run_in_executor(self._threads, kept.pool.close)

    async def sweep(self, idle_s: float) -> None:
        """Close those that nobody uses."""
        for kept in list(self._known.values()):
            if not kept.runs and time.time() - kept.used_s > idle_s:
                await self.remove(kept)

    async def close(self) -> None:
        for kept in list(self._known.values()):
            await self.remove(kept)
        for pool in self.of_policy.values():
            await asyncio.get_running_loop().run_in_executor(self._threads, pool.close)
