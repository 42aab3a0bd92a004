"""Requests about runs: a body becomes a job and a policy, and a run its document."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from ringfence.client.wire import to_bytes
from ringfence.engine.pool import Pool
from ringfence.errors import UsageError
from ringfence.model.job import Job
from ringfence.model.policy import SandboxPolicy
from ringfence.python_jobs import job as python_job
from ringfence.service.answer import Answer, Ask, Refused, not_found
from ringfence.service.run import CANCELLED, OVER, Run
from ringfence.service.service import Service
from ringfence.service.tokens import Tenant
from ringfence.service.work import FreshWork, PooledWork, Work

_LISTED = 100
MOST_WRITING = 8
"""Requests of one tenant that may wait for programs to read; each takes a thread."""
_KINDS = ("argv", "source", "call")
_SOURCE_NAME = "job.py"
_LONG_CHARS = 1024


class RunRequests:
    """Handlers, by the names that the table of routes has."""

    def __init__(self, service: Service) -> None:
        self._service = service

    # ---- beginning

    async def create_run(self, ask: Ask) -> Answer:
        return await self.begun(ask, ask.body, lambda: self.started(ask.tenant, ask.body))

    async def begun(self, ask: Ask, spec: dict[str, Any], start: Callable[[], Run]) -> Answer:
        """A run of this spec, which the service may already have in memory."""
        service = self._service
        service.refuse_if_draining()
        refuse_unsigned(ask.tenant, spec)
        digest = digest_of(spec) if ask.key else ""
        known = self.known(ask, digest)
        if spec.get("wait", True):
            refuse_stream(service, ask.tenant)
        if known:
            return await self._repeated(ask.tenant, known, wait=spec.get("wait", True))
        if not spec.get("wait", True):
            service.runs.refuse_promise(ask.tenant)
        run = start()
        if ask.key:
            service.runs.keys.remember(run, ask.key, digest)
        return await self.answered(run, wait=spec.get("wait", True))

    def known(self, ask: Ask, digest: str) -> str:
        """The id of the run that this request has begun before; empty: it has begun none."""
        return self._service.runs.keys.find(ask.tenant.name, ask.key, digest) if ask.key else ""

    async def _repeated(self, tenant: Tenant, run_id: str, *, wait: bool) -> Answer:
        """The answer about a run that was begun before, wherever its result is; it is never begun again."""
        run = self._service.runs.find(tenant, run_id)
        if run is not None:
            return await self.answered(run, wait=wait)
        found = await self._service.runs.read(tenant, run_id)
        if found is None:
            raise Refused(410, f"the run of this Idempotency-Key, {run_id}, has ended; its result is no longer kept",
                          hint="to run it again, send another key")  # fmt: skip
        return Answer(json=found) if wait else _told_of(run_id, found)

    def started(self, tenant: Tenant, spec: dict[str, Any], pool: Any = None) -> Run:
        """Admit it, or put it into the queue."""
        service = self._service
        if pool is None:
            name = spec.get("policy", "default")
            policy = service.policy_for(tenant, name, spec.get("tighten", {}))
            work = self._work(spec, policy, name)
        else:
            name, policy = pool.policy_name, pool.policy
            work = PooledWork(pool.pool, pooled_job(spec, pool.pool), spec.get("timeout"))
        place = service.admission.join(tenant, policy.mem_bytes)
        run = service.runs.begin(Run(tenant, name, policy, work, place, spec))
        if pool is not None and run.task is not None:
            pool.begin(run.task)
        return run

    def _work(self, spec: Mapping[str, Any], policy: SandboxPolicy, name: str) -> Work:
        """Use the operator's pool if the policy is the operator's, except perhaps for its time limit."""
        service = self._service
        pool, whole = service.pools.of_policy.get(name), service.settings.policies[name].policy
        timeout = _timeout(spec, policy)
        if pool is not None and (policy is whole or policy.with_changes(wall_time_s=whole.wall_time_s) == whole):
            less = min(policy.wall_time_s, timeout or policy.wall_time_s)
            return PooledWork(pool, pooled_job(spec, pool), less if less < whole.wall_time_s else None)
        if "call" in spec:
            raise UsageError("a call needs a pool", hint="make one with POST /v1/pools, or pick a policy with warm")
        fresh = policy if timeout is None else policy.with_changes(wall_time_s=timeout)
        return FreshWork(service.threads, fresh_job(spec), fresh)

    async def answered(self, run: Run, *, wait: bool) -> Answer:
        if not wait:
            await self._service.runs.promise(run)
            return _told_of(run.id, run.document())
        await self._end_of(run, run.tenant)
        if run.state == CANCELLED and self._service.draining:
            raise Refused(503, "the service ended before the run started", headers={"retry-after": "5"})
        return Answer(json=run.document())

    async def _end_of(self, run: Run, tenant: Tenant) -> None:
        """A waiting request takes one of the server's slots, even when its connection is gone."""
        async with counted_stream(self._service, tenant):
            await run.over.wait()

    # ---- asking

    async def list_runs(self, ask: Ask) -> Answer:
        most = ask.query.get("most", _LISTED)
        return Answer(json={"runs": await self._service.runs.listed(ask.tenant, most)})

    async def read_run(self, ask: Ask) -> Answer:
        run = self._service.runs.find(ask.tenant, ask.path["run"])
        if run is not None and ask.query.get("wait") and run.state not in OVER:
            refuse_stream(self._service, ask.tenant)
            await self._end_of(run, ask.tenant)
        elif run is not None and run.state in OVER:
            await run.over.wait()  # an end is reported only once it is on disk
        found = await self._service.runs.read(ask.tenant, ask.path["run"])
        if found is None:
            raise not_found("run")
        return Answer(json=found)

    async def end_run(self, ask: Ask) -> Answer:
        """End it; one that has ended is forgotten."""
        runs = self._service.runs
        run = runs.find(ask.tenant, ask.path["run"])
        if run is None:
            if not await runs.forget_stored(ask.tenant, ask.path["run"]):
                raise not_found("run")
            return Answer(status=204)
        if run.state in OVER:
            await runs.forget(run)
            return Answer(status=204)
        self._service.runs.kill(run)
        return Answer(status=202, json=run.document())

    async def read_bundle(self, ask: Ask) -> Answer:
        found = await self._service.runs.bundle_of(ask.tenant, ask.path["run"])
        if found is None:
            raise not_found("bundle")
        return Answer(json=found)

    async def signal_run(self, ask: Ask) -> Answer:
        work, service = self._running(ask), self._service
        with self._writing(ask.tenant):
            await asyncio.get_running_loop().run_in_executor(service.writers, work.signal, ask.body["signal"])
        return Answer(status=204)

    async def feed_run(self, ask: Ask) -> Answer:
        """Write to its input, in a thread: a program that does not read makes its writer wait."""
        work, service = self._running(ask), self._service
        pieces = [to_bytes(ask.body["data"], "data")] if "data" in ask.body else []
        with self._writing(ask.tenant):
            for piece in (*pieces, *([None] if ask.body.get("close") else [])):
                await asyncio.get_running_loop().run_in_executor(service.writers, work.write, piece)
        return Answer(status=204)

    @contextmanager
    def _writing(self, tenant: Tenant) -> Iterator[None]:
        service = self._service
        writing = service.writing.get(tenant.name, 0)
        if writing >= MOST_WRITING:
            raise Refused(429, f"{writing} writes are waiting for programs that do not read",
                          headers={"retry-after": "5"})  # fmt: skip
        service.writing[tenant.name] = writing + 1
        try:
            yield
        finally:
            service.writing[tenant.name] -= 1

    def _found(self, ask: Ask) -> Run:
        run = self._service.runs.find(ask.tenant, ask.path["run"])
        if run is None:
            raise not_found("run")
        return run

    def _running(self, ask: Ask) -> Work:
        work = self._found(ask).work
        if work is None:
            raise Refused(409, "it has ended")
        return work

    # ---- events

    async def follow_run(self, ask: Ask) -> Answer:
        run = self._found(ask)

        async def events() -> AsyncIterator[bytes]:
            async with sent_stream(self._service, ask.tenant):
                async for piece in run.log.follow(ask.last_event):
                    yield piece

        refuse_stream(self._service, ask.tenant)
        return Answer(events=events())


