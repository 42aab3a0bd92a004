"""The table of tampered bundles: which change must fail at which verification step.

Run as a program it writes tests/vectors/evidence: the good bundles, every tampered one, and index.json.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import evidence_samples as s

from ringfence.evidence import chain
from ringfence.evidence.translog import head_message

VECTORS = os.path.join(os.path.dirname(__file__), "..", "..", "vectors", "evidence")
Bundle = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Vector:
    name: str
    step: int
    # 0: verifies
    data: bytes
    options: dict[str, Any] = field(default_factory=dict)


PINNED = {"pubkey": s.OPERATOR.public_hex}


def vectors() -> list[Vector]:
    with tempfile.TemporaryDirectory() as folder:
        full = s.full_bundle(folder)
    plain = s.ringfence_bundle()
    trusted = {"trust": s.trust_document()}
    return [
        Vector(
            name="good-ringfence-3",
            step=0,
            data=s.encoded(full),
            options={**trusted, "artifacts": "artifacts"},
        ),
        Vector(
            name="good-ringfence-3-plain", step=0, data=s.encoded(plain), options={**PINNED, "nonce": s.NONCE}
        ),
        Vector(name="good-proctor-0.1.1", step=0, data=s.proctor_bundle(), options=_pin_proctor()),
        *_texts(plain),
        *_edits(full, trusted),
        *_trusts(full),
        *_proctor(),
        *_folders(plain),
        *_ungraded(plain),
    ]


def _pin_proctor() -> dict[str, Any]:
    return {"pubkey": s.PROCTOR_KEY.public_hex}


def _texts(plain: Bundle) -> Iterator[Vector]:
    """Step 1: what is not strict JSON. Each text also holds the good bundle, so nothing else is wrong."""
    text = s.encoded(plain).decode()
    deep = "[" * 70 + "]" * 70
    cases = {
        "duplicate-key": text.replace('{"bundle_version": 3', '{"bundle_version": 3, "bundle_version": 3', 1),
        "duplicate-key-escaped": text.replace('"pass": true', '"pass": true, "p\\u0061ss": true', 1),
        "nan": text.replace('"reward": 0.5', '"reward": NaN', 1),
        "infinity": text.replace('"reward": 0.5', '"reward": Infinity', 1),
        "minus-infinity": text.replace('"reward": 0.5', '"reward": -Infinity', 1),
        "overflow": text.replace('"reward": 0.5', '"reward": 1e999', 1),
        "integer-beyond-2-53": text.replace('"reward": 0.5', '"reward": 9007199254740993', 1),
        "integer-of-10000-digits": text.replace('"reward": 0.5', '"reward": ' + "9" * 10_000, 1),
        "lone-surrogate": text.replace('"task_id": "fizz"', '"task_id": "fizz\\ud800"', 1),
        "nested-70": text.replace('"reward": 0.5', '"reward": ' + deep, 1),
        "nested-100000": text.replace('"reward": 0.5', '"reward": ' + "[" * 100_000 + "]" * 100_000, 1),
        "trailing-garbage": text + "{}",
        "byte-order-mark": "\ufeff" + text,
        "array": f"[{text}]",
        "empty": "",
    }
    for name, changed in cases.items():
        assert changed != text, name
        yield Vector(name=f"json-{name}", step=1, data=changed.encode(), options=PINNED)
    latin = s.encoded(plain).replace("ä".encode(), b"\xe4")
    yield Vector(name="json-not-utf-8", step=1, data=latin, options=PINNED)


Edit = Callable[[Bundle], Bundle | None]
_ON_THE_FULL_BUNDLE = (
    "missing-anchor",
    "unknown-signature",
    "type-anchor",
    "type-17-anchors",
    "type-countersigner",
    "countersignature",
    "anchor",
    "trust",
)


def _edits(full: Bundle, trusted: dict[str, Any]) -> Iterator[Vector]:
    """Each edit on the smallest bundle and trust that it needs: nothing but its own step refuses it."""
    plain = {name: value for name, value in full.items() if name not in ("signatures", "anchors")}
    lenient = {"trust": s.trust_document(required_anchors=[])}
    for name, (step, edit) in {**_SHAPES, **_BINDINGS, **_LIES}.items():
        whole = name.startswith(_ON_THE_FULL_BUNDLE)
        options = lenient if name.startswith("anchor") else trusted if whole else PINNED
        bundle = copy.deepcopy(full if whole else plain)
        changed = edit(bundle)
        data = s.encoded(bundle if changed is None else changed)
        yield Vector(name=name, step=step, data=data, options=options)


def _setter(*path: Any, to: Any) -> Edit:
    """An edit of one place that somebody without the key could make."""

    def edit(bundle: Bundle) -> None:
        place: Any = bundle
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = to

    return edit


def _remover(*path: Any) -> Edit:
    def edit(bundle: Bundle) -> None:
        place: Any = bundle
        for part in path[:-1]:
            place = place[part]
        del place[path[-1]]

    return edit


def _swap(*path: Any) -> Edit:
    def edit(bundle: Bundle) -> None:
        place: Any = bundle
        for part in path:
            place = place[part]
        place[0], place[1] = place[1], place[0]

    return edit


def _upper(*path: Any) -> Edit:
    def edit(bundle: Bundle) -> None:
        place: Any = bundle
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = place[path[-1]].upper()

    return edit


def _as_proctor(bundle: Bundle) -> Bundle:
    """The downgrade: our additions dropped and the bundle relabelled as Proctor's, without the key."""
    kept = {name: bundle[name] for name in ("verdict", "violations", "manifest", "environment")}
    kept["verdict"] = {**kept["verdict"], "proctor_version": "0.1.1"}
    return {"bundle_version": 2, **kept}


