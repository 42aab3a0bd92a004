"""Runs of a service: each runs to its end, whether or not somebody waits for it, and its result is kept for a while.
Each tenant has memory of its own for results: whatever others run, it keeps what it had.

Used by the event loop alone, except where it says so. Files are written and read in threads of their own.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ringfence.client.wire import plain_error, plain_outcome, shown
from ringfence.errors import SandboxError, UnavailableError
from ringfence.model.events import Event, EventKind
from ringfence.model.outcome import Outcome
from ringfence.model.policy import SandboxPolicy
from ringfence.service import store as stored
from ringfence.service.admission import Admission, Full
from ringfence.service.event_log import Feed
from ringfence.service.figures import Figures
from ringfence.service.json_text import Written, json_in_steps, json_text
from ringfence.service.run import CANCELLED, ENDED, FAILED, LOST, OVER, QUEUED, RUNNING, Kept, Keys, Run, is_attempt
from ringfence.service.tokens import Tenant
from ringfence.service.work import Work

_WRITERS = 4
_MOST_KEPT = 2000
"""Runs of one tenant that are over."""
_MOST_KEPT_BYTES = 256 << 20
"""Of all tenants, in equal parts."""
_LEAST_KEPT_BYTES = 32 << 20
"""Of each, however many there are."""
_OWN_FIELDS = ("spec", "bundle_document", "key")
"""Of a document: for the service alone."""
_LONG_FIELDS = ("outcome", "error", *_OWN_FIELDS)  # of a document: what no summary has
_KILLED = "the service was killed while it ran, or before its disk could take the result"
_NO_ROOM = "there was no room on the disk for its result"
Sign = Callable[[Outcome, SandboxPolicy, Work, str], dict[str, object]]


class Runs:
    """All of them, by id."""

    def __init__(
        self, admission: Admission, store: stored.Store, figures: Figures, sign: Sign | None = None,
        told: Callable[[BaseException], dict[str, object]] = plain_error, tenants: int = 1,
    ) -> None:  # fmt: skip
        """``told``: what clients are told about an error. ``tenants``: how many there are."""
        self._admission, self._store, self._figures, self._sign, self._told = admission, store, figures, sign, told
        self._known: OrderedDict[str, Run] = OrderedDict()
        self.keys = Keys()
        self._tenants = tenants
        self._kept: dict[str, Kept] = {}
        """Name of a tenant → its runs that are over."""
        self._unwritten: dict[str, Run] = {}
        """Over and promised, and the disk could not take the result."""
        self.feed = Feed()
        """Attempts of all runs."""
        self._loop = asyncio.get_running_loop()
        self._writers = ThreadPoolExecutor(_WRITERS, "ringfence-results")

    # ---- beginning

    def begin(self, run: Run) -> Run:
        """Lead it to its end."""
        self._known[run.id] = run
        run.log.tell("state", {"state": run.state})
        waits = run.place is not None and not run.place.turn.done()
        if not waits and run.spec.get("wait", True):  # else its file may first have to say that it has begun
            self._note_begin(run)
            self._start(run)
        run.task = self._loop.create_task(self._lead(run), name=f"run {run.id}")
        return run

    def refuse_promise(self, tenant: Tenant) -> None:
        """Full if promises without a result take up all of this tenant's disk space."""
        if self._store.is_full(tenant.name):
            raise Full(f"promised results of {tenant.name} take all of its disk space", 5.0, "results")

    async def promise(self, run: Run) -> None:
        """A client is told of it before it has ended: from now on it outlives the service."""
        if run.promised:
            async with run.writing:  # by another request with the same key
                return
        run.promised = True
        try:
            await self._stored(run)
        except OSError as error:
            run.promised = False
            self.kill(run)
            raise UnavailableError(f"the run could not be stored: {error.strerror}", missing=("room on the disk",),
                                   hint="send wait: true, or try again later") from error  # fmt: skip

    async def _stored(self, run: Run) -> None:
        """Write its file with its state at that time, even if the caller goes away; OSError if that fails."""
        await asyncio.shield(self._loop.create_task(self._store_in_turn(run)))

    async def _store_in_turn(self, run: Run) -> None:
        async with run.writing:
            if run.unwanted:
                return
            run_id, owner, text, is_open = run.id, run.tenant.name, run.kept(), run.state not in OVER
            await self._in_thread(lambda: self._store.write_text(run_id, owner, text(), is_open=is_open))

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await self._loop.run_in_executor(self._writers, work)

    async def _lead(self, run: Run) -> None:
        try:
            if run.state == QUEUED and run.place is not None:
                await run.place.turn
            await self._carry_out(run)
        except asyncio.CancelledError:
            run.state = CANCELLED
        except SandboxError as error:
            run.state, run.error = FAILED, self._told(error)
        except Exception as error:
            self._warn("a run failed", run, error)
            run.state, run.error = FAILED, self._told(error)
        finally:
            await self._finish(run)

    async def _carry_out(self, run: Run) -> None:
        if run.begun is None:
            self._note_begin(run)
            if run.promised:  # it must not be begun a second time
                await self._stored(run)
            self._start(run)
        outcome = run.with_reason(await self._outcome(run))
        run.weigh(outcome)
        run.outcome = await self._in_thread(lambda: plain_outcome(outcome)) if run.is_large else plain_outcome(outcome)
        if run.wants_bundle and self._sign is not None:
            await self._signed(run, outcome, self._sign)
        run.state = ENDED  # not before: a client that waits for the end, and the sweep, must find the bundle with it

    def _note_begin(self, run: Run) -> None:
        run.state, run.began_s = RUNNING, time.time()
        run.log.tell("state", {"state": RUNNING})

    def _start(self, run: Run) -> None:
        """Start at once: a run that somebody waits for must not spend a turn of the loop first."""
        assert run.work is not None
        try:
            run.begun = run.work.start(run.listeners(self._on_told))
        except BaseException as error:  # told by whoever leads it
            run.begun = Future()
            run.begun.set_exception(error)

    async def _outcome(self, run: Run) -> Outcome:
        """Its thread reports the outcome in one turn of the loop; a client that stops waiting does not end the run."""
        heard, begun = self._loop.create_future(), run.begun
        assert begun is not None
        begun.add_done_callback(lambda _: self._loop.is_closed() or self._loop.call_soon_threadsafe(_tell, heard))
        await heard
        found: Outcome = begun.result()
        return found

    async def _signed(self, run: Run, outcome: Outcome, sign: Sign) -> None:
        """The outcome must not be lost because evidence can't be made."""
        try:
            assert run.work is not None
            signing = functools.partial(sign, outcome, run.policy, run.work, run.id)
            run.bundle = await self._loop.run_in_executor(None, lambda: Written(json_in_steps(signing())))
        except SandboxError as error:
            assert run.outcome is not None
            run.outcome["bundle_problem"] = shown(str(error))

    async def _finish(self, run: Run) -> None:
        run.ended_s = time.time()
        used_s = run.ended_s - run.began_s if run.began_s else None
        if run.place is not None:
            self._admission.leave(run.place, used_s)
        status = str((run.outcome or {}).get("status") or run.state)
        self._figures.add("ringfence_service_runs_total", run.policy_name, status)
        self._figures.add("ringfence_service_run_seconds_total", run.policy_name, amount=used_s or 0.0)
        whole = run.whole()
        run.settle(await self._in_thread(lambda: json_in_steps(whole)) if run.is_large else json_text(whole))
        if run.promised:
            await self._keep_promises(run)
        run.log.tell("end", run.text, last=True, size=0)  # it pushes out no output that is still to be sent
        run.kept_bytes = run.log.kept_bytes + len(run.text) + len(run.bundle or "")
        self.keys.note_over(run.tenant.name, run.key)
        run.over.set()
        if run.id in self._known:  # else its client has said that it may be forgotten
            self._keep(run)

    async def _keep_promises(self, *runs: Run) -> None:
        """Write their results. Where that fails, memory has one until a later try succeeds."""
        for run in runs:
            try:
                await self._stored(run)
                self._unwritten.pop(run.id, None)
            except OSError as error:
                if run.id not in self._unwritten:
                    self._warn("a result could not be written", run, error)
                if run.id in self._known:
                    self._unwritten[run.id] = run

    def _give_up(self, run: Run) -> None:
        """Its file must not say for ever that it runs. In a thread."""
        try:
            self.lose(run.id, {**run.summary(), "outcome": None, "key": run.key}, _NO_ROOM)
        except OSError:
            self._store.remove(run.id)

    def _warn(self, what: str, run: Run, error: Exception) -> None:
        logging.getLogger("ringfence.service").error(what, exc_info=error, extra={"ringfence": {"run": run.id}})

    def _on_told(self, run: Run, event: Event) -> None:
        """Called by the thread that leads the run."""
        told, size = self.tell_attempt(run.tenant.name, run.id, run.box, event)
        run.attempts += is_attempt(event) and event.kind is not EventKind.LIMIT
        run.log.tell("attempt", told, size=size)  # all of it: its client's on_event

    def tell_attempt(self, tenant: str, run_id: str, box_id: str, event: Event) -> tuple[dict[str, object], int]:
        """Show it to everybody who watches, if it is an attempt; return what is told, and its size. From any thread."""
        details = {str(name): shown(str(value))[:400] for name, value in event.details.items()}
        told: dict[str, object] = {
            "run": run_id or None, "box": box_id or None, "tenant": tenant, "time": event.time_s,
            "kind": str(event.kind), "details": details,
        }  # fmt: skip
        size = 256 + sum(len(name) + len(value) for name, value in details.items())
        if is_attempt(event):
            self.feed.tell(tenant, "attempt", told, size)
            self._loop.call_soon_threadsafe(self._figures.add, "ringfence_service_attempts_total", str(event.kind))
        return told, size

    # ---- asking

    def find(self, tenant: Tenant, run_id: str) -> Run | None:
        """A run of this tenant's, in memory; None: there is none that it may see."""
        run = self._known.get(run_id)
        return run if run is not None and _is_seen(tenant, run.tenant.name) else None

    async def read(self, tenant: Tenant, run_id: str) -> dict[str, Any] | Written | None:
        """The document of a run, also from an earlier process of the service."""
        run = self.find(tenant, run_id)
        if run is not None:
            return run.document()
        return await self._in_thread(lambda: self._read(tenant, run_id))  # type: ignore[no-any-return]

    def _read(self, tenant: Tenant, run_id: str) -> Written | None:
        """From the disk, in a thread: it may be as large as the program chose."""
        found = self._store.read(run_id)
        if found is None or not _is_seen(tenant, str(found.get("tenant"))):
            return None
        return Written(json_in_steps({name: value for name, value in found.items() if name not in _OWN_FIELDS}))

    async def bundle_of(self, tenant: Tenant, run_id: str) -> dict[str, object] | Written | None:
        run = self.find(tenant, run_id)
        if run is not None:
            return run.bundle
        found = await self._in_thread(lambda: self._store.read(run_id)) or {}
        return found.get("bundle_document") if _is_seen(tenant, str(found.get("tenant"))) else None

    def seen_by(self, tenant: Tenant) -> Iterator[Run]:
        """Those in memory, the newest first."""
        return (run for run in reversed(self._known.values()) if _is_seen(tenant, run.tenant.name))

    async def listed(self, tenant: Tenant, most: int) -> list[dict[str, Any]]:
        """Summaries of these, and then of results that only the disk has, the newest first."""
        found: list[dict[str, Any]] = [run.summary() for run in itertools.islice(self.seen_by(tenant), most)]
        if len(found) < most:
            wanted, known = functools.partial(_is_seen, tenant), frozenset(self._known)
            kept = await self._in_thread(lambda: self._store.newest(most - len(found), wanted, known))
            found += [{name: value for name, value in each.items() if name not in _LONG_FIELDS} for each in kept]
        return found

    def kill(self, run: Run) -> None:
        """It ends as soon as it can; one that waits never begins."""
        if run.state == QUEUED and run.task is not None:
            run.task.cancel()
        elif run.state == RUNNING and run.work is not None:
            run.work.kill()

    async def forget(self, run: Run) -> None:
        """Its result is not wanted any more."""
        run.unwanted = True
        self._drop(run)
        async with run.writing:
            await self._in_thread(lambda: self._store.remove(run.id))

    async def forget_stored(self, tenant: Tenant, run_id: str) -> bool:
        """The same of a result that only the disk has; False: there is none that this tenant may see."""
        owner = self._store.owner_of(run_id)
        if owner is None or not _is_seen(tenant, owner):
            return False
        await self._in_thread(lambda: self._store.remove(run_id))
        return True

    def _drop(self, run: Run) -> None:
        if self._unwritten.pop(run.id, None) is not None and not run.unwanted:
            self._writers.submit(self._give_up, run)
        self._known.pop(run.id, None)
        if run.tenant.name in self._kept:
            self._kept[run.tenant.name].forget(run)

    def _keep(self, run: Run) -> None:
        """The oldest of the same tenant's go for it."""
        kept = self._kept.setdefault(run.tenant.name, Kept())
        kept.add(run)
        share = max(_LEAST_KEPT_BYTES, _MOST_KEPT_BYTES // self._tenants)
        while (oldest := kept.too_old(_MOST_KEPT, share)) is not None:
            self._drop(oldest)

    def kept_bytes(self, tenant: str) -> int:
        return self._kept[tenant].bytes if tenant in self._kept else 0

    async def sweep(self, keep_s: float) -> None:
        """Forget what is older than that; called from time to time."""
        living = {run.id for run in self.living()}
        await self._keep_promises(*self._unwritten.values())
        await self._in_thread(lambda: self._store.sweep(living))
        for run in [run for run in self._known.values() if run.state in OVER]:
            if time.time() - run.ended_s > keep_s:
                self._unwritten.pop(run.id, None)
                self._drop(run)
        self.keys.sweep(keep_s)

    # ---- the end, and a new life

    def living(self) -> list[Run]:
        return [run for run in self._known.values() if run.state not in OVER]

    async def drain(self, within_s: float) -> list[Run]:
        """Wait for all running and queued runs; then end those that still run. Returns those that never began."""
        living = self.living()
        if living:
            await asyncio.wait([asyncio.create_task(run.over.wait()) for run in living], timeout=within_s)
        waiting = [run for run in self.living() if run.state == QUEUED]
        promised = {run.id: run.promised for run in waiting}
        for run in waiting:  # all at once: one that leaves makes room for the next
            assert run.task is not None
            run.promised = False  # its file stays as it was: the next service continues with it
            run.task.cancel()
        for run in waiting:
            await run.over.wait()
            run.promised = promised[run.id]
        for run in self.living():
            run.is_drained = True
            self.kill(run)
        left = [run.over.wait() for run in self.living()]
        if left:
            await asyncio.wait([asyncio.create_task(each) for each in left], timeout=30)
        await self._keep_promises(*self._unwritten.values())
        return waiting

    def close(self) -> None:
        """What is being written is written first."""
        self._writers.shutdown(wait=True)

    def left_over(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Unfinished runs of an earlier process: to be repeated, or lost if they had begun."""
        for run_id, document in list(self._store.all()):
            self._recall(run_id, document)
            if document.get("state") == QUEUED and isinstance(document.get("spec"), dict):
                yield run_id, document
            elif document.get("state") == RUNNING:
                self.lose(run_id, document)

    def _recall(self, run_id: str, document: dict[str, Any]) -> None:
        key, tenant = document.get("key"), str(document.get("tenant"))
        if key is not None:
            self.keys.recall(tenant, run_id, key)
            if document.get("state") != QUEUED:
                self.keys.note_over(tenant, key)

    def rename(self, run: Run, run_id: str, document: dict[str, Any]) -> None:
        """It goes on under the name that was told to its client."""
        del self._known[run.id]
        run.id, run.key, run.promised = run_id, document.get("key"), True
        self._known[run_id] = run

    def lose(self, run_id: str, document: dict[str, Any], why: str = _KILLED) -> None:
        error = {"type": "SupervisionError", "message": why}
        rest = {name: value for name, value in document.items() if name != "spec"}
        self._store.write(run_id, {**rest, "state": LOST, "error": error})
        self.keys.note_over(str(document.get("tenant")), document.get("key"))


def _tell(heard: asyncio.Future[None]) -> None:
    if not heard.done():
        heard.set_result(None)


def _is_seen(tenant: Tenant, owner: str) -> bool:
    return owner == tenant.name or "operator" in tenant.scopes