def _told_of(run_id: str, document: object) -> Answer:
    return Answer(status=202, json=document, headers={"location": f"/v1/runs/{run_id}"})


def digest_of(spec: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(_brief(spec), sort_keys=True).encode()).hexdigest()


def _brief(value: Any) -> Any:
    """The same with a digest for each long text: escaping megabytes would hold up everybody. A list stands for no text
    that a request can have."""
    if isinstance(value, dict):
        return {name: _brief(each) for name, each in value.items()}
    if isinstance(value, list):
        return [*map(_brief, value)]
    is_long = isinstance(value, str) and len(value) > _LONG_CHARS
    return [hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()] if is_long else value


def refuse_unsigned(tenant: Tenant, spec: Mapping[str, Any]) -> None:
    if spec.get("bundle") and "bundle" not in tenant.scopes:
        raise Refused(403, "this token lacks the scope bundle")


def _timeout(spec: Mapping[str, Any], policy: SandboxPolicy) -> float | None:
    timeout = spec.get("timeout")
    if timeout is not None and timeout > policy.wall_time_s:
        raise UsageError(f"timeout: {timeout:g} s is more than the {policy.wall_time_s:g} s of the policy")
    return timeout


def _given(spec: Mapping[str, Any]) -> dict[str, Any]:
    files = {name: to_bytes(content, f"files.{name}") for name, content in spec.get("files", {}).items()}
    stdin = to_bytes(spec["input"], "input") if "input" in spec else None
    return {"stdin": stdin, "files": files, "environment": spec.get("env", {}), "foreign": True}