def _repeat_artifact(bundle: Bundle) -> None:
    artifacts = bundle["manifest"]["artifacts"]
    artifacts.insert(0, artifacts[0])


def _primary_key_again(bundle: Bundle) -> None:
    entry = {"public_key": s.OPERATOR.public_hex, "signature": bundle["verdict"]["signature"]}
    bundle["signatures"] = sorted([*bundle["signatures"], entry], key=lambda item: item["public_key"])


def _too_many_signatures(bundle: Bundle) -> None:
    bundle["signatures"] = [{"public_key": f"{n:064x}", "signature": "0" * 128} for n in range(17)]


def _head_before_entry(bundle: Bundle) -> None:
    """A log that signs a head older than the entry it holds: its times cannot both be true."""
    anchor, signed_at = bundle["anchors"][0], "2026-01-01T00:00:00Z"
    message = head_message(anchor["tree_size"], anchor["root"], signed_at)
    anchor.update(signed_at=signed_at, signature=s.LOG_KEY.sign(message))


_SHAPES: dict[str, tuple[int, Edit]] = {
    "version-of-proctor": (2, _setter("bundle_version", to=2)),
    "version-later": (2, _setter("bundle_version", to=4)),
    "version-true": (2, _setter("bundle_version", to=True)),
    "version-float": (2, _setter("bundle_version", to=3.0)),
    "version-absent": (2, _remover("bundle_version")),
    "version-no-verdict": (2, _remover("verdict")),
    "version-maker-later": (2, lambda b: s.resigned(b, proctor_version="ringfence-4/0.9.0")),
    "version-maker-unknown": (2, lambda b: s.resigned(b, proctor_version="0.2.0")),
    "version-maker-newline": (2, lambda b: s.resigned(b, proctor_version="ringfence-3/0.1.0\n")),
    "missing-contents": (3, _remover("contents")),
    "missing-environment": (3, _remover("environment")),
    "missing-violations": (3, _remover("violations")),
    "missing-signature": (3, _remover("verdict", "signature")),
    "missing-pass": (3, _remover("verdict", "pass")),
    "missing-pid": (3, _remover("violations", 0, "pid")),
    "missing-bytes": (3, _remover("manifest", "artifacts", 0, "bytes")),
    "missing-anchor-root": (3, _remover("anchors", 0, "root")),
    "unknown-top": (4, _setter("comment", to="hello")),
    "unknown-verdict": (4, _setter("verdict", "comment", to="hello")),
    "unknown-record": (4, _setter("violations", 0, "comment", to="hello")),
    "unknown-artifact": (4, _setter("manifest", "artifacts", 0, "comment", to="hello")),
    "unknown-environment": (4, _setter("environment", "comment", to="hello")),
    "unknown-manifest": (4, _setter("manifest", "comment", to="hello")),
    "unknown-signature": (4, _setter("signatures", 0, "role", to="operator")),
    "type-count-true": (5, _setter("verdict", "violations_count", to=True)),
    "type-count-float": (5, _setter("verdict", "violations_count", to=2.0)),
    "type-count-negative": (5, _setter("verdict", "violations_count", to=-1)),
    "type-pass-one": (5, _setter("verdict", "pass", to=1)),
    "type-reward-null": (5, _setter("verdict", "reward", to=None)),
    "type-reward-text": (5, _setter("verdict", "reward", to="0.5")),
    "type-reward-true": (5, _setter("verdict", "reward", to=True)),
    "type-status-else": (5, _setter("verdict", "status", to="Clean")),
    "type-signature-upper-case": (5, _upper("verdict", "signature")),
    "type-key-upper-case": (5, _upper("verdict", "public_key")),
    "type-chain-upper-case": (5, _upper("violations", 0, "chain")),
    "type-kind-else": (5, _setter("violations", 0, "kind", to="read")),
    "type-path-null": (5, _setter("violations", 0, "path", to=None)),
    "type-pid-true": (5, _setter("violations", 0, "pid", to=True)),
    "type-artifacts-swapped": (5, _swap("manifest", "artifacts")),
    "type-artifact-twice": (5, _repeat_artifact),
    "type-artifact-parent": (5, _setter("manifest", "artifacts", 0, "name", to="../x")),
    "type-environment-nul": (5, _setter("environment", "agent_command", to="a\0b")),
    "type-environment-empty-option": (5, _setter("environment", "image_ref", to="")),
    "type-anchor-else": (5, _setter("anchors", 0, "type", to="notary")),
    "type-anchor-time": (5, _setter("anchors", 0, "logged_at", to="2026-02-30T00:00:00Z")),
    "type-17-anchors": (
        5,
        lambda b: {**b, "anchors": [{**b["anchors"][0], "leaf_index": n} for n in range(17)]},
    ),
    "type-17-signatures": (5, _too_many_signatures),
    "type-countersigner-is-signer": (5, _primary_key_again),
    "type-verdict-array": (5, _setter("manifest", to=[])),
}

