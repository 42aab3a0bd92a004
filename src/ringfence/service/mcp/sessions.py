"""Sessions of the Model Context Protocol over HTTP: each is one box of its tenant, and one server over it.

A session ends when its client says so, when nobody has used it for as long as a box may be idle, or with the service.
A box without a workspace goes with it; one on a workspace that has changes stays, parked, like any other box.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from ringfence.errors import SandboxError
from ringfence.service.answer import Refused
from ringfence.service.box_requests import made, may_commit
from ringfence.service.boxes import MOST_VISITS, KeptBox
from ringfence.service.mcp.place import session_of
from ringfence.service.service import LOG, Service, tell
from ringfence.service.tokens import Tenant

_SWEEP_S = 5.0


class McpSession:
    """Serves one session over one box of its tenant."""

    def __init__(self, tenant: Tenant, box: KeptBox, manager: Any, close: Callable[[], None]) -> None:
        self.id = ""
        """The id that its client uses; the framework makes it with the first answer."""
        self.tenant, self.box, self.manager = tenant, box, manager
        self.close = close
        self.used_s = time.monotonic()
        self.busy = 0
        self._unanswered: set[str] = set()
        self.ready, self.ending = asyncio.Event(), asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    @contextmanager
    def unanswered(self, request_id: object) -> Iterator[Callable[[], None]]:
        """While a request has no answer, no other one may have its id: the framework would only answer the later one,
        and the earlier one would last longer than its session. It takes 1 and "1" for the same. Yields what is called
        before the end of the answer: a client that has it may use the id again."""
        names = [] if request_id is None else [str(request_id)]
        if self._unanswered.intersection(names):
            raise Refused(400, "a request of this session with this id has no answer yet", hint="use each id once")
        self._unanswered.update(names)

        def answered() -> None:
            if names:
                self._unanswered.discard(names.pop())

        try:
            yield answered
        finally:
            answered()

    async def live(self) -> None:
        """The framework's own tasks are begun and ended here."""
        async with self.manager.run():
            self.ready.set()
            await self.ending.wait()


class McpSessions:
    """All of a service; for the event loop alone."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._known: dict[str, McpSession] = {}
        self._sweeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._sweeper = asyncio.create_task(self._sweep())
        self._service.also_drain = self.drain

    async def stop(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self.drain(0)

    # ---- life

    async def opened(self, tenant: Tenant, asked: Mapping[str, Any]) -> McpSession:
        """A new one with a box of its own, which waits for its place like any other; not known before it has an id."""
        from ringfence.integrations.mcp import http, server

        service = self._service
        box = await made(service, tenant, asked, is_session=True)
        try:
            session = await self._in_thread(session_of, box, service.boxes.registry, service.runs)
            commit: server.Commit = "ask" if may_commit(service, tenant, box) else "never"
            by_hand = f"POST /v1/boxes/{box.id}/commit"
            built = server.build(session, commit=commit, by_hand=by_hand, at_once=MOST_VISITS,
                                 told=service.host_paths.without)  # fmt: skip
            manager = http.manager_of(built, service.settings.body_bytes)
            found = McpSession(tenant, box, manager, session.close)
            found.task = asyncio.create_task(found.live(), name=f"mcp {box.id}")
            await found.ready.wait()
        except BaseException:
            await service.boxes.remove(box)
            raise
        tell("mcp_session", box=box.id, tenant=tenant.name)
        return found

    def named(self, session: McpSession, session_id: str) -> None:
        session.id = session_id
        self._known[session_id] = session

    def find(self, tenant: Tenant, session_id: str) -> McpSession | None:
        """Find a session of this tenant: an operator may read others' boxes, but acts for nobody."""
        found = self._known.get(session_id)
        return found if found is not None and found.tenant.name == tenant.name else None

    @asynccontextmanager
    async def used(self, session: McpSession) -> AsyncIterator[Callable[[], None]]:
        """Keep it from being idle meanwhile; a parked box is opened again. Yields a function that says that nobody
        waits any more: what runs goes on, and counts as idle."""
        session.busy += 1
        session.box.visits += 1
        using = [session]

        def leave() -> None:
            if using:
                using.pop()
                session.busy -= 1
                session.box.visits -= 1
                session.used_s = time.monotonic()
                session.box.used_s = time.time()

        try:
            await self._service.boxes.opened(session.box)
            yield leave
        finally:
            leave()

    async def end(self, session: McpSession) -> None:
        """Twice is harmless."""
        self._known.pop(session.id, None)
        if session.ending.is_set():
            return
        session.ending.set()
        session.close()
        service, box = self._service, session.box
        try:
            if box.workspace and await self._in_thread(self._has_changes, box):
                await service.boxes.park(box)
            else:
                await service.boxes.remove(box)
        except SandboxError:
            pass  # it is gone already, or sweeping removes it
        assert session.task is not None
        await asyncio.wait([session.task], timeout=30)
        tell("mcp_session_ended", box=box.id, tenant=session.tenant.name)

    async def _in_thread(self, work: Callable[..., Any], *given: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._service.threads, work, *given)

    def _has_changes(self, box: KeptBox) -> bool:
        box.end_all()
        with box.at_rest(self._service.boxes.registry) as transaction:
            return bool(transaction.changes())

    async def _sweep(self) -> None:
        idle_s = self._service.settings.idle_s
        while True:
            await asyncio.sleep(min(_SWEEP_S, idle_s / 2))
            for session in list(self._known.values()):
                gone = session.box.gone or (session.task is not None and session.task.done())
                if gone or (not session.busy and time.monotonic() - session.used_s > idle_s):
                    try:
                        await self.end(session)
                    except Exception:
                        LOG.exception("a session could not be ended")

    async def drain(self, within_s: float) -> None:
        """Give running calls this long; then all sessions end."""
        end = time.monotonic() + within_s
        while any(session.busy for session in self._known.values()) and time.monotonic() < end:
            await asyncio.sleep(0.05)
        for session in list(self._known.values()):
            await self.end(session)
