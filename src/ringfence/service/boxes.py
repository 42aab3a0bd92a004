"""Boxes of a service: a transaction on disk each, and a living box on it while somebody uses it.

A box is found again after a restart: its sealed metadata says whose it is and which policy it has. The methods of
``KeptBox`` wait for files and processes and are called in threads; ``Boxes`` belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from ringfence.checkpoint.transaction import Transaction
from ringfence.engine.box import Box
from ringfence.engine.handle import Handle
from ringfence.engine.run import transaction_kind
from ringfence.engine.supervision import Listeners
from ringfence.errors import BusyError, SandboxError, SetupError, UsageError
from ringfence.integrations.living.place import session_policy
from ringfence.manager.registry import Metadata, Registry
from ringfence.model.job import Job
from ringfence.model.policy import SandboxPolicy
from ringfence.monitor.limits import ResourceLimits
from ringfence.monitor.resource_monitor import ResourceMonitor
from ringfence.service import store as stored
from ringfence.service.admission import Admission, Full, ReservedRoom
from ringfence.service.figures import Figures
from ringfence.service.settings import NamedWorkspace
from ringfence.service.tokens import Tenant
from ringfence.service.work import BoxedWork

MOST_VISITS = 16
"""Runs in one box at one time; each takes a thread."""
MOST_BOXES = 100
"""Boxes of one tenant, open or parked: a parked one has no place, but may use all the disk that its policy allows."""
MOST_USES = 8
"""Requests for files, changes and checkpoints of one tenant's boxes at one time: half of the threads that are left when
every sandbox has one."""
_GONE = ("enter the box", "reach the leader", "lead")
_LIMITLESS = ResourceLimits(max_execution_time=2**31, max_file_operations=2**62, max_memory_mb=2**40)


class KeptBox:
    """A box with an id. ``box`` is None while it is parked."""

    def __init__(self, metadata: Metadata, policy: SandboxPolicy, transaction: Transaction | None) -> None:
        told = metadata.state_data
        self.id = metadata.sandbox_id
        self.tenant, self.policy_name = str(told.get("tenant", "")), str(told.get("policy", ""))
        self.tighten: Mapping[str, Any] = dict(told.get("tighten", {}))
        self.workspace = str(told.get("workspace", ""))
        self.bases = metadata.bases
        self.created_s = metadata.created_s
        self.used_s = time.time()
        self.policy = policy
        self.transaction = transaction
        self.box: Box | None = None
        self.place: ReservedRoom | None = None
        self.visits = 0
        self.is_session = False
        """An interpreter lives in it, so the box has no deadline; each visit has its policy's."""
        self.gone = False
        self.may_open = False
        """It has a place; a request that comes while the place is given back does not open the box without one."""
        self.opening = asyncio.Lock()
        self.lock = threading.RLock()

    # ---- in threads

    def open(self, registry: Registry) -> None:
        with self.lock:
            self._check()
            if self.box is not None and self.box.ended:
                self.park()
            if self.transaction is None:
                self.transaction = Transaction.open(registry.opened(self.id))
            if self.box is None and not self.may_open:
                raise BusyError(f"the box {self.id} was parked in the meantime", hint="try again")
            if self.box is None:
                policy = session_policy(self.policy) if self.is_session else self.policy
                self.box = Box(policy, transaction=self.transaction, turn=self.lock)
            registry.touch(self.id)

    def park(self) -> None:
        """End what runs in it; its files stay."""
        with self.lock:
            self.end_all()
            if self.transaction is not None:
                self.transaction.close()
                self.transaction = None

    def park_placeless(self) -> None:
        """Park it, and let nobody open it until it has a place again."""
        with self.lock:
            self.may_open = False
            self.park()

    def remove(self, registry: Registry) -> None:
        with self.lock:
            self.gone = True
            self.park()
            registry.remove_unused(self.id)

    def begin(self, registry: Registry, job: Job, timeout: float | None, told: Listeners) -> Handle:
        if self.is_session:
            timeout = min(timeout or self.policy.wall_time_s, self.policy.wall_time_s)
        for attempt in range(3):
            with self.lock:
                self.open(registry)
                assert self.box is not None
                try:
                    return self.box.start(job, timeout=timeout, on_event=told.on_event, on_output=told.on_output)
                except SetupError as error:
                    if error.step not in _GONE or attempt == 2:
                        raise
                self.park()
        raise SandboxError("the box does not stay open")

    @contextmanager
    def at_rest(self, registry: Registry) -> Iterator[Transaction]:
        """The transaction, while nobody opens or closes the box."""
        with self.lock:
            self._check()
            if self.transaction is None:
                self.transaction = Transaction.open(registry.opened(self.id))
            yield self.transaction

    def with_box(self, registry: Registry) -> Box:
        with self.lock:
            self.open(registry)
            assert self.box is not None
            return self.box

    def end_all(self) -> None:
        """End what runs in it; the next request opens it anew."""
        with self.lock:
            box, self.box = self.box, None
            if box is not None:
                box.close()

    def roll_back(self, registry: Registry, checkpoint: str) -> int:
        """Go back to a checkpoint; what runs in it ends."""
        with self.at_rest(registry) as transaction:
            self.end_all()
            return transaction.rollback(checkpoint).files_restored

    def relative(self, path: str) -> str:
        base = self.transaction.bases[0] if self.transaction else ""
        return path[len(base) + 1 :] if base and path.startswith(f"{base}/") else path

    def absolute(self, path: str) -> str:
        """A path of the workspace; no part of it leads out."""
        if not path or path.startswith("/") or {"", ".", ".."} & set(path.split("/")) or "\0" in path:
            raise UsageError(f"{path!r} is not a relative path in the workspace")
        assert self.transaction is not None
        return f"{self.transaction.bases[0]}/{path}"

    def _check(self) -> None:
        if self.gone:
            raise UsageError(f"the box {self.id} no longer exists", hint="open a new one")


