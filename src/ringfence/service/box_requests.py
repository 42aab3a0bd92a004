"""Requests about boxes: files, changes, checkpoints, commits, and runs in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringfence.checkpoint.transaction import Transaction
from ringfence.client.wire import shown, to_bytes
from ringfence.errors import UsageError
from ringfence.integrations.living.checkpoints import problem_with_another
from ringfence.model.job import Job
from ringfence.model.policy import SandboxPolicy
from ringfence.service.answer import Answer, Ask, Refused, not_found
from ringfence.service.boxes import KeptBox
from ringfence.service.run import Run
from ringfence.service.run_requests import RunRequests, digest_of, refuse_unsigned
from ringfence.service.service import Service
from ringfence.service.tokens import Tenant

_MOST_LISTED = 10_000
_MOST_DIFF_CHARS = 4 << 20
_KINDS = {"d": "directory", "f": "file", "l": "link"}
_LIST = ("find", "-H", ".", "-mindepth", "1", "-maxdepth", "1", "-printf", r"%y %s %f\0")


class BoxRequests:
    """Handlers, by the names that the table of routes has."""

    def __init__(self, service: Service, runs: RunRequests) -> None:
        self._service, self._runs = service, runs

    def _found(self, ask: Ask) -> KeptBox:
        found = self._service.boxes.find(ask.tenant, ask.path["box"])
        if found is None:
            raise not_found("box")
        return found

    def _box(self, ask: Ask) -> KeptBox:
        """A box that is about to be used: it gives no access to what the operator has taken away since it was made."""
        found = self._found(ask)
        if not ask.tenant.may_pick(found.policy_name):
            raise Refused(403, f"you no longer have access to the policy {found.policy_name}")
        if found.workspace:
            known = self._service.settings.workspaces.get(found.workspace)
            if known is None or known.path not in found.bases or not ask.tenant.may_work_on(found.workspace):
                raise Refused(403, f"you no longer have access to the workspace {found.workspace}")
        return found

    # ---- life

    async def create_box(self, ask: Ask) -> Answer:
        box = await made(self._service, ask.tenant, ask.body)
        return Answer(status=201, json=self.document(box), headers={"location": f"/v1/boxes/{box.id}"})

    def document(self, box: KeptBox) -> dict[str, object]:
        enforced = box.box.enforced if box.box is not None else {}
        return {
            "id": box.id, "state": "parked" if box.box is None else "open", "tenant": box.tenant,
            "policy": box.policy_name, "tighten": dict(box.tighten), "workspace": box.workspace or None,
            "created": box.created_s, "used": box.used_s, "runs": box.visits,
            "enforced": {name: row.mechanism for name, row in enforced.items() if row.applied},
            "samples": self._service.boxes.samples(box),
        }  # fmt: skip

    async def list_boxes(self, ask: Ask) -> Answer:
        return Answer(json={"boxes": [self.document(box) for box in self._service.boxes.seen_by(ask.tenant)]})

    async def read_box(self, ask: Ask) -> Answer:
        return Answer(json=self.document(self._found(ask)))

    async def remove_box(self, ask: Ask) -> Answer:
        await self._service.boxes.remove(self._found(ask))
        return Answer(status=204)

    async def park_box(self, ask: Ask) -> Answer:
        box = self._found(ask)
        await self._service.boxes.park(box)
        return Answer(json=self.document(box))

    # ---- runs

    async def run_in_box(self, ask: Ask) -> Answer:
        service, spec = self._service, {**ask.body, "box": ask.path["box"]}
        service.refuse_if_draining()
        refuse_unsigned(ask.tenant, spec)
        box, job = self._box(ask), _visit(spec)
        if not (ask.key and self._runs.known(ask, digest_of(spec))):  # a repeated request opens no parked box
            await service.boxes.opened(box)

        def start() -> Run:
            work = service.boxes.work(box, job, spec.get("timeout"))
            return service.runs.begin(Run(ask.tenant, box.policy_name, box.policy, work, None, spec))

        return await self._runs.begun(ask, spec, start)

    # ---- files: by a visit, as one of the box's own processes, so no path leads further than for those processes

    async def read_file(self, ask: Ask) -> Answer:
        box = await self._service.boxes.opened(self._box(ask))
        most = self._service.settings.body_bytes
        data = await self._service.boxes.use(box, self._get, box, ask.query["path"], most)
        return Answer(data=data)

    def _get(self, box: KeptBox, path: str, most: int) -> bytes:
        return box.with_box(self._service.boxes.registry).get(path, most)

    async def write_file(self, ask: Ask) -> Answer:
        box = await self._service.boxes.opened(self._box(ask))
        await self._service.boxes.use(box, self._put, box, ask.query["path"], ask.body)
        return Answer(status=204)

    def _put(self, box: KeptBox, path: str, data: bytes) -> None:
        box.with_box(self._service.boxes.registry).put(path, data)

    async def list_files(self, ask: Ask) -> Answer:
        box = await self._service.boxes.opened(self._box(ask))
        rows = await self._service.boxes.use(box, self._list, box, ask.query.get("path", ""))
        return Answer(json={"files": rows})

    def _list(self, box: KeptBox, path: str) -> list[dict[str, object]]:
        job = Job(argv=(*_LIST[:2], f"./{path}" if path and not path.startswith("/") else path or ".", *_LIST[3:]))
        outcome = box.with_box(self._service.boxes.registry).run(job, timeout=box.policy.wall_time_s)
        if not outcome.ok:
            said = shown(outcome.stderr.decode("utf-8", "replace"))[:200]
            raise UsageError(f"{path or '.'} could not be listed", hint=said)
        found = (row.split(b" ", 2) for row in outcome.stdout.split(b"\0")[:_MOST_LISTED])
        rows = [{"kind": _KINDS.get(row[0].decode("ascii", "replace"), "other"), "bytes": int(row[1]),
                 "name": row[2].decode("utf-8", "backslashreplace")}
                for row in found if len(row) == 3 and row[1].isdigit()]  # fmt: skip
        return sorted(rows, key=lambda row: (row["kind"] != "directory", str(row["name"])))

    # ---- changes

    async def read_changes(self, ask: Ask) -> Answer:
        box = self._box(ask)
        return Answer(json=await self._service.boxes.use(box, self._changes, box))

    def _changes(self, box: KeptBox) -> dict[str, object]:
        with box.at_rest(self._service.boxes.registry) as transaction:
            found = transaction.changes()
            rows = [{"path": shown(box.relative(each.path)), "kind": str(each.kind)} for each in found]
        return {"changes": rows, "complete": found.complete}

    async def read_diff(self, ask: Ask) -> Answer:
        box = self._box(ask)
        text: str = await self._service.boxes.use(box, self._diff, box, ask.query.get("path"))
        return Answer(data=text.encode("utf-8", "backslashreplace"), kind="text/plain; charset=utf-8")

    def _diff(self, box: KeptBox, path: str | None) -> str:
        with box.at_rest(self._service.boxes.registry) as transaction:
            wanted = None if path is None else [box.absolute(path)]
            return "".join(transaction.diffs(wanted, most=_MOST_DIFF_CHARS))[: 2 * _MOST_DIFF_CHARS]

    # ---- checkpoints

    async def list_checkpoints(self, ask: Ask) -> Answer:
        box = self._box(ask)
        return Answer(json=await self._service.boxes.use(box, self._checkpoints, box))

    def _checkpoints(self, box: KeptBox) -> dict[str, object]:
        with box.at_rest(self._service.boxes.registry) as transaction:
            rows = [_checkpoint(each) for each in transaction.checkpoints()]
            return {"checkpoints": rows, "current": transaction.current}

    async def create_checkpoint(self, ask: Ask) -> Answer:
        box = self._box(ask)
        policy = self._service.policy(box.policy_name, box.tighten)  # a parked box does not know its own
        work = self._checkpointed, box, policy, ask.body.get("name", "")
        return Answer(status=201, json=await self._service.boxes.use(box, *work))

    def _checkpointed(self, box: KeptBox, policy: SandboxPolicy, name: str) -> dict[str, object]:
        with box.at_rest(self._service.boxes.registry) as transaction:
            _refuse_checkpoint(transaction, policy)
            return _checkpoint(transaction.create_checkpoint(name))

    async def remove_checkpoint(self, ask: Ask) -> Answer:
        box = self._box(ask)
        await self._service.boxes.use(box, self._without_checkpoint, box, ask.path["checkpoint"])
        return Answer(status=204)

    def _without_checkpoint(self, box: KeptBox, checkpoint: str) -> None:
        with box.at_rest(self._service.boxes.registry) as transaction:
            transaction.delete_checkpoint(checkpoint)

    async def roll_back(self, ask: Ask) -> Answer:
        box = self._box(ask)
        work = box.roll_back, self._service.boxes.registry, ask.body["checkpoint"]
        return Answer(json={"files_restored": await self._service.boxes.use(box, *work)})

    async def discard(self, ask: Ask) -> Answer:
        box = self._box(ask)
        return Answer(json={"files_restored": await self._service.boxes.use(box, self._discard, box)})

    def _discard(self, box: KeptBox) -> int:
        with box.at_rest(self._service.boxes.registry) as transaction:
            box.end_all()
            return transaction.discard()

    async def commit(self, ask: Ask) -> Answer:
        box = self._box(ask)
        if box.workspace and not may_commit(self._service, ask.tenant, box):
            raise Refused(403, "you may not commit changes to this workspace",
                          hint="the operator must set commit: true, and give your token the scope commit")  # fmt: skip
        return Answer(json=await self._service.boxes.use(box, self._committed, box, ask.body))

    def _committed(self, box: KeptBox, given: dict[str, Any]) -> dict[str, object]:
        with box.at_rest(self._service.boxes.registry) as transaction:
            paths = None if given.get("paths") is None else [box.absolute(path) for path in given["paths"]]
            busy = box.box is not None and box.visits > 1  # this request is one of them
            if not busy:
                box.end_all()
            done = transaction.commit(paths, mounted=busy, on_conflict=given.get("on_conflict", "refuse"))
            return {name: [shown(box.relative(path)) for path in rows] for name, rows in done.__dict__.items()}


async def made(
    service: Service, tenant: Tenant, asked: Mapping[str, Any], *, is_session: bool = False
) -> KeptBox:
    """A box under a policy and on a workspace that the tenant may pick."""
    service.refuse_if_draining()
    name, tighten = asked.get("policy", "default"), asked.get("tighten", {})
    policy = service.policy_for(tenant, name, tighten)
    wanted = asked.get("workspace")
    workspace = service.settings.workspaces.get(wanted) if wanted and tenant.may_work_on(wanted) else None
    if wanted and workspace is None:
        raise UsageError(f"there is no workspace {wanted}", hint="GET /v1/policies lists them")
    return await service.boxes.create(tenant, name, policy, tighten, workspace, is_session=is_session)


def may_commit(service: Service, tenant: Tenant, box: KeptBox) -> bool:
    """Whether the operator lets this tenant carry changes over into the workspace."""
    workspace = service.settings.workspaces.get(box.workspace)
    return workspace is not None and workspace.commit and "commit" in tenant.scopes


def _visit(spec: dict[str, Any]) -> Job:
    files = {name: to_bytes(content, f"files.{name}") for name, content in spec.get("files", {}).items()}
    stdin = to_bytes(spec["input"], "input") if "input" in spec else None if spec.get("interactive") else b""
    cwd = spec.get("cwd")
    if cwd is not None and not cwd.startswith("/"):
        raise UsageError("cwd must be an absolute path inside the box")
    return Job(argv=tuple(spec["argv"]), stdin=stdin, files=files, environment=spec.get("env", {}), cwd=cwd,
               foreign=True)  # fmt: skip


def _refuse_checkpoint(transaction: Transaction, policy: SandboxPolicy) -> None:
    problem = problem_with_another(transaction, policy)
    if problem:
        hint = "remove one that you do not need; committing or closing the box removes them all"
        raise Refused(409, problem, hint=hint)


def _checkpoint(made: Any) -> dict[str, object]:
    return {"id": made.checkpoint_id, "name": shown(made.name), "created": made.created_s}