_BINDINGS: dict[str, tuple[int, Edit]] = {
    "signature-pass": (6, _setter("verdict", "pass", to=False)),
    "signature-reward": (6, _setter("verdict", "reward", to=0.75)),
    "signature-reward-removed": (6, _remover("verdict", "reward")),
    "signature-task": (6, _setter("verdict", "task_id", to="buzz")),
    "signature-count": (6, _setter("verdict", "violations_count", to=0)),
    "signature-key": (6, _setter("verdict", "public_key", to=s.STRANGER.public_hex)),
    "signature-downgrade": (6, _as_proctor),
    "signer-stranger": (7, lambda b: s.resigned(b, key=s.STRANGER)),
    "chain-link": (8, _setter("violations", 0, "chain", to="0" * 64)),
    "chain-last-link": (8, _setter("violations", 1, "chain", to="0" * 64)),
    "chain-record": (8, _setter("violations", 0, "path", to="/tmp/harmless")),
    "chain-order": (8, _swap("violations")),
    "chain-last-removed": (8, _remover("violations", 1)),
    "chain-first-removed": (8, _remover("violations", 0)),
    "chain-all-removed": (8, _setter("violations", to=[])),
    "artifacts-digest": (12, _setter("manifest", "artifacts", 0, "sha256", to="0" * 64)),
    "artifacts-removed": (12, _remover("manifest", "artifacts", 1)),
    "artifacts-renamed": (12, _setter("manifest", "artifacts", 0, "name", to="a.stdout")),
    "environment-command": (13, _setter("environment", "agent_command", to="honest-agent")),
    "environment-option-added": (13, _setter("environment", "image_ref", to="debian:12")),
    "contents-note": (14, _setter("contents", "note.txt", to="other\n")),
    "contents-run": (14, _setter("contents", "run.json", to="{}")),
    "contents-run-removed": (14, _remover("contents", "run.json")),
    "contents-inputs-removed": (14, _remover("contents", "inputs.json")),
    "run-embedded-text-removed": (15, _remover("contents", "note.txt")),
    "type-anchor-twice": (5, lambda b: {**b, "anchors": b["anchors"] * 2}),
    "contents-of-nothing": (14, _setter("contents", "else.txt", to="x")),
    "sizes-bytes": (16, _setter("manifest", "artifacts", 0, "bytes", to=7)),
    "sizes-bytes-of-run": (16, _setter("manifest", "artifacts", 6, "bytes", to=7)),
    "countersignature-changed": (18, _setter("signatures", 0, "signature", to="0" * 128)),
    "countersignature-key": (18, _setter("signatures", 0, "public_key", to=s.STRANGER.public_hex)),
    "anchor-root": (19, _setter("anchors", 0, "root", to="0" * 64)),
    "anchor-time": (19, _setter("anchors", 0, "logged_at", to="2026-01-01T00:00:00Z")),
    "anchor-index": (19, _setter("anchors", 0, "leaf_index", to=3)),
    "anchor-proof": (19, _setter("anchors", 0, "proof", to=[])),
    "anchor-head-before-entry": (19, _head_before_entry),
    "anchor-signature": (19, _setter("anchors", 0, "signature", to="0" * 128)),
    "trust-anchor-removed": (20, _remover("anchors")),
    "trust-countersignature-removed": (20, _remover("signatures")),
}


