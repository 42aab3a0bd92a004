"""Journals and other documents that were damaged, or written by somebody's hand: an error, and nothing is done."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringfence.checkpoint import layout
from ringfence.checkpoint.from_layer import adopt
from ringfence.checkpoint.store import Store
from ringfence.checkpoint.transaction import OVERLAY, SNAPSHOT, Transaction
from ringfence.checkpoint.workspace import open_overlay
from ringfence.errors import CheckpointError, ForeignError

TEXTS = (
    "", "[]", "{}", '{"op": "commit"}', '{"x": 1}', '{"x": [{"kind": "file"}, [1]]}', "[" * 5000,
    '{"op": "rollback", "parts": [[7, null]]}', '{"op": "unheard", "parts": [[0, null]], "temporary": ".ringfence-1"}',
    '{"op": "commit", "parts": 5}', '{"../x": [{"kind": "file"}, [1, 2, 3, 4, 5, 6]]}',
)  # fmt: skip
JOURNALS = ("journal.json", "checkpoints/0/journal.json")
INDEXES = ("checkpoints/0/base.json", "checkpoints/0/index.json", "checkpoints/0/newer.json")


def write_sealed(folder: Path, name: str, text: str) -> None:
    """As if we had written it ourselves."""
    place = layout.opened(str(folder))
    assert place.seal is not None
    (folder / name).write_text(place.seal.sealed(name, text))
    place.tree.close()


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("name", (*JOURNALS, *INDEXES))
def test_a_damaged_document_is_an_error_of_ours_that_names_it(name: str, sealed: bool, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base/x").write_text("old")
    Transaction.create(tmp_path / "tx", [tmp_path / "base"], kind=SNAPSHOT).close()
    for text in TEXTS:
        if name in INDEXES and text == "{}" and sealed:
            continue  # which is an empty one
        if sealed and text.startswith("{"):
            write_sealed(tmp_path / "tx", name, text)
        else:
            (tmp_path / "tx" / name).write_text(text)
        with pytest.raises(CheckpointError, match=name):
            Transaction.open(tmp_path / "tx")
        assert (tmp_path / "base/x").read_text() == "old"


@pytest.mark.parametrize("text", ("", "[]", "{}", '{"layer": {"..": {"kind": "file"}}}', '{"layer": {"x": {}}}'))
def test_a_damaged_checkpoint_is_an_error_of_ours_that_names_it(text: str, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    with Transaction.create(tmp_path / "tx", [tmp_path / "base"], kind=SNAPSHOT) as tx:
        made = tx.create_checkpoint().checkpoint_id
        (tmp_path / f"tx/checkpoints/0/checkpoints/{made}.json").write_text(text)
        with pytest.raises(CheckpointError, match=made):
            tx.rollback(made)
        tx.delete_checkpoint(made)
        assert not tx.checkpoints()


def _journal(digest: str) -> dict[str, Any]:
    target = {"new": {"kind": "file", "mode": 0o644, "digest": digest}}
    return {"op": "commit", "now": {}, "target": target, "rest": None, "whole": True, "temporary": ".ringfence-1"}


def _carried_out(top: Path, journal: dict[str, Any]) -> None:
    write_sealed(top / "tx", "checkpoints/0/journal.json", json.dumps(journal))
    Transaction.open(top / "tx").close()


@pytest.fixture
def planted(tmp_path: Path) -> dict[str, Any]:
    """A transaction, something outside of it, and a journal that would be carried out."""
    (tmp_path / "base").mkdir()
    (tmp_path / "secret").write_text("secret")
    Transaction.create(tmp_path / "tx", [tmp_path / "base"], kind=OVERLAY).close()
    with (tmp_path / "secret").open("rb") as file:
        return _journal(Store(str(tmp_path / "tx/checkpoints/0")).put(file.fileno()))


def test_the_control_a_journal_whose_paths_are_inside_is_carried_out(planted: dict[str, Any], tmp_path: Path) -> None:
    _carried_out(tmp_path, planted)
    assert (tmp_path / "base/new").read_text() == "secret"


@pytest.mark.parametrize("path", ("../out", "a/../../out", "/out", "./out", "a//out", "", "a\0"))
@pytest.mark.parametrize("part", ("now", "target", "rest"))
def test_no_path_of_a_journal_leads_out_of_the_base(
    part: str, path: str, planted: dict[str, Any], tmp_path: Path
) -> None:
    entry = planted["target"]["new"]
    planted[part] = {path: [entry, [1, 2, 3, 4, 5, 6]] if part == "now" else entry}
    with pytest.raises(CheckpointError, match=r"journal\.json is damaged"):
        _carried_out(tmp_path, planted)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["base", "secret", "tx"]
    assert not list((tmp_path / "base").iterdir())


@pytest.mark.parametrize(
    ("name", "value"), (("digest", "../../../../secret"), ("twin", "../secret"), ("mode", "511"), ("kind", "door"))
)
def test_no_value_of_a_journal_is_taken_for_another(
    name: str, value: object, planted: dict[str, Any], tmp_path: Path
) -> None:
    planted["target"]["new"][name] = value
    with pytest.raises(CheckpointError):
        _carried_out(tmp_path, planted)
    assert not (tmp_path / "base/new").exists()


@pytest.mark.parametrize("name", ("../new", "new", ".ringfence-../../x", 5))
def test_a_temporary_name_is_one_of_ours(name: object, planted: dict[str, Any], tmp_path: Path) -> None:
    planted["temporary"] = name
    with pytest.raises(CheckpointError, match="one of ringfence's own names"):
        _carried_out(tmp_path, planted)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[tuple[Transaction, str]]:
    """A transaction with a checkpoint, whose kept content somebody else has changed since."""
    (tmp_path / "base").mkdir()
    (tmp_path / "base/file").write_text("old")
    with Transaction.create(tmp_path / "tx", [tmp_path / "base"], kind=SNAPSHOT) as tx:
        work = Path(tx.place(tmp_path / "base"))
        (work / "file").write_text("better")
        time.sleep(0.02)  # what was written in the moment of a look is read once more the next time, and kept anew
        yield tx, tx.create_checkpoint().checkpoint_id


def _change_what_was_kept(top: Path, text: str) -> None:
    (blob,) = (each for each in (top / "tx/checkpoints/0/blobs").iterdir() if each.read_text() == text)
    blob.write_text("forged")


def test_a_kept_content_that_somebody_changed_is_never_written(
    kept: tuple[Transaction, str], tmp_path: Path
) -> None:
    tx, checkpoint = kept
    _change_what_was_kept(tmp_path, "better")
    with pytest.raises(CheckpointError, match="changed by somebody else"):
        tx.commit()
    assert (tmp_path / "base/file").read_text() == "old" and "+better" in tx.diff()
    Path(tx.place(tmp_path / "base"), "file").write_text("worse")
    with pytest.raises(CheckpointError, match="changed by somebody else"):
        tx.rollback(checkpoint)


def test_the_control_a_kept_content_that_nobody_changed_is_written(
    kept: tuple[Transaction, str], tmp_path: Path
) -> None:
    kept[0].commit()
    assert (tmp_path / "base/file").read_text() == "better"


def test_nothing_is_merged_with_a_content_that_somebody_changed(
    kept: tuple[Transaction, str], tmp_path: Path
) -> None:
    tx, _ = kept
    tx.changes()
    (tmp_path / "base/file").write_text("theirs")
    _change_what_was_kept(tmp_path, "old")
    with pytest.raises(CheckpointError, match="changed by somebody else"):
        tx.commit(on_conflict="merge")
    assert (tmp_path / "base/file").read_text() == "theirs"


def _keep(top: Path, passing: bool, planted: str) -> Transaction:
    """What a run does with its own layer at the end; ``planted``: what somebody put into its private directory."""
    for name in ("base", "layer/upper", "layer/work"):
        (top / name).mkdir(parents=True)
    store = Store(str(top / "store"), passing=passing)
    workspace = open_overlay(str(top / "layer/upper"), str(top / "base"), store)
    (top / "layer/upper/file").write_text("new")
    workspace.create_checkpoint("ours")
    if planted:
        (top / "store/journal.json").write_text(planted)
    try:
        return adopt(workspace, str(top / "tx"), str(top / "layer"))
    finally:
        workspace.close()


def test_a_run_keeps_no_document_that_it_did_not_write(tmp_path: Path) -> None:
    planted = json.dumps(_journal("0" * 64))
    with pytest.raises(ForeignError, match=r"journal\.json"):
        _keep(tmp_path, True, planted)
    assert not list((tmp_path / "base").iterdir())


def test_the_control_what_a_run_wrote_itself_is_kept(tmp_path: Path) -> None:
    with _keep(tmp_path, True, "") as tx:
        assert [each.name for each in tx.checkpoints()] == ["ours"]
    with Transaction.open(tmp_path / "tx") as tx:
        tx.commit()
    assert (tmp_path / "base/file").read_text() == "new"


def test_documents_that_go_with_a_process_are_nobody_elses(tmp_path: Path) -> None:
    Store(str(tmp_path / "store"), passing=True).write("state", {"a": 1})
    with pytest.raises(ForeignError):
        Store(str(tmp_path / "store"), passing=True).read("state")
    with pytest.raises(ForeignError):
        Store(str(tmp_path / "store")).read("state")
