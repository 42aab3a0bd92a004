"""What a stranger may hand to a verifier: files that are no bundles, and one that is and attacks whoever shows it."""

from __future__ import annotations

import json
import random
from typing import Any

import evidence_samples as s

HTML = "<img src=x onerror=pwned=1>"
# One that also tries to leave a script, an attribute and a template, and to turn the line around.
PAYLOAD = f"'\"`]]>--></title><script>pwned=1</script>{HTML}\u202e${{pwned=1}}"
GARBAGE = {
    "binary": random.Random(6).randbytes(100_000),
    "empty": b"",
    "prose": b"This is not JSON.\n",
    "10,000 deep": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "10,000 open": b"[" * 10_000,
    "null": b"null",
    "5,000,000 commas": b"[" + b"0," * 5_000_000 + b"0]",
    "5,000,000 brackets": b"[" + b"[[[[[[]]]]]]," * 800_000 + b"{}]",
    "over 64 MiB": b" " * (64 << 20) + b"{}",
    "html": f"<!doctype html><script>pwned=1</script>{HTML}".encode(),
    "NUL bytes": b"\0" * 1000,
}


def hostile_bundle() -> dict[str, Any]:
    """A bundle that verifies and has the payload in every text that a signer may choose."""
    bundle = s.ringfence_bundle()
    run = json.loads(bundle["contents"]["run.json"])
    run["host"] = {"system": PAYLOAD, "kernel": PAYLOAD, "machine": PAYLOAD, "posture": {PAYLOAD: PAYLOAD}}
    run["recorder"] |= {"mechanism": PAYLOAD, "problem": PAYLOAD}
    run["enforcement"] = [
        {"protection": PAYLOAD, "requested": True, "applied": False, "mechanism": PAYLOAD, "detail": PAYLOAD}
    ]
    for phase in run["phases"]:
        phase |= {"status": PAYLOAD, "usage": {PAYLOAD: 1, f"{PAYLOAD}_ms": 1, f"{PAYLOAD}_bytes": 1}}
    run["phases"].append({**run["phases"][0], "name": PAYLOAD})
    run |= {"task_id": PAYLOAD, "artifact_bytes": run["artifact_bytes"] | {HTML: 7}}
    run["embedded"] = sorted([*run["embedded"], HTML])
    bundle["contents"][HTML] = PAYLOAD
    bundle["manifest"]["artifacts"].append({"name": HTML, "sha256": s.sha256_hex(PAYLOAD.encode()), "bytes": 0})
    bundle["manifest"]["artifacts"].sort(key=lambda item: item["name"].encode())
    run["artifact_bytes"][HTML] = len(PAYLOAD.encode())
    for item in bundle["manifest"]["artifacts"]:
        if item["name"] == HTML:
            item["bytes"] = len(PAYLOAD.encode())
    bundle["violations"] = [
        {**record, "syscall": PAYLOAD, "path": PAYLOAD, "host": PAYLOAD} for record in bundle["violations"]
    ]
    bundle["environment"] |= dict.fromkeys(("agent_command", "proctor_commit", "image_ref", "image_digest"), PAYLOAD)
    inputs = json.loads(bundle["contents"]["inputs.json"])
    for entry in inputs["inputs"]:
        entry["name"] = PAYLOAD
    inputs["environment_variables"] = [PAYLOAD]
    bundle = s.resigned(bundle, task_id=PAYLOAD)
    bundle = s.with_text(bundle, "run.json", json.dumps(run))
    return s.with_text(bundle, "inputs.json", json.dumps(inputs))