def _claim(name: str, **members: Any) -> Edit:
    return lambda bundle: s.with_claims(bundle, name, **members)


def _clean_with(**recorder: Any) -> Edit:
    def edit(bundle: Bundle) -> Bundle:
        emptied = s.resigned({**bundle, "violations": []}, status="clean", violations_count=0)
        health = {**json.loads(bundle["contents"]["run.json"])["recorder"], **recorder}
        return s.with_claims(emptied, "run.json", recorder=health)

    return edit


def _grader_timed_out(bundle: Bundle) -> Bundle:
    phases = json.loads(bundle["contents"]["run.json"])["phases"]
    phases[1]["timed_out"] = True
    return s.with_claims(bundle, "run.json", phases=phases)


def _no_grader(bundle: Bundle) -> Bundle:
    phases = json.loads(bundle["contents"]["run.json"])["phases"]
    return s.with_claims(bundle, "run.json", phases=phases[:1])


def _run_key_twice(bundle: Bundle) -> Bundle:
    text = bundle["contents"]["run.json"]
    return s.with_text(bundle, "run.json", text.replace('"nonce":', '"nonce":"","nonce":', 1))


def _inputs_without(role: str) -> Edit:
    def edit(bundle: Bundle) -> Bundle:
        inputs = json.loads(bundle["contents"]["inputs.json"])["inputs"]
        kept = [entry for entry in inputs if entry["role"] != role]
        return s.with_claims(bundle, "inputs.json", inputs=kept)

    return edit


def _image_without_input(bundle: Bundle) -> Bundle:
    environment = {**bundle["environment"], "rootfs_kind": "image", "image_digest": "sha256:" + "1" * 64}
    return s.redigested({**bundle, "environment": environment})


def _other_policy(bundle: Bundle) -> Bundle:
    environment = {**bundle["environment"], "policy_sha256": "1" * 64}
    return s.redigested({**bundle, "environment": environment})


def _other_maker(bundle: Bundle) -> Bundle:
    environment = {**bundle["environment"], "proctor_version": "0.1.1"}
    return s.redigested({**bundle, "environment": environment})


def _run_states_itself(bundle: Bundle) -> Bundle:
    sizes = json.loads(bundle["contents"]["run.json"])["artifact_bytes"]
    return s.with_claims(bundle, "run.json", artifact_bytes={**sizes, "run.json": 1})


