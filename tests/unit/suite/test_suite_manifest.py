"""One signature over all bundles: what it proves, and that every other state of the directory fails by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import suite_samples as s

from ringfence.errors import EvidenceError
from ringfence.evidence.bundle import encode_bundle
from ringfence.evidence.keys import SigningKey
from ringfence.evidence.trust import Trust
from ringfence.proctor.suite import manifest
from ringfence.proctor.suite.entry import nonce_of
from ringfence.proctor.suite.results import Row, row_of

TRUST = Trust.pinned(s.KEY.public_hex)
NAMES = ("one", "two", "../three")


def _rows(folder: Path, **how: object) -> list[Row]:
    results = [s.complete_folder(folder / "tasks", name, **how) for name in NAMES]  # type: ignore[arg-type]
    return [row_of(s.entry(each.id), each, suite=s.SUITE, public_key=s.KEY.public_hex, attempts=1) for each in results]


def _signed(rows: list[Row], key: SigningKey = s.KEY) -> bytes:
    return encode_bundle(manifest.made(rows, agent="my-agent", suite=s.SUITE, key=key))


def test_an_untouched_suite_holds_and_says_what_it_came_to(tmp_path: Path) -> None:
    rows = [*_rows(tmp_path), s.without("four")]
    found = manifest.checked(_signed(rows), str(tmp_path), TRUST)
    assert [task["id"] for task in found.tasks] == list(NAMES)
    assert found.summary["passed"] == 3 and found.summary["without_verdict"] == 1
    assert found.without_verdict == ({"id": "four", "state": "failed"},)
    assert found.signers == (s.KEY.public_hex,) and found.agent == "my-agent"


def _place(folder: Path, name: str = "two") -> Path:
    return folder / "tasks" / name / "bundle.json"


def _alter(folder: Path) -> None:
    _place(folder).write_bytes(_place(folder).read_bytes().replace(b"true", b"false", 1))


def _lose(folder: Path) -> None:
    _place(folder).unlink()


def _replace(folder: Path) -> None:
    shutil.copyfile(_place(folder, "one"), _place(folder))


def _link(folder: Path) -> None:
    _place(folder).rename(folder / "elsewhere.json")
    _place(folder).symlink_to(folder / "elsewhere.json")


@pytest.mark.parametrize("change", [_alter, _lose, _replace, _link])
def test_an_altered_missing_doubled_or_linked_bundle_fails_by_name(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    data = _signed(_rows(tmp_path))
    manifest.checked(data, str(tmp_path), TRUST)
    change(tmp_path)
    with pytest.raises(EvidenceError, match=r"'two': tasks/two/bundle.json"):
        manifest.checked(data, str(tmp_path), TRUST)


def test_a_bundle_beside_those_that_were_signed_fails_by_name(tmp_path: Path) -> None:
    data = _signed(_rows(tmp_path))
    shutil.copytree(tmp_path / "tasks" / "two", tmp_path / "tasks" / "two-again")
    with pytest.raises(EvidenceError, match=r"'tasks/two-again/bundle.json' is not in the manifest"):
        manifest.checked(data, str(tmp_path), TRUST)


def test_a_row_that_is_there_twice_fails_by_name(tmp_path: Path) -> None:
    rows = _rows(tmp_path)
    with pytest.raises(EvidenceError, match=r"'two': the same id as 'two'"):
        manifest.checked(_signed([*rows, rows[1]]), str(tmp_path), TRUST)


def test_two_entries_with_one_bundle_fail_although_both_are_signed(tmp_path: Path) -> None:
    """Whoever has the key can sign a manifest that counts a good run twice; it does not verify."""
    rows = _rows(tmp_path)
    shutil.copytree(tmp_path / "tasks" / "one", tmp_path / "tasks" / "twin")
    twin = s.row("twin", task_id="twin", bundle_sha256=rows[0].bundle_sha256)
    with pytest.raises(EvidenceError, match=r"'twin': the same bundle as 'one'"):
        manifest.checked(_signed([*rows, twin]), str(tmp_path), TRUST)


def test_a_bundle_of_another_run_of_the_suite_is_not_taken_for_this_one(tmp_path: Path) -> None:
    """A lucky run of yesterday carries the nonce of yesterday."""
    rows = _rows(tmp_path)
    shutil.rmtree(tmp_path / "tasks" / "two")
    old = s.complete_folder(tmp_path / "tasks", "two", suite="6" * 64)
    proof = row_of(s.entry("two"), old, suite="6" * 64, public_key=s.KEY.public_hex, attempts=1)
    with pytest.raises(EvidenceError, match=r"'two': tasks/two/bundle.json: step .*nonce"):
        manifest.checked(_signed([rows[0], proof, rows[2]]), str(tmp_path), TRUST)


def test_another_bundle_of_the_same_task_and_run_is_not_the_one_that_was_signed(tmp_path: Path) -> None:
    """Whoever has the key can do a task once more and keep the better look; the manifest names one bundle."""
    rows = _rows(tmp_path)
    data = _signed(rows)
    other = json.loads(_place(tmp_path).read_bytes())
    _place(tmp_path).write_bytes(json.dumps(other).encode())
    with pytest.raises(EvidenceError, match=r"'two': .*is not the bundle that was signed"):
        manifest.checked(data, str(tmp_path), TRUST)


def test_what_the_manifest_says_of_a_bundle_is_what_the_bundle_says(tmp_path: Path) -> None:
    results = s.complete_folder(tmp_path / "tasks", "one", passed=False)
    row = row_of(s.entry("one"), results, suite=s.SUITE, public_key=s.KEY.public_hex, attempts=1)
    assert not row.passed
    better = s.row("one", bundle_sha256=row.bundle_sha256)
    with pytest.raises(EvidenceError, match=r"'one': .*does not say what the manifest says"):
        manifest.checked(_signed([better]), str(tmp_path), TRUST)


@pytest.mark.parametrize("name", ["tasks", "verdicts", "passed", "failed", "compromised", "without_verdict"])
def test_a_summary_that_its_tasks_do_not_come_to_fails_by_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, told = _rows(tmp_path), manifest.summary_of
    monkeypatch.setattr(manifest, "summary_of", lambda rows: {**told(rows), name: 7})
    with pytest.raises(EvidenceError, match=f"the summary says {name} 7"):
        manifest.checked(_signed(rows), str(tmp_path), TRUST)


def test_bundles_beside_a_suite_without_verdicts_fail_and_an_empty_suite_does_not(tmp_path: Path) -> None:
    _rows(tmp_path)
    with pytest.raises(EvidenceError, match="is not in the manifest"):
        manifest.checked(_signed([s.without("four")]), str(tmp_path), TRUST)
    assert manifest.checked(_signed([s.without("four")]), str(tmp_path / "absent"), TRUST).summary["tasks"] == 1


def test_the_signature_is_of_the_trusted_key_and_over_all_of_it(tmp_path: Path) -> None:
    rows = _rows(tmp_path)
    with pytest.raises(EvidenceError, match=r"no trusted key"):
        manifest.checked(_signed(rows, SigningKey.generate()), str(tmp_path), TRUST)
    envelope = json.loads(_signed(rows))
    envelope["payload"] = json.loads(_signed(rows[:2]))["payload"]
    with pytest.raises(EvidenceError, match=r"no trusted key"):
        manifest.checked(json.dumps(envelope).encode(), str(tmp_path), TRUST)


def test_an_envelope_of_a_bundle_is_no_manifest(tmp_path: Path) -> None:
    from ringfence.evidence.dsse import seal, statement

    rows = _rows(tmp_path)
    bundle = json.loads(_place(tmp_path, "one").read_bytes())
    with pytest.raises(EvidenceError, match=r"manifest: "):
        manifest.checked(encode_bundle(seal(statement(bundle), s.KEY)), str(tmp_path), TRUST)
    assert len(rows) == 3


def test_a_nonce_is_of_one_entry_in_one_run() -> None:
    nonces = {nonce_of(suite, name) for suite in ("5" * 64, "6" * 64) for name in ("a", "b", "\udcff")}
    assert len(nonces) == 6
