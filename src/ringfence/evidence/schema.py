"""The formats as shapes: docs/reference/formats.md, sections 2 to 7, as data.

Owns: members, types, forms and orders. Does not: compare one part with another (verify does, step by step).
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, cast

from ringfence.evidence.shape import Choice, Items, Leaf, Record, Shape, Table
from ringfence.evidence.strictjson import MAX_SAFE_INTEGER

RUN_FORMAT = "ringfence.run/1"
INPUTS_FORMAT = "ringfence.inputs/1"
SUBMISSION_FORMAT = "ringfence.submission/1"
TRUST_FORMAT = "ringfence-trust/1"
LOG_ENTRY_FORMAT = "ringfence-log-entry/1"
RUN_NAME = "run.json"
INPUTS_NAME = "inputs.json"
EVENTS_NAME = "events.jsonl"
ROLES = ("task", "oracle", "grader", "instruction", "policy", "agent", "scaffold", "image", "other")
REQUIRED_ROLES = ("task", "grader", "policy", "agent")
UNGRADED_ROLES = ("policy", "agent")
# required of a run without a grader
SUBMITTED_ROLES = ("agent", "instruction", "scaffold")
MAX_SIGNATURES = 16
# and anchors: each costs a verifier a signature check, and they are not signed
UNSIGNED_MEMBERS = ("public_key", "signature")

_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z")


def parse_time(text: str) -> datetime:
    """A time of the format, checked before by ``TIME``."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{whole}.{fraction:0<6}+00:00")


def format_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _matching(pattern: str, expected: str) -> Leaf:
    compiled = re.compile(pattern)
    return Leaf(
        accepts=lambda value: type(value) is str and bool(compiled.fullmatch(value)), expected=expected
    )


def _one_of(*choices: object) -> Leaf:
    def accepts(value: object) -> bool:
        return any(type(value) is type(choice) and value == choice for choice in choices)

    return Leaf(accepts=accepts, expected=" or ".join(repr(choice) for choice in choices))


def _or_null(leaf: Leaf) -> Leaf:
    return Leaf(
        accepts=lambda value: value is None or leaf.accepts(value), expected=f"{leaf.expected} or null"
    )


def _is_time(value: object) -> bool:
    if type(value) is not str or not _TIME.fullmatch(value):
        return False
    try:
        parse_time(value)
    except ValueError:
        return False
    return True


def _is_number(value: object) -> bool:
    """Finite, and small enough that its canonical text is read back as the same number."""
    return (type(value) is int or type(value) is float) and abs(value) <= MAX_SAFE_INTEGER


def _is_base64(value: object) -> bool:
    """The one encoding of its bytes: decoders are lenient about unused bits, so encode again and compare."""
    try:
        return type(value) is str and b64encode(b64decode(value, validate=True)).decode() == value
    except ValueError:
        return False


def _is_artifact_path(value: object) -> bool:
    if type(value) is not str or not 1 <= len(value) <= 255 or "\0" in value or "\\" in value:
        return False
    return all(part not in ("", ".", "..") for part in value.split("/"))


TEXT = Leaf(accepts=lambda value: type(value) is str, expected="a string")
NO_NUL = Leaf(accepts=lambda value: type(value) is str and "\0" not in value, expected="a string without NUL")
NO_NUL_NOT_EMPTY = Leaf(
    accepts=lambda value: NO_NUL.accepts(value) and value != "",
    expected="a string without NUL, absent rather than empty",
)
FLAG = Leaf(accepts=lambda value: type(value) is bool, expected="true or false")
COUNT = Leaf(accepts=lambda value: type(value) is int and value >= 0, expected="an integer, 0 or more")
INTEGER = Leaf(accepts=lambda value: type(value) is int, expected="an integer")
NUMBER = Leaf(accepts=_is_number, expected="a number of at most 2^53 - 1")
HEX64 = _matching(r"[0-9a-f]{64}", "64 lower-case hex characters")
HEX128 = _matching(r"[0-9a-f]{128}", "128 lower-case hex characters")
TIME = Leaf(accepts=_is_time, expected="a time such as 2026-01-31T12:00:00Z")
BASE64 = Leaf(accepts=_is_base64, expected="base64 with padding and no stray bits")
ANY_NAME = Leaf(
    accepts=lambda value: NO_NUL.accepts(value) and 1 <= len(cast(str, value)) <= 255,
    expected="a string of 1 to 255 characters without NUL",
)
PATH_NAME = Leaf(accepts=_is_artifact_path, expected="a relative path without empty, '.' or '..' parts")


def _key_of(*members: str) -> Callable[[Any], tuple[bytes, ...]]:
    return lambda item: tuple(item[member].encode("utf-8") for member in members)


def _unique_by(*members: str) -> Callable[[list[Any]], str]:
    key = _key_of(*members)
    return lambda items: (
        "" if len({key(i) for i in items}) == len(items) else f"must have each {members[-1]} once"
    )