_LIES: dict[str, tuple[int, Edit]] = {
    "count-lie": (9, lambda b: s.resigned(b, violations_count=3)),
    "status-clean-with-violations": (10, lambda b: s.resigned(b, status="clean")),
    "status-compromised-without": (
        10,
        lambda b: s.resigned({**b, "violations": []}, violations_count=0, violations_head=chain.GENESIS),
    ),
    "reward-zero-passes": (11, lambda b: s.resigned(b, reward=0)),
    "reward-minus-zero-passes": (11, lambda b: s.resigned(b, reward=-0.0)),
    "reward-negative-passes": (11, lambda b: s.resigned(b, reward=-1)),
    "reward-positive-fails": (11, lambda b: s.resigned(b, **{"pass": False})),
    "environment-other-maker": (13, _other_maker),
    "run-other-task": (15, _claim("run.json", task_id="buzz")),
    "run-ended-before-start": (15, _claim("run.json", ended_at="2020-01-01T00:00:00Z")),
    "run-unknown-member": (15, _claim("run.json", comment="hello")),
    "run-unknown-format": (15, _claim("run.json", format="ringfence.run/2")),
    "run-no-enforcement": (15, _claim("run.json", enforcement=[])),
    "run-key-twice": (15, _run_key_twice),
    "run-clean-recorder-died": (15, _clean_with(healthy=False, problem="killed")),
    "run-clean-events-dropped": (15, _clean_with(dropped=3)),
    "run-grader-timed-out": (15, _grader_timed_out),
    "run-no-grader": (15, _no_grader),
    "sizes-name-missing": (16, _claim("run.json", artifact_bytes={})),
    "sizes-of-itself": (16, _run_states_itself),
    "inputs-no-policy": (17, _inputs_without("policy")),
    "inputs-no-task": (17, _inputs_without("task")),
    "inputs-no-agent": (17, _inputs_without("agent")),
    "inputs-no-grader": (17, _inputs_without("grader")),
    "inputs-other-policy": (17, _other_policy),
    "inputs-image-not-bound": (17, _image_without_input),
    "inputs-unknown-member": (17, _claim("inputs.json", comment="hello")),
    "inputs-unsorted-variables": (17, _claim("inputs.json", environment_variables=["PATH", "HOME"])),
    "inputs-variable-values": (17, _claim("inputs.json", environment_variables=[["PATH", "/bin"]])),
}


def _trusts(full: Bundle) -> Iterator[Vector]:
    """Step 20: the same good bundle, another verifier."""

    def keys(**operator: str) -> list[dict[str, Any]]:
        first, second = s.trust_document()["keys"]
        return [{**first, **operator}, second]

    both = {**s.trust_document()["keys"][0], "roles": ["operator", "benchmark"]}
    cases: dict[str, tuple[int, dict[str, Any]]] = {
        "revoked-before": (20, {"keys": keys(revoked_at="2026-11-01T00:00:00Z")}),
        "revoked-after-anchor": (0, {"keys": keys(revoked_at="2026-12-01T00:00:00Z")}),
        "revoked-and-log-unknown": (
            20,
            {"keys": keys(revoked_at="2026-12-01T00:00:00Z"), "logs": [], "required_anchors": []},
        ),
        "expired": (20, {"keys": keys(valid_until="2026-11-01T12:03:00Z")}),
        "not-yet-valid": (20, {"keys": keys(valid_from="2026-11-01T12:03:00.000001Z")}),
        "valid-window": (
            0,
            {"keys": keys(valid_from="2026-11-01T12:03:00Z", valid_until="2026-11-01T12:03:00.000001Z")},
        ),
        "one-key-in-two-roles": (20, {"keys": [both], "required_roles": ["operator", "benchmark"]}),
        "role-of-nobody": (20, {"required_roles": ["auditor"]}),
        "log-unknown": (20, {"logs": []}),
        "time-stamp-required": (20, {"required_anchors": ["rfc3161"]}),
        "format-not-accepted": (20, {"accepted_formats": ["proctor-0.1"]}),
        "no-format-accepted": (20, {"accepted_formats": []}),
    }
    for name, (step, changes) in cases.items():
        options = {"trust": s.trust_document(**changes)}
        yield Vector(name=f"trust-{name}", step=step, data=s.encoded(full), options=options)


