"""Verification, step by step: each tampered vector fails exactly where docs/reference/formats.md says."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from typing import Any

import evidence_samples as s
import evidence_tampering
import proctor_rules
import pytest

from ringfence.errors import EvidenceError, VerificationError
from ringfence.evidence import verify
from ringfence.evidence.case import Case
from ringfence.evidence.trust import Trust
from ringfence.evidence.verify import STEPS, State, Step, Verification, verify_bundle, verify_verdict

VECTORS = evidence_tampering.VECTORS
DOCS = os.path.join(os.path.dirname(__file__), "..", "..", "..", "docs", "reference")


def read(name: str) -> bytes:
    with open(os.path.join(VECTORS, name), "rb") as file:
        return file.read()


INDEX: list[dict[str, Any]] = json.loads(read("index.json"))


def verify_entry(entry: dict[str, Any]) -> Verification:
    trust = Trust.parse(s.encoded(entry["trust"])) if "trust" in entry else Trust.pinned(entry["pubkey"])
    return verify_bundle(
        read(entry["file"]),
        trust=trust,
        nonce=entry.get("nonce"),
        artifacts_folder=os.path.join(VECTORS, entry["artifacts"]) if "artifacts" in entry else None,
        allow_missing_environment=entry.get("allow_missing_environment", False),
    )


@pytest.mark.parametrize("entry", [e for e in INDEX if e["step"]], ids=lambda e: e["file"])
def test_a_tampered_bundle_fails_exactly_at_its_step(entry: dict[str, Any]) -> None:
    with pytest.raises(VerificationError) as caught:
        verify_entry(entry)
    assert caught.value.step == entry["step"], str(caught.value)


@pytest.mark.parametrize("entry", [e for e in INDEX if not e["step"]], ids=lambda e: e["file"])
def test_a_good_bundle_verifies(entry: dict[str, Any]) -> None:
    assert verify_entry(entry).state is State.OK


def test_every_step_has_a_tampered_vector() -> None:
    assert {entry["step"] for entry in INDEX if entry["step"]} == {step.number for step in STEPS}


def test_the_steps_in_the_document_are_the_steps_in_the_code() -> None:
    with open(os.path.join(DOCS, "formats.md"), encoding="utf-8") as file:
        rows = re.findall(r"^\| (\d+) \| (\w+) \|", file.read(), re.MULTILINE)
    assert [(int(number), word) for number, word in rows] == [(step.number, step.word) for step in STEPS]


def test_the_committed_vectors_are_what_the_table_makes() -> None:
    made = evidence_tampering.files()
    found = {
        os.path.relpath(os.path.join(folder, name), VECTORS)
        for folder, _, names in os.walk(VECTORS)
        for name in names
    }
    assert found == set(made)
    assert [name for name, data in made.items() if read(name) != data] == []


def test_an_unpinned_key_is_intact_and_not_ok() -> None:
    found = verify_bundle(read("good-ringfence-3-plain.json"), trust=Trust.unsafe_any_signer())
    assert found.state is State.INTACT
    assert str(found.state) == "intact, signer unknown"


def test_our_bundle_verifies_under_proctors_rules() -> None:
    assert proctor_rules.check(read("good-ringfence-3.json"), s.OPERATOR.public_hex) == "ok"
    assert proctor_rules.check(read("good-ringfence-3.json"), s.STRANGER.public_hex) == "pubkey"


@pytest.mark.parametrize("name", ["", "-compromised", "-unsure"])
def test_a_run_without_a_grader_verifies_under_proctors_rules_and_never_passes(name: str) -> None:
    data = read(f"good-ringfence-run-1{name}.json")
    assert proctor_rules.check(data, s.OPERATOR.public_hex) == "ok"
    assert json.loads(data)["verdict"]["pass"] is False


def test_a_run_without_a_grader_says_that_nobody_graded_it() -> None:
    found = verify_bundle(read("good-ringfence-run-1.json"), trust=Trust.pinned(s.OPERATOR.public_hex))
    assert found.format == "ringfence-run-1" and found.run is not None and found.inputs is not None
    assert any("nobody decided" in note for note in found.notes)


def test_a_run_without_a_grader_is_clean_only_by_a_recorder_that_is_sure() -> None:
    verdicts = {name: json.loads(read(f"good-ringfence-run-1{name}.json"))["verdict"] for name in ("", "-unsure")}
    assert verdicts[""]["status"] == "clean"
    assert (verdicts["-unsure"]["status"], verdicts["-unsure"]["violations_count"]) == ("compromised", 0)


@pytest.mark.parametrize("changes", [{"pass": True}, {"reward": 0}, {"pass": True, "reward": 1}])
def test_a_verdict_alone_of_a_run_without_a_grader_can_not_claim_a_pass(changes: dict[str, Any]) -> None:
    bundle = s.resigned(json.loads(read("good-ringfence-run-1.json")), **changes)
    with pytest.raises(VerificationError) as caught:
        verify_verdict(s.encoded(bundle["verdict"]), trust=Trust.pinned(s.OPERATOR.public_hex))
    assert caught.value.step == 11


def test_proctors_rules_miss_what_ours_catch() -> None:
    """The positive control: these very files pass Proctor's checks, so it is our steps that refuse them."""
    missed = [
        "tampered/08-chain-link.json",
        "tampered/03-proctor-environment-removed.json",
        "tampered/04-unknown-top.json",
        "tampered/10-status-clean-with-violations.json",
        "tampered/11-reward-zero-passes.json",
        "tampered/16-sizes-bytes.json",
        "tampered/02-version-later.json",
    ]
    assert {name: proctor_rules.check(read(name)) for name in missed} == dict.fromkeys(missed, "ok")


