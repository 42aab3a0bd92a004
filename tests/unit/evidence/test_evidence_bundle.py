"""Making bundles: what would not verify is not made. And trust files: what is unclear is not trusted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import evidence_samples as s
import pytest

from ringfence.errors import EvidenceError, VerificationError
from ringfence.evidence.bundle import Result, countersign, encode_bundle, file_artifact, write_beside
from ringfence.evidence.runrecord import RecorderHealth, fresh_nonce
from ringfence.evidence.trust import Trust
from ringfence.evidence.verify import verify_bundle


@pytest.mark.parametrize("reward", [float("inf"), float("-inf"), float("nan"), 1e300, 2**60])
def test_a_reward_that_could_not_verify_is_never_signed(reward: float) -> None:
    with pytest.raises(EvidenceError):
        s.ringfence_bundle(result=Result(task_id="fizz", passed=True, reward=reward))


@pytest.mark.parametrize(
    ("reward", "passed"), [(1.0, True), (1, True), (0.1, True), (0, False), (-0.0, False), (None, True)]
)
def test_a_reward_that_agrees_with_pass_is_signed(reward: float | None, passed: bool) -> None:
    bundle = s.ringfence_bundle(result=Result(task_id="fizz", passed=passed, reward=reward))
    assert ("reward" in bundle["verdict"]) == (reward is not None)


def test_pass_against_the_reward_is_never_signed() -> None:
    with pytest.raises(VerificationError) as caught:
        s.ringfence_bundle(result=Result(task_id="fizz", passed=True, reward=0.0))
    assert caught.value.step == 11


def test_clean_without_a_healthy_recorder_is_never_signed() -> None:
    dead = RecorderHealth(
        healthy=False, mechanism="fuse", events_count=0, events_head="0" * 64, problem="gone"
    )
    with pytest.raises(VerificationError) as caught:
        s.ringfence_bundle(violations=[], run=s.run_record(recorder=dead))
    assert caught.value.step == 15
    assert s.ringfence_bundle(run=s.run_record(recorder=dead))["verdict"]["status"] == "compromised"


def test_an_unknown_kind_of_violation_is_never_signed() -> None:
    """Proctor's reader knows three kinds; a fourth would make the whole bundle unreadable there."""
    with pytest.raises(VerificationError):
        s.ringfence_bundle(violations=[{**s.VIOLATIONS[0], "kind": "ptrace"}])


def test_the_same_key_does_not_sign_twice() -> None:
    with pytest.raises(VerificationError):
        countersign(s.ringfence_bundle(), s.OPERATOR)
    once = countersign(s.ringfence_bundle(), s.BENCHMARK)
    with pytest.raises(VerificationError):
        countersign(once, s.BENCHMARK)


def test_a_bundle_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = str(tmp_path / "bundle.json")
    write_beside(path, encode_bundle(s.ringfence_bundle()))
    write_beside(path, encode_bundle(s.ringfence_bundle()))
    with open(path, "rb") as file:
        assert verify_bundle(file.read(), trust=Trust.pinned(s.OPERATOR.public_hex)).state == "ok"
    assert os.listdir(tmp_path) == ["bundle.json"]
    with pytest.raises(EvidenceError):
        write_beside(str(tmp_path / "absent" / "x"), b"")
    (tmp_path / "folder" / "x").mkdir(parents=True)
    with pytest.raises(EvidenceError):
        write_beside(str(tmp_path / "folder"), b"")
    assert sorted(os.listdir(tmp_path)) == ["bundle.json", "folder"]


def test_a_file_artifact_is_hashed_from_the_disk(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"abc")
    assert file_artifact("log", str(tmp_path / "log")).bytes == 3


def test_nonces_are_fresh() -> None:
    assert len({fresh_nonce() for _ in range(100)}) == 100


def test_one_run_cannot_be_shown_for_another_challenge() -> None:
    data = s.encoded(s.ringfence_bundle())
    trust = Trust.pinned(s.OPERATOR.public_hex)
    assert verify_bundle(data, trust=trust, nonce=s.NONCE).state == "ok"
    with pytest.raises(VerificationError, match="replayed"):
        verify_bundle(data, trust=trust, nonce=fresh_nonce())


KEY = s.trust_document()["keys"][0]


@pytest.mark.parametrize(
    "changes",
    [
        {"keys": []},
        {"keys": [KEY, KEY]},
        {"keys": [{**KEY, "public_key": KEY["public_key"].upper()}]},
        {"keys": [{**KEY, "valid_form": "2026-01-01T00:00:00Z"}]},
        {"keys": [{**KEY, "revoked_at": "yesterday"}]},
        {"keys": [{**KEY, "revoked_at": "2026-13-01T00:00:00Z"}]},
        {"keys": [{**KEY, "roles": "operator"}]},
        {"format": "ringfence-trust/2"},
        {"required_anchor": []},
        {"required_anchors": ["sundial"]},
        {"accepted_formats": ["ringfence-4"]},
    ],
    ids=str,
)
def test_a_trust_file_that_is_unclear_is_refused(changes: dict[str, Any]) -> None:
    Trust.parse(s.encoded(s.trust_document()))
    with pytest.raises(EvidenceError, match="trust file"):
        Trust.parse(s.encoded(s.trust_document(**changes)))


def test_a_trust_file_with_a_key_twice_is_refused() -> None:
    text = json.dumps(s.trust_document()).replace(
        '"required_roles"', '"required_roles": [], "required_roles"'
    )
    with pytest.raises(EvidenceError, match="twice"):
        Trust.parse(text.encode())


def test_a_rotated_key_signs_new_bundles_and_the_old_one_does_not() -> None:
    ended = "2026-11-01T12:02:00Z"
    old = {"public_key": s.OPERATOR.public_hex, "name": "old", "roles": ["operator"], "valid_until": ended}
    new = {"public_key": s.BENCHMARK.public_hex, "name": "new", "roles": ["operator"], "valid_from": ended}
    trust = Trust.parse(s.encoded({"format": "ringfence-trust/1", "keys": [old, new]}))
    bundle = s.ringfence_bundle()
    with pytest.raises(VerificationError, match="no longer valid"):
        verify_bundle(s.encoded(bundle), trust=trust)
    assert verify_bundle(s.encoded(s.resigned(bundle, key=s.BENCHMARK)), trust=trust).state == "ok"