def _proctor() -> Iterator[Vector]:
    pinned = _pin_proctor()
    good = json.loads(s.proctor_bundle())

    def changed(**members: Any) -> bytes:
        return s.encoded({**good, **members})

    without = {name: value for name, value in good.items() if name != "environment"}
    old = s.proctor_bundle(environment=None)
    yield Vector(name="proctor-environment-removed", step=3, data=s.encoded(without), options=pinned)
    stripped = s.encoded({**without, "bundle_version": 1})
    yield Vector(name="proctor-downgraded-to-1", step=13, data=stripped, options=pinned)
    yield Vector(name="proctor-version-1", step=13, data=old, options=pinned)
    allowed = {**pinned, "allow_missing_environment": True}
    yield Vector(name="proctor-version-1-allowed", step=0, data=old, options=allowed)
    yield Vector(name="proctor-as-ringfence", step=2, data=changed(bundle_version=3), options=pinned)
    yield Vector(name="proctor-with-contents", step=4, data=changed(contents={}), options=pinned)
    nonce = {**pinned, "nonce": s.NONCE}
    yield Vector(name="proctor-nonce-expected", step=15, data=s.encoded(good), options=nonce)
    infinite = s.proctor_bundle(reward=float("inf"))
    yield Vector(name="proctor-reward-infinite", step=1, data=infinite, options=pinned)
    clean = s.proctor_bundle(records=[], reward=None)
    yield Vector(name="proctor-clean", step=0, data=clean, options=pinned)


def _phases(*phases: dict[str, Any]) -> Edit:
    """An edit of the only phase of a run without a grader: one phase more or less for each mapping of changes."""

    def edit(bundle: Bundle) -> Bundle:
        one = json.loads(bundle["contents"]["run.json"])["phases"][0]
        return s.with_claims(bundle, "run.json", phases=[{**one, **changes} for changes in phases])

    return edit


def _input_more(role: str) -> Edit:
    def edit(bundle: Bundle) -> Bundle:
        document = json.loads(bundle["contents"]["inputs.json"])["inputs"]
        more = [*document, {**document[0], "role": role}]
        return s.with_claims(bundle, "inputs.json", inputs=sorted(more, key=lambda one: (one["role"], one["name"])))

    return edit


def _relabelled(maker: str) -> Edit:
    """The same in verdict and environment, signed: what a signer could do, and nobody else."""

    def edit(bundle: Bundle) -> Bundle:
        environment = {**bundle["environment"], "proctor_version": maker}
        return s.redigested(s.resigned({**bundle, "environment": environment}, proctor_version=maker))

    return edit


_UNGRADED: dict[str, tuple[int, Edit]] = {
    "version-of-proctor": (2, _setter("bundle_version", to=2)),
    "version-maker-later": (2, lambda b: s.resigned(b, proctor_version="ringfence-run-2/0.1.0")),
    "version-maker-bare": (2, lambda b: s.resigned(b, proctor_version="ringfence-run-1")),
    "missing-contents": (3, _remover("contents")),
    "unknown-verdict": (4, _setter("verdict", "graded", to=False)),
    "signature-pass": (6, _setter("verdict", "pass", to=True)),
    "signature-as-graded": (6, _setter("verdict", "proctor_version", to="ringfence-3/0.1.0")),
    "signature-as-proctor": (6, _as_proctor),
    "count-lie": (9, lambda b: s.resigned(b, violations_count=1, status="compromised")),
    "status-clean-with-violations": (
        10,
        lambda b: s.resigned(s.ungraded_bundle(violations=s.VIOLATIONS), status="clean"),
    ),
    "reward-passes": (11, lambda b: s.resigned(b, **{"pass": True})),
    "reward-there": (11, lambda b: s.resigned(b, reward=0)),
    "reward-passes-with-reward": (11, lambda b: s.resigned(b, **{"pass": True, "reward": 1})),
    "artifacts-removed": (12, _remover("manifest", "artifacts", 0)),
    "environment-command": (13, _setter("environment", "agent_command", to="true")),
    "environment-other-maker": (13, _other_maker),
    "contents-policy": (14, _setter("contents", "policy.json", to="{}")),
    "run-agent": (15, _phases({}, {"name": "agent"})),
    "run-grader": (15, _phases({}, {"name": "grader"})),
    "run-no-phase": (15, _phases({"name": "other"})),
    "run-of-a-graded-task": (15, _relabelled("ringfence-3/0.1.0")),
    "run-clean-recorder-died": (15, _clean_with(healthy=False, problem="killed")),
    "run-clean-events-dropped": (15, _clean_with(dropped=1)),
    "run-compromised-by-nothing": (15, lambda b: s.resigned(b, status="compromised")),
    "sizes-bytes": (16, _setter("manifest", "artifacts", 0, "bytes", to=7)),
    "inputs-no-argv": (17, _inputs_without("agent")),
    "inputs-no-policy": (17, _inputs_without("policy")),
    "inputs-other-policy": (17, _other_policy),
    "inputs-task": (17, _input_more("task")),
    "inputs-oracle": (17, _input_more("oracle")),
    "inputs-grader": (17, _input_more("grader")),
}