def _kind(spec: Mapping[str, Any]) -> str:
    found = [kind for kind in _KINDS if kind in spec]
    if len(found) != 1:
        raise UsageError("give exactly one of argv, source and call")
    if "arguments" in spec and found != ["source"]:
        raise UsageError("arguments goes with source", hint="put the arguments into argv")
    return found[0]


def pooled_job(spec: Mapping[str, Any], pool: Pool) -> Job:
    """For a sandbox that stands by, in which a Python source needs no start of an interpreter."""
    kind, given = _kind(spec), _given(spec)
    if kind == "argv":
        return Job(argv=tuple(spec["argv"]), **given)
    if kind == "source":
        return pool.source_job(to_bytes(spec["source"], "source"), "<job>", tuple(spec.get("arguments", ())), **given)
    call = spec["call"]
    packed = to_bytes(call["function"], "call.function"), to_bytes(call["arguments"], "call.arguments")
    work = python_job.call_job(*packed, surroundings=pool.surroundings)
    return Job(argv=("python", call.get("name", "call") or "call"), channel=True, python=work, **given)


def fresh_job(spec: Mapping[str, Any]) -> Job:
    """The same for a sandbox of its own: a source is a file that the system's Python runs."""
    kind, given = _kind(spec), _given(spec)
    if kind == "argv":
        return Job(argv=tuple(spec["argv"]), **given)
    if _SOURCE_NAME in given["files"]:
        raise UsageError(f"files.{_SOURCE_NAME} is reserved for the source")
    given["files"] = {**given["files"], _SOURCE_NAME: to_bytes(spec["source"], "source")}
    return Job(argv=("python3", _SOURCE_NAME, *spec.get("arguments", ())), **given)


def refuse_stream(service: Service, tenant: Tenant) -> None:
    """Refuse if this tenant has too many: one tenant must not take all connections."""
    if service.streams.get(tenant.name, 0) >= max(1, service.settings.connections // 2):
        raise Refused(429, "too many requests are waiting for runs", headers={"retry-after": "10"})


@asynccontextmanager
async def counted_stream(service: Service, tenant: Tenant) -> AsyncIterator[None]:
    service.streams[tenant.name] = service.streams.get(tenant.name, 0) + 1
    try:
        yield
    finally:
        service.streams[tenant.name] -= 1


@asynccontextmanager
async def sent_stream(service: Service, tenant: Tenant) -> AsyncIterator[None]:
    """The same for events that are sent after the request itself has been dealt with."""
    with service.unfinished.counted(tenant.name, is_let_in=True):
        async with counted_stream(service, tenant):
            yield