def test_a_proctor_bundle_says_what_it_does_not_bind() -> None:
    found = verify_bundle(read("good-proctor-0.1.1.json"), trust=Trust.pinned(s.PROCTOR_KEY.public_hex))
    assert found.format == "proctor-0.1"
    assert found.run is None and found.inputs is None
    assert any("signs neither" in note for note in found.notes)


def test_a_protection_that_was_not_applied_is_told() -> None:
    from ringfence.evidence.runrecord import Protection

    partial = (Protection(protection="memory", requested=True, applied=False),)
    bundle = s.ringfence_bundle(run=s.run_record(enforcement=partial))
    found = verify_bundle(s.encoded(bundle), trust=Trust.pinned(s.OPERATOR.public_hex))
    assert "asked for but not enforced: memory" in found.notes


def test_a_bundle_far_from_its_anchor_is_told(tmp_path: Any) -> None:
    from datetime import timedelta

    from ringfence.evidence import bundle as maker
    from ringfence.evidence.anchors import anchored_bytes
    from ringfence.evidence.translog import TransparencyLog

    bundle = s.ringfence_bundle()
    late = s.ENDED + timedelta(days=30)
    with TransparencyLog(f"{tmp_path}/log", s.LOG_KEY) as log:
        index = log.append(anchored_bytes(bundle["verdict"]), now=late)
        bundle = maker.add_anchor(bundle, log.anchor(index, now=late))
    trust = Trust.parse(s.encoded(s.trust_document(required_roles=[])))
    assert any(
        "the anchor is of 2026-12-01" in note for note in verify_bundle(s.encoded(bundle), trust=trust).notes
    )


def test_a_verdict_alone_verifies_and_every_changed_field_fails() -> None:
    verdict = json.loads(read("good-ringfence-3.json"))["verdict"]
    trust = Trust.pinned(s.OPERATOR.public_hex)
    assert verify_verdict(s.encoded(verdict), trust=trust).state is State.OK
    for name in verdict:
        for value in (None, "x", 7, "0" * 64):
            with pytest.raises(VerificationError):
                verify_verdict(s.encoded({**verdict, name: value}), trust=trust)


