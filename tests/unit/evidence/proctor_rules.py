"""Proctor 0.1.1's bundle rules, written from a description of its formats and from nothing of ours.

It makes bundles as Proctor does and checks them as Proctor does: in its order, ignoring what it does not
know. It imports no ringfence code, so that agreement between the two means something.
"""

from __future__ import annotations

import hashlib
import json

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

BODY = (
    "task_id",
    "pass",
    "status",
    "violations_head",
    "violations_count",
    "env_digest",
    "artifacts_digest",
    "reward",
    "proctor_version",
)
RECORD = ("step", "kind", "path", "host", "pid", "syscall")
KINDS = ("masked_read", "masked_write", "blocked_connect")
LABELS = (
    "agent_command",
    "image_digest",
    "image_ref",
    "policy_sha256",
    "proctor_commit",
    "proctor_version",
    "rootfs_kind",
    "spec_sha256",
)


def jcs(value: object) -> bytes:
    """Enough of RFC 8785 for these formats: ASCII keys, and numbers that JSON and ECMAScript print alike."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, dict):
        parts = [jcs(key) + b":" + jcs(value[key]) for key in sorted(value)]
        return b"{" + b",".join(parts) + b"}"
    return json.dumps(value, ensure_ascii=False).encode()


def labelled(pairs: list[tuple[str, str]]) -> str:
    text = "".join(f"{label}\0{value}\0" for label, value in sorted(pairs))
    return hashlib.sha256(text.encode()).hexdigest()


def chained(records: list[dict]) -> list[dict]:
    head, result = "0" * 64, []
    for record in records:
        head = hashlib.sha256(head.encode() + jcs(record)).hexdigest()
        result.append({**record, "chain": head})
    return result


def make(
    seed: bytes,
    *,
    task_id: str,
    passed: bool,
    records: list[dict],
    files: dict[str, bytes],
    environment: dict | None,
    reward: float | None = None,
) -> bytes:
    artifacts = [
        {"name": name, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        for name, data in files.items()
    ]
    violations = chained(records)
    body = {
        "task_id": task_id,
        "pass": passed,
        "status": "compromised" if records else "clean",
        "violations_head": violations[-1]["chain"] if violations else "0" * 64,
        "violations_count": len(violations),
        "env_digest": labelled([(label, (environment or {}).get(label, "")) for label in LABELS]),
        "artifacts_digest": labelled([(a["name"], a["sha256"]) for a in artifacts]),
        "proctor_version": "0.1.1",
    }
    if reward is not None:
        body["reward"] = reward
    key = Ed25519PrivateKey.from_private_bytes(seed)
    verdict = {
        **body,
        "public_key": key.public_key().public_bytes_raw().hex(),
        "signature": key.sign(jcs(body)).hex(),
    }
    bundle = {
        "bundle_version": 1 if environment is None else 2,
        "verdict": verdict,
        "violations": violations,
        "manifest": {"artifacts": artifacts},
    }
    if environment is not None:
        bundle["environment"] = environment
    return json.dumps(bundle, indent=2).encode()


def check(data: bytes, pubkey: str | None = None) -> str:
    """'ok', or the name of the first check that fails, in Proctor's order."""
    try:
        bundle = json.loads(data)
        # A typed reader keeps the members it knows and drops the rest before anything is hashed.
        verdict = {name: bundle["verdict"][name] for name in BODY if name in bundle["verdict"]}
        records = [{name: r[name] for name in RECORD if name in r} for r in bundle["violations"]]
        if any(record["kind"] not in KINDS for record in records):
            return "parse"
        key, signature = bundle["verdict"]["public_key"], bytes.fromhex(bundle["verdict"]["signature"])
        artifacts = [(a["name"], a["sha256"]) for a in bundle["manifest"]["artifacts"]]
    except (ValueError, KeyError, TypeError):
        return "parse"
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(signature, jcs(verdict))
    except (InvalidSignature, ValueError):
        return "signature"
    if pubkey is not None and key != pubkey:
        return "pubkey"
    links = chained(records)
    if (links[-1]["chain"] if links else "0" * 64) != verdict["violations_head"]:
        return "chain"
    if len(records) != verdict["violations_count"]:
        return "count"
    if labelled(artifacts) != verdict["artifacts_digest"]:
        return "artifacts"
    environment = bundle.get("environment")
    if environment is not None:
        pairs = [(label, environment.get(label, "")) for label in LABELS]
        if labelled(pairs) != verdict["env_digest"]:
            return "environment"
    return "ok"
