"""The three commands as a person or a script meets them."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from types import ModuleType
from typing import Any

import evidence_samples as s
import evidence_tampering
import pytest

from ringfence.cli import PROCTOR_COMMANDS, dispatch, keygen, verify, verify_bundle, verify_suite
from ringfence.evidence.keyfile import read_key
from ringfence.evidence.keys import SigningKey

GOOD = os.path.join(evidence_tampering.VECTORS, "good-ringfence-3.json")
BAD = os.path.join(evidence_tampering.VECTORS, "tampered", "08-chain-record.json")
PUBKEY = s.OPERATOR.public_hex


def run(command: ModuleType, *arguments: str) -> int:
    """As the program does it: found in a table, parsed, executed, errors turned into words and a code."""
    name = command.__name__.rpartition(".")[2].replace("_", "-")
    return dispatch("proctor", PROCTOR_COMMANDS, [name, *arguments])


def test_keygen_prints_a_seed_and_its_public_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(keygen) == 0
    match = re.fullmatch(r"seed=([0-9a-f]{64})\npubkey=([0-9a-f]{64})\n", capsys.readouterr().out)
    assert match and SigningKey.from_seed_hex(match[1]).public_hex == match[2]


@pytest.mark.parametrize("form", ["hex", "pem", "openssh"])
def test_keygen_writes_a_private_file_and_prints_no_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    path = str(tmp_path / "key")
    assert run(keygen, "--out", path, "--format", form) == 0
    assert capsys.readouterr().out == f"pubkey={read_key(path).public_hex}\n"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_keygen_does_not_print_a_pem(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(keygen, "--format", "pem") == 2
    told = capsys.readouterr()
    assert "PRIVATE" not in told.out + told.err and "--out" in told.err


def test_a_good_bundle_with_its_key_is_ok_and_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(verify_bundle, "--bundle", GOOD, "--pubkey", PUBKEY) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"bundle OK: signed by {PUBKEY}")
    assert "chain of 2 · 7 artifacts bound · 2 of 2 protections applied" in out
    assert "docs/explanation/bundle.md" in out


def test_a_countersignature_of_nobody_in_particular_is_not_shown_as_a_signer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anybody can add one; it must not look as if it counted."""
    assert run(verify_bundle, "--bundle", GOOD, "--pubkey", PUBKEY) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert s.BENCHMARK.public_hex not in first
    assert f"note: also signed by {s.BENCHMARK.public_hex}, a key that is not trusted and so proves nothing" in rest
    trust = tmp_path / "trust.json"
    trust.write_bytes(s.encoded(s.trust_document()))
    assert run(verify_bundle, "--bundle", GOOD, "--trust", str(trust)) == 0
    assert f"signed by {PUBKEY} and {s.BENCHMARK.public_hex}" in capsys.readouterr().out


def test_an_unknown_signer_is_said_and_2_unless_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(verify_bundle, "--bundle", GOOD) == 2
    told = capsys.readouterr()
    assert told.out.startswith("bundle intact, signer unknown:")
    assert "OK" not in told.out and "--pubkey" in told.err
    assert run(verify_bundle, "--bundle", GOOD, "--allow-unknown-signer") == 0
    assert capsys.readouterr().out.startswith("bundle intact, signer unknown:")


def test_a_tampered_bundle_is_2_and_names_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(verify_bundle, "--bundle", BAD, "--pubkey", PUBKEY) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("bundle NOT OK: step 8: chain: record 1")
    assert run(verify_bundle, "--bundle", BAD, "--allow-unknown-signer") == 2