@pytest.mark.parametrize(
    ("changes", "step"),
    [({"status": "clean"}, 10), ({"reward": -2}, 11), ({"proctor_version": "9"}, 2), ({"more": 1}, 4)],
)
def test_a_verdict_alone_that_contradicts_itself_fails_at_its_step(
    changes: dict[str, Any], step: int
) -> None:
    bundle = s.resigned(json.loads(read("good-ringfence-3.json")), **changes)
    with pytest.raises(VerificationError) as caught:
        verify_verdict(s.encoded(bundle["verdict"]), trust=Trust.pinned(s.OPERATOR.public_hex))
    assert caught.value.step == step


def test_a_link_in_the_artifacts_folder_is_not_followed(tmp_path: Any) -> None:
    data = read("good-ringfence-3-plain.json")
    trust = Trust.pinned(s.OPERATOR.public_hex)
    for name, content in evidence_tampering.folders(s.ringfence_bundle())["artifacts"].items():
        path = tmp_path / "good" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert verify_bundle(data, trust=trust, artifacts_folder=str(tmp_path / "good")).state is State.OK
    (tmp_path / "good" / "logs").rename(tmp_path / "elsewhere")
    (tmp_path / "good" / "logs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(VerificationError) as caught:
        verify_bundle(data, trust=trust, artifacts_folder=str(tmp_path / "good"))
    assert caught.value.step == 21


def test_a_fifo_in_the_artifacts_folder_does_not_hang(tmp_path: Any) -> None:
    for name, content in evidence_tampering.folders(s.ringfence_bundle())["artifacts"].items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "final.diff").unlink()
    os.mkfifo(tmp_path / "final.diff")
    with pytest.raises(VerificationError, match="not a regular file"):
        verify_bundle(
            read("good-ringfence-3-plain.json"),
            trust=Trust.pinned(s.OPERATOR.public_hex),
            artifacts_folder=str(tmp_path),
        )


def test_a_file_of_holes_in_the_artifacts_folder_is_not_read(tmp_path: Any) -> None:
    for name, content in evidence_tampering.folders(s.ringfence_bundle())["artifacts"].items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    os.truncate(tmp_path / "final.diff", 1 << 40)
    with pytest.raises(VerificationError, match=r"final\.diff' on disk is not the one"):
        verify_bundle(
            read("good-ringfence-3-plain.json"),
            trust=Trust.pinned(s.OPERATOR.public_hex),
            artifacts_folder=str(tmp_path),
        )


def blind(step: Step) -> Step:
    """The same step with its verdict thrown away: what it found out stays, what it refuses passes."""

    def check(case: Case) -> None:
        try:
            step.check(case)
        except EvidenceError:
            pass

    return dataclasses.replace(step, check=check)


@pytest.mark.parametrize("number", [4, *range(6, 22)])
def test_without_a_step_something_tampered_verifies(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The positive control of the whole table: no step is there for show."""
    monkeypatch.setattr(verify, "STEPS", tuple(blind(s) if s.number == number else s for s in STEPS))
    passed = []
    for entry in (e for e in INDEX if e["step"] == number):
        try:
            verify_entry(entry)
        except (VerificationError, KeyError):  # KeyError: a later step stands on what the blinded one ensures
            continue
        passed.append(entry["file"])
    assert passed


def test_an_anchor_says_nothing_of_when_a_further_signature_was_made(tmp_path: Any) -> None:
    """Who has a revoked key could otherwise countersign whatever was anchored before."""
    data = s.encoded(s.full_bundle(str(tmp_path)))
    verify_bundle(data, trust=Trust.parse(s.encoded(s.revoked_later(s.OPERATOR))))
    with pytest.raises(VerificationError, match="is revoked") as caught:
        verify_bundle(data, trust=Trust.parse(s.encoded(s.revoked_later(s.BENCHMARK))))
    assert caught.value.step == 20
