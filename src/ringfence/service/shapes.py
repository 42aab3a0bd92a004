"""The shapes of all requests and answers, as data."""

from __future__ import annotations

from ringfence.service.run import STATES
from ringfence.service.schema import Schema

TEXT: Schema = {"type": "string"}
ID: Schema = {"type": "string", "pattern": "^[0-9a-f]{24}$"}
NAME: Schema = {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]{0,62}$"}
PATH: Schema = {"type": "string", "minLength": 1, "maxLength": 4096}
BYTES: Schema = {"title": "bytes", "oneOf": [
    {"type": "string", "title": "a string"},
    {"type": "object", "title": "base64", "required": ["base64"], "properties": {"base64": TEXT},
     "additionalProperties": False},
]}  # fmt: skip
ARGV: Schema = {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 10_000}
TIGHTEN: Schema = {"type": "object", "maxProperties": 64, "x-maxSize": 64 << 10,
                   "description": "fields that tighten the policy (docs/reference/policy.md)"}  # fmt: skip
POLICY: Schema = {**NAME, "default": "default"}


def _object(properties: dict[str, Schema], required: tuple[str, ...] = (), **more: object) -> Schema:
    made = {"type": "object", "properties": properties, "additionalProperties": False, **more}
    return {**made, "required": list(required)} if required else made


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


_GIVEN: dict[str, Schema] = {
    "argv": ARGV,
    "source": {**BYTES, "description": "Python, run as a file would be; instead of argv"},
    "arguments": {"type": "array", "items": TEXT, "maxItems": 10_000},
    "call": _object({"function": BYTES, "arguments": BYTES, "name": TEXT}, ("function", "arguments"),
                    description="a packed function and its arguments, unpacked nowhere but inside the sandbox"),
    "input": BYTES,
    "env": {"type": "object", "additionalProperties": TEXT, "maxProperties": 1000},
    "files": {"type": "object", "additionalProperties": BYTES, "maxProperties": 1000},
    "timeout": {"type": "number", "minimum": 0.001, "maximum": 315360000},
    "wait": {"type": "boolean", "default": True, "description": "false: the answer comes at once, without the result"},
    "bundle": {"type": "boolean", "default": False, "description": "sign evidence of the run"},
}  # fmt: skip
RUN = _object({**_GIVEN, "policy": POLICY, "tighten": TIGHTEN})
POOL_RUN = _object(_GIVEN)
BOX_RUN = _object({
    **{name: _GIVEN[name] for name in ("argv", "input", "env", "files", "timeout", "wait", "bundle")},
    "cwd": {**PATH, "description": "a directory inside the box"},
    "interactive": {"type": "boolean", "default": False, "description": "its input stays open, for /input"},
}, ("argv",))  # fmt: skip
BOX = _object({"policy": POLICY, "tighten": TIGHTEN, "workspace": NAME})
POOL = _object({
    "policy": POLICY, "tighten": TIGHTEN, "warm": {"type": "integer", "minimum": 0, "maximum": 1024},
    "preload": {"type": "array", "items": TEXT, "maxItems": 100},
})  # fmt: skip
SIGNAL = _object({"signal": {"type": "integer", "minimum": 1, "maximum": 64}}, ("signal",))
INPUT = _object({"data": BYTES, "close": {"type": "boolean"}})
CHECKPOINT_NAME = _object({"name": {"type": "string", "maxLength": 200}})
ROLLBACK = _object({"checkpoint": {"type": "string", "minLength": 1, "maxLength": 100}}, ("checkpoint",))
COMMIT = _object({
    "paths": {"type": "array", "items": PATH, "maxItems": 10_000},
    "on_conflict": {"type": "string", "enum": ["refuse", "theirs", "mine", "merge"]},
})  # fmt: skip
VERIFY = _object({"bundle": {"type": "object"}, "public_key": {"type": "string", "maxLength": 10_000}}, ("bundle",))

# ---- answers: what is promised of them; more may be there

_TIME: Schema = {"type": ["number", "null"]}
_MAYBE: Schema = {"type": ["string", "null"]}
ERROR: Schema = {"type": "object", "required": ["error"], "properties": {"error": {
    "type": "object", "required": ["type", "message"], "properties": {"type": TEXT, "message": TEXT, "hint": TEXT}}}}
RUN_SUMMARY: Schema = {"type": "object", "required": ["id", "state", "policy", "argv"], "properties": {
    "id": ID, "state": {"type": "string", "enum": list(STATES)}, "policy": TEXT, "argv": _list(TEXT), "box": _MAYBE,
    "pool": _MAYBE, "created": _TIME, "began": _TIME, "ended": _TIME, "status": _MAYBE,
    "rc": {"type": ["integer", "null"]}, "reason": _MAYBE, "attempts": {"type": "integer"},
}}  # fmt: skip
RUN_DOCUMENT: Schema = {**RUN_SUMMARY, "properties": {
    **RUN_SUMMARY["properties"],
    "outcome": {"type": ["object", "null"], "description": "as Outcome of the library (docs/reference/statuses.md)"},
    "error": {"type": ["object", "null"]},
}}  # fmt: skip
RUN_LIST: Schema = {"type": "object", "required": ["runs"], "properties": {"runs": _list(RUN_SUMMARY)}}
BOX_DOCUMENT: Schema = {"type": "object", "required": ["id", "state", "policy"], "properties": {
    "id": ID, "state": {"type": "string", "enum": ["open", "parked"]}, "policy": TEXT, "workspace": _MAYBE,
    "created": _TIME, "used": _TIME, "runs": {"type": "integer"}}}  # fmt: skip
BOX_LIST: Schema = {"type": "object", "required": ["boxes"], "properties": {"boxes": _list(BOX_DOCUMENT)}}
POOL_DOCUMENT: Schema = {"type": "object", "required": ["id", "policy", "warm"], "properties": {
    "id": ID, "policy": TEXT, "warm": {"type": "integer"}, "created": _TIME}}  # fmt: skip
POOL_LIST: Schema = {"type": "object", "required": ["pools"], "properties": {"pools": _list(POOL_DOCUMENT)}}
CHANGES: Schema = {"type": "object", "required": ["changes", "complete"], "properties": {
    "changes": _list({"type": "object", "required": ["path", "kind"], "properties": {"path": TEXT, "kind": TEXT}}),
    "complete": {"type": "boolean"}}}  # fmt: skip
FILES: Schema = {"type": "object", "required": ["files"], "properties": {"files": _list({
    "type": "object", "required": ["name", "kind"],
    "properties": {"name": TEXT, "kind": TEXT, "bytes": {"type": "integer"}}})}}  # fmt: skip
CHECKPOINT: Schema = {"type": "object", "required": ["id"], "properties": {"id": TEXT, "name": TEXT, "created": _TIME}}
CHECKPOINTS: Schema = {"type": "object", "required": ["checkpoints"],
                       "properties": {"checkpoints": _list(CHECKPOINT), "current": TEXT}}  # fmt: skip
ANY_OBJECT: Schema = {"type": "object"}