class Boxes:
    """All of a service."""

    def __init__(
        self, folder: str, admission: Admission, threads: ThreadPoolExecutor, visits: ThreadPoolExecutor,
        figures: Figures,
        policy_of: Callable[[str, Mapping[str, Any]], SandboxPolicy], tenant_named: Callable[[str], Tenant],
    ) -> None:  # fmt: skip
        """``policy_of``: the policy of a name, tightened: the present one, not that of the day the box was made."""
        self.registry = Registry(folder)
        self._admission, self._threads, self._visits = admission, threads, visits
        self._figures, self._policy_of = figures, policy_of
        self._making: dict[str, int] = {}
        self._using: dict[str, int] = {}
        """Name of a tenant → what is carried out on its boxes now."""
        self._tenant_named = tenant_named
        self._known: dict[str, KeptBox] = {}
        self.monitor = ResourceMonitor(interval_s=1.0)

    async def _in_thread(self, work: Callable[..., Any], *given: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *given)

    def find_stored(self) -> int:
        """Find the boxes of an earlier process; remove those that were half made or half removed."""
        self.registry.sweep()
        for metadata in self.registry.all():
            if isinstance(metadata, Metadata) and metadata.state_data.get("tenant"):
                box = KeptBox(metadata, SandboxPolicy(), None)
                box.used_s = time.time() - self.registry.idle_hours(box.id) * 3600
                self._known[box.id] = box
        return len(self._known)

    # ---- finding

    def find(self, tenant: Tenant, box_id: str) -> KeptBox | None:
        box = self._known.get(box_id)
        seen = box is not None and (box.tenant == tenant.name or "operator" in tenant.scopes)
        return box if seen else None

    def seen_by(self, tenant: Tenant) -> list[KeptBox]:
        return [box for box in self._known.values() if self.find(tenant, box.id)]

    def __len__(self) -> int:
        return len(self._known)

    # ---- life

    async def create(
        self, tenant: Tenant, policy_name: str, policy: SandboxPolicy, tighten: Mapping[str, Any],
        workspace: NamedWorkspace | None, *, is_session: bool = False,
    ) -> KeptBox:  # fmt: skip
        """A new one, open; waits for its place. ``is_session``: for an interpreter that lives in it."""
        making = self._making.get(tenant.name, 0)
        theirs = sum(box.tenant == tenant.name for box in self._known.values()) + making
        if theirs >= MOST_BOXES:
            raise UsageError(f"{tenant.name} has {theirs} boxes", hint="delete one first: those that are parked count")
        place = self._admission.join(tenant, policy.mem_bytes)
        self._making[tenant.name] = making + 1  # those that wait for their place count too
        try:
            return await self._created(tenant, policy_name, policy, tighten, workspace, place, is_session)
        finally:
            self._making[tenant.name] -= 1

    async def _created(
        self, tenant: Tenant, policy_name: str, policy: SandboxPolicy, tighten: Mapping[str, Any],
        workspace: NamedWorkspace | None, place: ReservedRoom, is_session: bool,
    ) -> KeptBox:  # fmt: skip
        try:
            await place.turn
            told = {"tenant": tenant.name, "policy": policy_name, "tighten": dict(tighten),
                    "workspace": workspace.name if workspace else ""}  # fmt: skip
            bases = (workspace.path,) if workspace else ()
            metadata = Metadata(sandbox_id=stored.new_id(), created_s=time.time(), isolation=str(policy.isolation),
                                bases=bases, state_data=told)  # fmt: skip
            making = asyncio.ensure_future(self._in_thread(self._made, metadata, policy, bases, is_session))
            box: KeptBox = await asyncio.shield(making)
        except BaseException:
            self._admission.leave(place)
            raise
        box.place = place
        self._known[box.id] = box
        self._watch(box)
        return box

    def _made(
        self, metadata: Metadata, policy: SandboxPolicy, bases: tuple[str, ...], is_session: bool
    ) -> KeptBox:
        folder = self.registry.add(metadata)
        try:
            hidden = policy.hidden_paths
            kind = transaction_kind(policy)
            transaction = Transaction.create(folder, bases, kind=kind, hidden=hidden, root=self.registry.root)
            box = KeptBox(metadata, policy, transaction)
            box.may_open, box.is_session = True, is_session
            try:
                box.open(self.registry)
            except BaseException:
                box.park()
                raise
            return box
        except BaseException:
            self.registry.remove(metadata.sandbox_id)
            raise

    async def opened(self, box: KeptBox) -> KeptBox:
        """The box, living: one that was parked takes a place again."""
        box.used_s = time.time()
        async with box.opening:
            if box.box is not None and not box.box.ended:
                return box
            if box.place is None:
                box.policy = self._policy_of(box.policy_name, box.tighten)
                place = self._admission.join(self._tenant_named(box.tenant), box.policy.mem_bytes)
                try:
                    await place.turn
                    box.may_open = True
                    await self._in_thread(box.open, self.registry)
                except BaseException:
                    box.may_open = False
                    self._admission.leave(place)
                    raise
                box.place = place
            else:
                await self._in_thread(box.open, self.registry)
            self._watch(box)
        return box

    def work(self, box: KeptBox, job: Job, timeout: float | None) -> BoxedWork:
        """A visit, for a box that is open."""
        if box.visits >= MOST_VISITS:
            raise BusyError(f"{MOST_VISITS} runs are in this box", hint="wait for one of them")
        box.visits += 1

        def left() -> None:
            box.visits -= 1
            box.used_s = time.time()

        return BoxedWork(self._visits, lambda told: box.begin(self.registry, job, timeout, told), left, job)

    async def use(self, box: KeptBox, work: Callable[..., Any], *given: Any) -> Any:
        """Do something with its transaction or its files, in a thread."""
        using = self._using.get(box.tenant, 0)
        if using >= MOST_USES:
            raise Full(f"{using} requests use boxes of {box.tenant} now", 1.0, "uses")
        self._using[box.tenant] = using + 1
        box.used_s = time.time()
        box.visits += 1
        try:
            return await self._in_thread(work, *given)
        finally:
            self._using[box.tenant] -= 1
            box.visits -= 1
            box.used_s = time.time()

    async def park(self, box: KeptBox) -> None:
        async with box.opening:
            self._unwatch(box)
            await self._in_thread(box.park_placeless)
            place, box.place = box.place, None
            if place is not None:
                self._admission.leave(place)

    async def remove(self, box: KeptBox) -> None:
        """It and all in it."""
        async with box.opening:
            self._unwatch(box)
            self._known.pop(box.id, None)
            try:
                await self._in_thread(box.remove, self.registry)
            finally:
                place, box.place = box.place, None
                if place is not None:
                    self._admission.leave(place)

    async def sweep(self, idle_s: float, keep_s: float) -> None:
        """Park those that nobody uses, remove those that nobody came back to."""
        now = time.time()
        for box in [box for box in self._known.values() if not box.visits]:
            try:
                if now - box.used_s > keep_s:
                    await self.remove(box)
                    self._figures.add("ringfence_service_boxes_removed_total")
                elif box.place is not None and now - box.used_s > idle_s:
                    await self.park(box)
                    self._figures.add("ringfence_service_boxes_parked_total")
            except SandboxError:
                continue  # it is tried again

    async def close(self) -> None:
        """Park all; they are found again."""
        for box in list(self._known.values()):
            try:
                await self.park(box)
            except SandboxError:
                continue

    # ---- graphs

    def _watch(self, box: KeptBox) -> None:
        self._unwatch(box)
        if box.box is not None:
            try:
                self.monitor.start_monitoring(box.id, _LIMITLESS, box.box.watchable)
            except SandboxError:
                pass  # a box must not fail because its graph does

    def _unwatch(self, box: KeptBox) -> None:
        try:
            self.monitor.stop_monitoring(box.id)
        except SandboxError:
            pass

    def samples(self, box: KeptBox) -> list[list[float]]:
        """[seconds, percent of a core, bytes] of the last minute or so."""
        try:
            rows = self.monitor.history(box.id)[-60:]
            return [[round(row.time_s, 1), round(row.cpu_percent, 1), row.memory_bytes] for row in rows]
        except SandboxError:
            return []