def _sorted_by(*members: str) -> Callable[[list[Any]], str]:
    key = _key_of(*members)

    def rule(items: list[Any]) -> str:
        keys = [key(item) for item in items]
        ordered = all(left < right for left, right in pairwise(keys))
        return "" if ordered else f"must be sorted by {' and '.join(members)}, each once"

    return rule


def _anchor_rule(items: list[Any]) -> str:
    twice = any(item in items[:index] for index, item in enumerate(items[: MAX_SIGNATURES + 1]))
    return few(items) or ("must have each item once" if twice else "")


def _signature_rule(items: list[Any]) -> str:
    return few(items) or _sorted_by("public_key")(items)


def few(items: list[Any]) -> str:
    return f"must not have more than {MAX_SIGNATURES} items" if len(items) > MAX_SIGNATURES else ""


def _unique_strings(items: list[Any]) -> str:
    return "" if len(set(items)) == len(items) else "must have each value once"


def _sorted_strings(items: list[Any]) -> str:
    keys = [item.encode("utf-8") for item in items]
    ordered = all(left < right for left, right in pairwise(keys))
    return "" if ordered else "must be sorted, each once"


def _phases_with(name: str, *never: str) -> Callable[[list[Any]], str]:
    def rule(items: list[Any]) -> str:
        names = [item["name"] for item in items]
        wrong = next((f"must not have a phase {each!r}" for each in never if each in names), "")
        return _unique_by("name")(items) or wrong or ("" if name in names else f"must have a phase {name!r}")

    return rule


def _enforcement_rule(items: list[Any]) -> str:
    return _unique_by("protection")(items) if items else "must not be empty"


def _inputs_with(roles: Sequence[str], *never: str) -> Callable[[list[Any]], str]:
    def rule(items: list[Any]) -> str:
        found = {item["role"] for item in items}
        absent = next((f"must have an input with the role {role!r}" for role in roles if role not in found), "")
        wrong = next((f"must not have an input with the role {role!r}" for role in never if role in found), "")
        return _sorted_by("role", "name")(items) or absent or wrong

    return rule


def _key_rule(items: list[Any]) -> str:
    return _unique_by("public_key")(items) if items else "must not be empty: nobody would be trusted"


VERDICT = Record(
    required={
        "task_id": TEXT,
        "pass": FLAG,
        "status": _one_of("clean", "compromised"),
        "violations_head": HEX64,
        "violations_count": COUNT,
        "env_digest": HEX64,
        "artifacts_digest": HEX64,
        "proctor_version": TEXT,
        "public_key": HEX64,
        "signature": HEX128,
    },
    optional={"reward": NUMBER},
)
VIOLATION = Record(
    required={
        "step": COUNT,
        "kind": _one_of("masked_read", "masked_write", "blocked_connect"),
        "pid": COUNT,
        "syscall": TEXT,
        "chain": HEX64,
    },
    optional={"path": TEXT, "host": TEXT},
)
ENVIRONMENT = Record(
    required={
        "agent_command": NO_NUL,
        "rootfs_kind": _one_of("host", "image"),
        "proctor_version": NO_NUL,
        "proctor_commit": NO_NUL,
        "policy_sha256": HEX64,
        "spec_sha256": HEX64,
    },
    optional={"image_ref": NO_NUL_NOT_EMPTY, "image_digest": NO_NUL_NOT_EMPTY},
)
ENVIRONMENT_LABELS = (*ENVIRONMENT.required, *ENVIRONMENT.optional)
MERKLE_ANCHOR = Record(
    required={
        "type": _one_of("merkle-log"),
        "log_public_key": HEX64,
        "logged_at": TIME,
        "leaf_index": COUNT,
        "tree_size": COUNT,
        "root": HEX64,
        "signed_at": TIME,
        "signature": HEX128,
        "proof": Items(item=HEX64),
    }
)
RFC3161_ANCHOR = Record(required={"type": _one_of("rfc3161"), "token": BASE64})
ANCHORS: dict[str, Record] = {"merkle-log": MERKLE_ANCHOR, "rfc3161": RFC3161_ANCHOR}
SIGNATURES = Items(item=Record(required={"public_key": HEX64, "signature": HEX128}), rule=_signature_rule)


def _manifest(name: Leaf, rule: Callable[[list[Any]], str]) -> Record:
    artifact = Record(required={"name": name, "sha256": HEX64, "bytes": COUNT})
    return Record(required={"artifacts": Items(item=artifact, rule=rule)})