def test_json_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(verify_bundle, "--bundle", GOOD, "--pubkey", PUBKEY, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["state"] == "ok"
    assert document["verdict"]["status"] == "compromised"
    assert run(verify_bundle, "--bundle", BAD, "--pubkey", PUBKEY, "--json") == 2
    failure = json.loads(capsys.readouterr().out)
    assert (failure["state"], failure["step"]) == ("failed", 8)
    assert run(verify_bundle, "--bundle", GOOD, "--json") == 2
    assert json.loads(capsys.readouterr().out)["state"] == "intact, signer unknown"


def test_trust_artifacts_and_nonce_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trust = tmp_path / "trust.json"
    trust.write_bytes(s.encoded(s.trust_document()))
    folder = os.path.join(evidence_tampering.VECTORS, "artifacts")
    given = ["--bundle", GOOD, "--trust", str(trust), "--artifacts"]
    assert run(verify_bundle, *given, folder, "--nonce", s.NONCE) == 0
    assert run(verify_bundle, *given, folder, "--nonce", "0" * 64) == 2
    assert run(verify_bundle, *given, folder + "-changed") == 2
    assert run(verify_bundle, *given, str(tmp_path / "absent")) == 2
    capsys.readouterr()


@pytest.mark.parametrize(("arguments", "told"), [
    (["--bundle", "/nonexistent", "--pubkey", PUBKEY], "can't read /nonexistent: No such file or directory\n"),
    (["--bundle", GOOD, "--pubkey", "abc"], "--pubkey: "),
    (["--bundle", GOOD, "--pubkey", PUBKEY.upper()], "--pubkey: "),
    (["--bundle", GOOD, "--trust", "/nonexistent"], "can't read /nonexistent: "),
    (["--bundle", GOOD, "--trust", GOOD], "--trust: "),
    (["--bundle", "/", "--pubkey", PUBKEY], "can't read /: "),
    (["--bundle", GOOD, "--pubkey", PUBKEY, "--artifacts", "/nonexistent"], "can't read /nonexistent: "),
])  # fmt: skip
def test_an_input_that_can_not_be_read_is_2_and_not_called_changed(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(verify_bundle, *arguments) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(f"proctor: {told}") and "NOT OK" not in said.err
    assert run(verify_bundle, *arguments, "--json") == 2
    data = json.loads(capsys.readouterr().out)
    assert data["kind"] == "UsageError" and data["exit_code"] == 2 and data["error"].startswith(told.strip())


def test_every_command_that_verifies_names_what_it_can_not_read(capsys: pytest.CaptureFixture[str]) -> None:
    for command, flag in ((verify, "--verdict"), (verify_suite, "--manifest")):
        assert run(command, flag, "/nonexistent", "--pubkey", PUBKEY) == 2
        assert capsys.readouterr().err.startswith("proctor: can't read /nonexistent: No such file or directory\n")


def test_a_verdict_is_verified_against_its_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open(GOOD, "rb") as file:
        verdict = json.load(file)["verdict"]
    path = tmp_path / "verdict.json"
    path.write_text(json.dumps(verdict))
    assert run(verify, "--verdict", str(path), "--pubkey", PUBKEY) == 0
    assert capsys.readouterr().out.startswith("verdict OK")
    assert run(verify, "--verdict", str(path), "--pubkey", s.STRANGER.public_hex) == 2
    path.write_text(json.dumps({**verdict, "pass": False}))
    assert run(verify, "--verdict", str(path), "--pubkey", PUBKEY, "--json") == 2
    assert json.loads(capsys.readouterr().out)["step"] == 6


def test_text_of_a_bundle_cannot_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "fizz\x1b[2J\u202e\r"
    bundle = s.with_claims(s.resigned(s.ringfence_bundle(), task_id=hostile), "run.json", task_id=hostile)
    bundle["verdict"] = s.resigned(bundle)["verdict"]
    path = tmp_path / "b.json"
    path.write_bytes(s.encoded(bundle))
    assert run(verify_bundle, "--bundle", str(path), "--pubkey", PUBKEY) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\u202e" not in out and "\r" not in out
    path.write_bytes(s.encoded({**bundle, hostile: 1}))
    assert run(verify_bundle, "--bundle", str(path), "--pubkey", PUBKEY) == 2
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize("command", [keygen, verify, verify_bundle])
def test_help_teaches(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(command, "--help")
    assert "examples:" in capsys.readouterr().out
