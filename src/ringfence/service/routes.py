"""Every route as data: who may use it, what it takes and gives, and which handler answers. The OpenAPI document and the
application are both made of this table, so they can't say different things.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ringfence.model.record import record
from ringfence.service import shapes
from ringfence.service.schema import Schema

EVENTS, OCTETS, PLAIN = "text/event-stream", "application/octet-stream", "text/plain"
NONE: Mapping[str, Schema] = MappingProxyType({})


@record
class Route:
    """Describes one route."""

    method: str
    path: str
    handler: str
    summary: str
    scope: str = ""
    """What a token needs; absent: nothing, not even a token."""
    body: Schema | None = None
    octets: bool = False
    """The body is a file's bytes and no JSON."""
    query: Mapping[str, Schema] = NONE
    needs: tuple[str, ...] = ()
    """Of the query."""
    answers: Mapping[int, Schema | str] = MappingProxyType({200: shapes.ANY_OBJECT})
    """By status: the shape of JSON, or a media type; empty: nothing comes back."""
    values: int = 0
    """How many values the body may have in all; 0: as many as any (``bodies/decoding.py``)."""
    counted: bool = False
    """Whether each request counts as a run of its tenant's minute, before its body is looked at."""
    keyed: bool = False
    """Takes an Idempotency-Key."""


def _route(method: str, path: str, handler: str, summary: str, scope: str = "", **more: object) -> Route:
    return Route(method=method, path=path, handler=handler, summary=summary, scope=scope, **more)  # type: ignore[arg-type]


_MOST: Schema = {"type": "integer", "minimum": 1, "maximum": 1000}
_RAN: Mapping[int, Schema | str] = {200: shapes.RUN_DOCUMENT, 202: shapes.RUN_DOCUMENT}
_FILE: Mapping[str, Schema] = {"path": shapes.PATH}

ROUTES: tuple[Route, ...] = (
    _route("GET", "/healthz", "healthz", "Whether it takes requests"),
    _route("GET", "/openapi.json", "openapi", "This document"),
    _route("GET", "/metrics", "metrics", "Figures for Prometheus", "operator", answers={200: PLAIN}),
    _route("GET", "/v1/status", "status", "How full it is, and what you may have", "read"),
    _route("GET", "/v1/policies", "list_policies", "The policies and workspaces that you may pick", "read"),
    _route("GET", "/v1/events", "follow", "All that happens, as it happens", "read", answers={200: EVENTS}),
    _route("POST", "/v1/runs", "create_run", "Run a program or a Python source", "run", body=shapes.RUN, answers=_RAN,
           counted=True, keyed=True),
    _route("GET", "/v1/runs", "list_runs", "Your runs, the newest first", "read", query={"most": _MOST},
           answers={200: shapes.RUN_LIST}),
    _route("GET", "/v1/runs/{run}", "read_run", "A run and its outcome", "read",
           query={"wait": {"type": "boolean"}}, answers={200: shapes.RUN_DOCUMENT}),
    _route("DELETE", "/v1/runs/{run}", "end_run", "End a run, or forget one that has ended", "run",
           answers={202: shapes.RUN_DOCUMENT, 204: ""}),
    _route("GET", "/v1/runs/{run}/events", "follow_run", "Its output and attempts, from Last-Event-ID on", "read",
           answers={200: EVENTS}),
    _route("GET", "/v1/runs/{run}/bundle", "read_bundle", "Signed evidence of it", "read"),
    _route("POST", "/v1/runs/{run}/signal", "signal_run", "Signal a run in a box", "run", body=shapes.SIGNAL,
           answers={204: ""}),
    _route("POST", "/v1/runs/{run}/input", "feed_run", "Feed a run in a box", "run", body=shapes.INPUT,
           answers={204: ""}),
    _route("POST", "/v1/boxes", "create_box", "Open a box", "box", body=shapes.BOX, answers={201: shapes.BOX_DOCUMENT},
           counted=True),
    _route("GET", "/v1/boxes", "list_boxes", "Your boxes", "read", answers={200: shapes.BOX_LIST}),
    _route("GET", "/v1/boxes/{box}", "read_box", "A box", "read", answers={200: shapes.BOX_DOCUMENT}),
    _route("DELETE", "/v1/boxes/{box}", "remove_box", "End a box and remove it", "box", answers={204: ""}),
    _route("POST", "/v1/boxes/{box}/park", "park_box", "End what runs in it; its files stay", "box", body={
        "type": "object", "additionalProperties": False, "properties": {}}, answers={200: shapes.BOX_DOCUMENT}),
    _route("POST", "/v1/boxes/{box}/runs", "run_in_box", "Run a program in it", "box", body=shapes.BOX_RUN,
           answers=_RAN, counted=True, keyed=True),
    _route("GET", "/v1/boxes/{box}/file", "read_file", "A file of it", "box", query=_FILE, needs=("path",),
           answers={200: OCTETS}),
    _route("PUT", "/v1/boxes/{box}/file", "write_file", "Write a file of it", "box", query=_FILE, needs=("path",),
           octets=True, answers={204: ""}),
    _route("GET", "/v1/boxes/{box}/files", "list_files", "A directory of it", "box", query=_FILE,
           answers={200: shapes.FILES}),
    _route("GET", "/v1/boxes/{box}/changes", "read_changes", "What differs from its workspace", "box",
           answers={200: shapes.CHANGES}),
    _route("GET", "/v1/boxes/{box}/diff", "read_diff", "The same as text", "box", query=_FILE, answers={200: PLAIN}),
    _route("GET", "/v1/boxes/{box}/checkpoints", "list_checkpoints", "Its checkpoints", "box",
           answers={200: shapes.CHECKPOINTS}),
    _route("POST", "/v1/boxes/{box}/checkpoints", "create_checkpoint", "Keep it as it is", "box",
           body=shapes.CHECKPOINT_NAME, answers={201: shapes.CHECKPOINT}),
    _route("DELETE", "/v1/boxes/{box}/checkpoints/{checkpoint}", "remove_checkpoint", "Remove a checkpoint", "box",
           answers={204: ""}),
    _route("POST", "/v1/boxes/{box}/rollback", "roll_back", "Back to a checkpoint; what runs ends", "box",
           body=shapes.ROLLBACK),
    _route("POST", "/v1/boxes/{box}/discard", "discard", "Drop all changes; what runs ends", "box", body={
        "type": "object", "additionalProperties": False, "properties": {}}),
    _route("POST", "/v1/boxes/{box}/commit", "commit", "Apply its changes to its workspace", "box",
           body=shapes.COMMIT),
    _route("POST", "/v1/pools", "create_pool", "Sandboxes that stand by", "run", body=shapes.POOL,
           answers={201: shapes.POOL_DOCUMENT}, counted=True),
    _route("GET", "/v1/pools", "list_pools", "Your pools", "read", answers={200: shapes.POOL_LIST}),
    _route("DELETE", "/v1/pools/{pool}", "remove_pool", "Close a pool", "run", answers={204: ""}),
    _route("POST", "/v1/pools/{pool}/runs", "run_in_pool", "Run in a sandbox that stood by", "run",
           body=shapes.POOL_RUN, answers=_RAN, counted=True, keyed=True),
    _route("GET", "/v1/key", "read_key", "The public key of its bundles", "read"),
    _route("POST", "/v1/bundles/verify", "verify", "The verdict on a bundle", "bundle", body=shapes.VERIFY),
)  # fmt: skip