_PROCTOR: dict[str, Shape] = {
    "bundle_version": INTEGER,
    "verdict": VERDICT,
    "violations": Items(item=VIOLATION),
    "manifest": _manifest(ANY_NAME, _unique_by("name")),
}
PROCTOR_BUNDLES = {1: Record(required=_PROCTOR), 2: Record(required={**_PROCTOR, "environment": ENVIRONMENT})}
VERDICT_ALONE = Record(required={"verdict": VERDICT})
RINGFENCE_BUNDLE = Record(
    required={
        "bundle_version": INTEGER,
        "verdict": VERDICT,
        "violations": Items(item=VIOLATION),
        "manifest": _manifest(PATH_NAME, _sorted_by("name")),
        "environment": ENVIRONMENT,
        "contents": Table(key=PATH_NAME, value=TEXT),
    },
    optional={
        "signatures": SIGNATURES,
        "anchors": Items(item=Choice(tag="type", records=ANCHORS), rule=_anchor_rule),
    },
)
PHASE = Record(
    required={
        "name": TEXT,
        "status": TEXT,
        "exit_code": _or_null(INTEGER),
        "signal": _or_null(INTEGER),
        "timed_out": FLAG,
        "wall_limit_ms": _or_null(COUNT),
        "wall_ms": COUNT,
        "usage": Table(key=TEXT, value=INTEGER),
    }
)
_ENFORCED: dict[str, Shape] = {
    "protection": TEXT,
    "requested": FLAG,
    "applied": FLAG,
    "mechanism": TEXT,
    "detail": TEXT,
}
_RECORDER: dict[str, Shape] = {
    "healthy": FLAG,
    "mechanism": TEXT,
    "events_count": COUNT,
    "events_head": HEX64,
    "dropped": COUNT,
    "problem": TEXT,
}
_HOST: dict[str, Shape] = {
    "system": TEXT,
    "kernel": TEXT,
    "machine": TEXT,
    "posture": Table(key=TEXT, value=TEXT),
}
RUN = Record(
    required={
        "format": _one_of(RUN_FORMAT),
        "task_id": TEXT,
        "nonce": HEX64,
        "started_at": TIME,
        "ended_at": TIME,
        "phases": Items(item=PHASE, rule=_phases_with("agent")),
        "enforcement": Items(item=Record(required=_ENFORCED), rule=_enforcement_rule),
        "recorder": Record(required=_RECORDER),
        "host": Record(required=_HOST),
        "artifact_bytes": Table(key=PATH_NAME, value=COUNT),
        "embedded": Items(item=PATH_NAME, rule=_sorted_strings),
    }
)
UNGRADED_RUN = Record(
    required={**RUN.required, "phases": Items(item=PHASE, rule=_phases_with("run", "agent", "grader"))}
)
_INPUT: dict[str, Shape] = {
    "role": _one_of(*ROLES),
    "name": TEXT,
    "kind": _one_of("file", "tree", "image"),
    "sha256": HEX64,
    "bytes": COUNT,
    "files": COUNT,
}
INPUTS = Record(
    required={
        "format": _one_of(INPUTS_FORMAT),
        "inputs": Items(item=Record(required=_INPUT), rule=_inputs_with(REQUIRED_ROLES)),
        "environment_variables": Items(item=TEXT, rule=_sorted_strings),
    }
)
_UNGRADED_RULE = _inputs_with(UNGRADED_ROLES, "task", "oracle", "grader")
UNGRADED_INPUTS = Record(
    required={**INPUTS.required, "inputs": Items(item=Record(required=_INPUT), rule=_UNGRADED_RULE)}
)
SUBMISSION = Record(
    required={
        "format": _one_of(SUBMISSION_FORMAT),
        "inputs": Items(
            item=Record(
                required={
                    **_INPUT,
                    "role": _one_of(*SUBMITTED_ROLES),
                    "name": PATH_NAME,
                    "kind": _one_of("file", "tree"),
                }
            ),
            rule=_inputs_with(("agent",)),
        ),
        "environment_variables": Items(item=NO_NUL_NOT_EMPTY, rule=_sorted_strings),
    }
)
LOG_ENTRY = Record(
    required={"format": _one_of(LOG_ENTRY_FORMAT), "digest": HEX64, "logged_at": TIME, "chain": HEX64}
)
_TRUSTED_KEY = Record(
    required={"public_key": HEX64, "name": TEXT, "roles": Items(item=TEXT, rule=_unique_strings)},
    optional={"valid_from": TIME, "valid_until": TIME, "revoked_at": TIME},
)
TRUST = Record(
    required={"format": _one_of(TRUST_FORMAT), "keys": Items(item=_TRUSTED_KEY, rule=_key_rule)},
    optional={
        "logs": Items(
            item=Record(required={"public_key": HEX64, "name": TEXT}), rule=_unique_by("public_key")
        ),
        "timestamp_authorities": Items(item=Record(required={"name": TEXT, "certificate_pem": TEXT})),
        "required_roles": Items(item=TEXT, rule=_unique_strings),
        "required_anchors": Items(item=_one_of(*ANCHORS), rule=_unique_strings),
        "accepted_formats": Items(
            item=_one_of("proctor-0.1", "ringfence-3", "ringfence-run-1"), rule=_unique_strings
        ),
    },
)