def _ungraded(graded: Bundle) -> Iterator[Vector]:
    """Runs without a grader."""
    good = s.ungraded_bundle()
    yield Vector(name="good-ringfence-run-1", step=0, data=s.encoded(good), options={**PINNED, "nonce": s.NONCE})
    watched = s.encoded(s.ungraded_bundle(violations=s.VIOLATIONS))
    yield Vector(name="good-ringfence-run-1-compromised", step=0, data=watched, options=PINNED)
    health = dataclasses.replace(s.ungraded_run().recorder, healthy=False, problem="nothing recorded this run")
    unsure = s.encoded(s.ungraded_bundle(run=s.ungraded_run(recorder=health)))
    yield Vector(name="good-ringfence-run-1-unsure", step=0, data=unsure, options=PINNED)
    for name, (step, edit) in _UNGRADED.items():
        bundle = copy.deepcopy(good)
        changed = edit(bundle)
        data = s.encoded(bundle if changed is None else changed)
        yield Vector(name=f"ungraded-{name}", step=step, data=data, options=PINNED)
    passed = s.encoded(_relabelled("ringfence-run-1/0.1.0")(graded))
    yield Vector(name="ungraded-reward-of-a-graded-task", step=11, data=passed, options=PINNED)
    for formats, step in ((["ringfence-3"], 20), (["ringfence-run-1"], 0)):
        trust = s.trust_document(accepted_formats=formats, required_roles=["operator"], required_anchors=[])
        name = "ungraded-trust-" + ("format-not-accepted" if step else "format-accepted")
        yield Vector(name=name, step=step, data=s.encoded(good), options={"trust": trust})


def _folders(plain: Bundle) -> Iterator[Vector]:
    data = s.encoded(plain)
    wrong_nonce = {**PINNED, "nonce": "cd" * 32}
    yield Vector(name="run-nonce-not-expected", step=15, data=data, options=wrong_nonce)
    for folder in ("artifacts-changed", "artifacts-missing"):
        yield Vector(name=f"files-{folder}", step=21, data=data, options={**PINNED, "artifacts": folder})
    head = json.loads(plain["contents"]["run.json"])["recorder"]
    lying = s.with_claims(plain, "run.json", recorder={**head, "events_count": 2})
    # The files of the good run fit this bundle but for run.json, which is therefore laid beside them anew.
    yield Vector(
        name="files-events-lie",
        step=21,
        data=s.encoded(lying),
        options={**PINNED, "artifacts": "artifacts-lie"},
    )


def folders(plain: Bundle) -> dict[str, dict[str, bytes]]:
    texts = {name: text.encode() for name, text in plain["contents"].items()}
    good = {**s.FILES, **texts}
    head = json.loads(plain["contents"]["run.json"])["recorder"]
    lying = s.with_claims(plain, "run.json", recorder={**head, "events_count": 2})
    return {
        "artifacts": good,
        "artifacts-changed": {**good, "final.diff": b"--- a\n+++ c\n"},
        "artifacts-missing": {name: data for name, data in good.items() if name != "logs/grader.stdout"},
        "artifacts-lie": {**good, "run.json": lying["contents"]["run.json"].encode()},
    }


def files() -> dict[str, bytes]:
    """Everything in the vectors directory, by relative path."""
    made = {}
    index = []
    for vector in vectors():
        name = f"{vector.name}.json" if vector.step == 0 else f"tampered/{vector.step:02d}-{vector.name}.json"
        made[name] = vector.data
        index.append({"file": name, "step": vector.step, **vector.options})
    made["index.json"] = json.dumps(index, indent=1).encode() + b"\n"
    for folder, content in folders(s.ringfence_bundle()).items():
        made.update({f"{folder}/{name}": data for name, data in content.items()})
    return made


def main() -> None:
    for name, data in files().items():
        path = os.path.join(VECTORS, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)


if __name__ == "__main__":
    main()
