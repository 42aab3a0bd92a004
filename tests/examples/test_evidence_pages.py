"""The examples of the pages about evidence, its formats and the cheat corpus, each with what it needs around it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples import ROOT, shell, written

sys.path.insert(0, os.path.join(ROOT, "tests", "unit", "evidence"))
import evidence_samples as s

from ringfence.errors import VerificationError
from ringfence.evidence import release
from ringfence.evidence.dsse import seal, statement, unseal
from ringfence.evidence.trust import Trust
from ringfence.evidence.verify import verify_bundle

SANDBOX = """\
#!/bin/sh
test -d "$1/workspace" && test -x "$2" && test -z "$(ls "$3")" || exit 1
if grep -q '^tr .* < puzzle.txt' "$2"
then echo '{"reward": 1.0, "recorded": false}'
else echo '{"reward": 0.0, "recorded": true}'
fi > "$3/result.json"
"""
"""A runner that knows an honest twin by the command that solves the puzzle, and takes everything else for a cheat."""


def _trust(**changes: str) -> Trust:
    """The trust file of the page, with the keys of the samples, and with some of its words changed."""
    text = written("docs/reference/formats.md", '"format": "ringfence')
    for key in (s.OPERATOR, s.LOG_KEY):
        text = text.replace("<hex64>", key.public_hex, 1)
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return Trust.parse(text.encode())


def test_a_trust_file_says_who_may_sign_and_what_else_is_required(tmp_path: Path) -> None:
    trust = _trust()
    (key,) = trust.keys
    assert (key.name, key.roles, trust.accepted_formats) == ("ops 2026", ("operator",), ("ringfence-3",))
    assert (trust.required_roles, trust.required_anchors) == (("operator", "benchmark"), ("merkle-log",))
    bundle = s.encoded(s.full_bundle(str(tmp_path)))
    for changes, told in (
        ({}, "is revoked"),
        ({"2026-06-01": "2026-12-01"}, "the roles operator, benchmark"),
        ({"2026-06-01": "2026-12-01", ', "benchmark"': "", "ringfence-3": "proctor-0.1"}, "format"),
    ):
        with pytest.raises(VerificationError, match=told) as failed:
            verify_bundle(bundle, trust=_trust(**changes))
        assert failed.value.step == 20
    proof = verify_bundle(bundle, trust=_trust(**{"2026-06-01": "2026-12-01", ', "benchmark"': ""}))
    assert proof.signers[0] == s.OPERATOR.public_hex


def test_a_statement_of_in_toto_has_the_members_of_the_page() -> None:
    page = json.loads(written("docs/reference/formats.md", '{"_type": "https'))
    real = statement(s.ringfence_bundle())
    (subject,) = page["subject"]
    assert [subject.keys(), subject["digest"].keys()] == [real["subject"][0].keys(), {"sha256": ""}.keys()]
    assert page["predicate"].keys() == real["predicate"].keys()
    assert {**page, "subject": real["subject"], "predicate": real["predicate"]} == real
    sealed = s.encoded(seal(real, s.OPERATOR))
    assert unseal(sealed, Trust.pinned(s.OPERATOR.public_hex)) == (real, (s.OPERATOR.public_hex,))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.whl", b"wheel", ""),
        ("a.whl", b"another", "differs: ['a.whl']\n"),
        ("b.whl", b"more", "differs: ['b.whl']\n"),
        ("release.dsse.json", b"", "InvalidSignature"),
    ],
)
def test_a_release_is_checked_without_the_package(tmp_path: Path, name: str, text: bytes, said: str) -> None:
    (tmp_path / "a.whl").write_bytes(b"wheel")
    about = {"version": "1", "commit": "c", "source_date_epoch": "1", "python": "3", "tools": ["none"]}
    envelope = release.made(str(tmp_path), about, s.OPERATOR)
    (tmp_path / release.NAME).write_bytes(s.encoded(envelope))
    if text:
        (tmp_path / name).write_bytes(text)
    key = s.OPERATOR.public_hex if text else s.LOG_KEY.public_hex
    script = written("docs/release.md", "from cryptography")
    done = subprocess.run([sys.executable, "-I", "-c", script, str(tmp_path), key], capture_output=True, text=True)
    assert said in done.stderr and (done.returncode, done.stdout) == (bool(said), "")


@pytest.mark.system
@pytest.mark.unmeasured
@pytest.mark.skipif(sys.platform != "linux", reason="the controls are for Linux")
def test_the_corpus_is_played_against_another_sandbox(tmp_path: Path) -> None:
    sandbox = tmp_path / "work" / "my-sandbox.sh"
    sandbox.parent.mkdir()
    sandbox.write_text(SANDBOX)
    sandbox.chmod(0o755)
    told = shell(written("docs/reference/corpus.md", "ringfence corpus --runner"), tmp_path, {"HOME": str(tmp_path)})
    found = json.loads(told[told.index("{") :])
    assert found["held"] is True and {each["class"] for each in found["cheats"]} == {"links"}
    assert all(each["naive"] and each["blocked"] and each["twin"] for each in found["cheats"])
