"""Junctions, device names and alternate data streams in a working copy, by the rules alone: Wine can make none of them.

What Windows would say of a file is put into its mouth; the trees are of this system.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ringfence.checkpoint import entry as entries
from ringfence.checkpoint import scan, store
from ringfence.checkpoint.transaction import Transaction
from ringfence.checkpoint.tree import Tree
from ringfence.errors import CheckpointError
from ringfence.windows import removal

_REPARSE_FOLDER = 0x410


class Status:
    """What is known of a file, with the attributes that Windows has for it."""

    def __init__(self, status: os.stat_result) -> None:
        self._status = status
        self.st_file_attributes = _REPARSE_FOLDER

    def __getattr__(self, name: str) -> object:
        return getattr(self._status, name)


def _as_junction(patch: pytest.MonkeyPatch, name: str) -> None:
    """From now on directories of this name are junctions."""
    for method in ("status", "listed_status"):
        known = getattr(Tree, method)

        def status(self: Tree, path: str, known: object = known) -> object:
            found = known(self, path)  # type: ignore[operator]
            return Status(found) if found is not None and path.rsplit("/", 1)[-1] == name else found

        patch.setattr(Tree, method, status)


def _as_windows(patch: pytest.MonkeyPatch) -> None:
    """The rules for names are in force."""
    patch.setattr(scan, "os", SimpleNamespace(**{**vars(os), "name": "nt"}))


@pytest.fixture
def worked_on(tmp_path: Path) -> tuple[Path, Path, Transaction]:
    base = tmp_path / "base"
    base.mkdir()
    (base / "a.txt").write_text("one")
    transaction = Transaction.create(str(tmp_path / "store"), [str(base)], kind="snapshot")
    return base, Path(transaction.place(str(base))), transaction


def _told(transaction: Transaction) -> dict[str, str]:
    return {change.path.rsplit("/base/", 1)[-1]: str(change.kind) for change in transaction.changes()}


def _filled(copy: Path) -> None:
    (copy / "way").mkdir()
    (copy / "way" / "secret").write_text("of somebody else")


def test_without_the_attribute_a_folder_is_read(worked_on: tuple[Path, Path, Transaction]) -> None:
    """The control."""
    base, copy, transaction = worked_on
    _filled(copy)
    assert "way/secret" in _told(transaction)
    transaction.commit()
    assert (base / "way" / "secret").exists()
    transaction.close()


def test_nothing_is_read_through_a_junction_and_none_is_carried_over(
    worked_on: tuple[Path, Path, Transaction], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, copy, transaction = worked_on
    _filled(copy)
    (copy / "a.txt").write_text("two")
    _as_junction(monkeypatch, "way")
    told = _told(transaction)
    assert "way/secret" not in told and told["a.txt"] == "modified"
    transaction.commit()
    assert not os.path.lexists(base / "way") and (base / "a.txt").read_text() == "two"
    transaction.close()


def test_a_junction_is_a_kind_of_its_own(tmp_path: Path) -> None:
    status: object = Status(os.lstat(tmp_path))
    assert entries.kind_of(status) == entries.JUNCTION and entries.JUNCTION in entries.SPECIAL  # type: ignore[arg-type]
    assert entries.kind_of(os.lstat(tmp_path)) == entries.FOLDER
    link = tmp_path / "link"
    link.symlink_to("x")
    assert entries.kind_of(Status(os.lstat(link))) == entries.LINK  # type: ignore[arg-type]


def test_a_junction_is_removed_as_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its directory is emptied by nobody: only the entry goes, and what it leads to stays."""
    tree, emptied = tmp_path / "tree", []
    (tree / "way").mkdir(parents=True)
    known, lstat = os.listdir, os.lstat
    monkeypatch.setattr(os, "listdir", lambda path: emptied.append(path) or known(path))
    monkeypatch.setattr(os, "lstat", lambda path: Status(lstat(path)) if str(path).endswith("way") else lstat(path))
    assert not removal.is_real_folder(str(tree / "way"))
    removal.remove_tree(str(tree))
    assert emptied == [str(tree)]


@pytest.mark.parametrize("name", ["a.txt:hidden", "NUL", "com1.log", "a.txt.", "a.txt "])
def test_a_name_that_windows_makes_something_else_of_stops_a_commit(
    name: str, worked_on: tuple[Path, Path, Transaction], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, copy, transaction = worked_on
    (copy / name).write_text("evil")
    (copy / "fine.txt").write_text("fine")
    _as_windows(monkeypatch)
    changes = transaction.changes()
    assert [change.path.rsplit("/", 1)[-1] for change in changes] == ["fine.txt"] and not changes.complete
    with pytest.raises(CheckpointError):
        transaction.commit()
    assert (base / "a.txt").read_text() == "one" and sorted(os.listdir(base)) == ["a.txt"]
    transaction.close()


def test_the_clock_of_windows_is_the_time_of_the_last_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the other time is that of a file's birth, which never moves: who waits for it waits in vain. With the
    control: a Linux whose ctime stands still waits until it gives up."""
    path = str(tmp_path / "file")
    Path(path).touch()
    for system, moves in (("nt", True), ("posix", False)):
        stands_still = SimpleNamespace(**{**vars(os), "name": system, "stat": _born_once})
        monkeypatch.setattr(store, "os", stands_still)
        times = {store._touched(path, {}, 1) for _ in range(3000)}
        assert (len(times) > 1) == moves


def _born_once(path: str) -> SimpleNamespace:
    return SimpleNamespace(st_ctime_ns=1, st_mtime_ns=os.stat(path).st_mtime_ns)
