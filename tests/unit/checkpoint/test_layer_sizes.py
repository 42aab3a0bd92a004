"""What a layer takes on the disk, and how it is read while a program works on it."""

from __future__ import annotations

import ctypes
import os
import random
import threading
from functools import partial
from pathlib import Path

import pytest
from tests.testable import not_testable_here

from ringfence.checkpoint.transaction import SNAPSHOT, Transaction
from ringfence.checkpoint.tree import Tree
from ringfence.errors import CheckpointError

MIB = 1 << 20
KEEP_SIZE = 1


def _layer(top: Path, kind: str = "overlay") -> tuple[Transaction, Path]:
    (top / "base").mkdir()
    made = Transaction.create(top / "t", [top / "base"], kind=kind)
    return made, Path(made.layers[0][1], "upper") if kind == "overlay" else Path(made.place(top / "base"))


@pytest.mark.parametrize("kind", ("overlay", SNAPSHOT))
def test_space_beyond_the_end_of_a_file_is_counted(tmp_path: Path, kind: str) -> None:
    transaction, layer = _layer(tmp_path, kind)
    with transaction, (layer / "small").open("wb") as file:
        before = transaction.layer_bytes()
        call = ctypes.CDLL(None, use_errno=True).fallocate
        call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        if call(file.fileno(), KEEP_SIZE, 0, 8 * MIB):
            not_testable_here(os.strerror(ctypes.get_errno()))
        assert os.path.getsize(file.name) == 0, "the control: its size says nothing of it"
        assert transaction.layer_bytes() - before >= 8 * MIB


def test_holes_are_not_counted_and_a_file_with_two_names_is_counted_once(tmp_path: Path) -> None:
    transaction, layer = _layer(tmp_path)
    with transaction:
        with (layer / "sparse").open("wb") as file:
            file.truncate(1 << 40)
        (layer / "full").write_bytes(b"x" * MIB)
        for number in range(10):
            os.link(layer / "full", layer / f"name{number}")
        os.sync()
        assert MIB <= transaction.layer_bytes() < 2 * MIB


def test_what_vanishes_under_the_look_is_not_told_and_a_commit_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction, layer = _layer(tmp_path)
    plain = Tree.status

    def status(self: Tree, path: str) -> os.stat_result | None:
        found = plain(self, path)
        if path == "link" and found is not None and self.path == str(layer):
            os.unlink(layer / "link")
        return found

    with transaction:
        for look in (transaction.changes, transaction.links, transaction.diff):
            (layer / "control").symlink_to("x")
            assert look()
            (layer / "control").unlink()
            (layer / "link").symlink_to("x")
            with monkeypatch.context() as patched:
                patched.setattr(Tree, "status", status)
                assert not look()
        (layer / "link").symlink_to("x")
        with monkeypatch.context() as patched:
            patched.setattr(Tree, "status", status)
            assert transaction.layer_bytes() == 0
        (layer / "link").symlink_to("x")
        monkeypatch.setattr(Tree, "status", status)
        with pytest.raises(CheckpointError):
            transaction.commit()


@pytest.mark.slow
def test_a_program_at_work_chooses_no_foreign_error(tmp_path: Path) -> None:
    transaction, layer = _layer(tmp_path)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            name = layer / f"n{random.randrange(4)}"
            kind = random.randrange(5)
            try:
                (name.mkdir, partial(name.symlink_to, "x"), name.touch, name.unlink, name.rmdir)[kind]()
            except OSError:
                pass

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(300):
            assert transaction.layer_bytes() >= 0
            for look in (transaction.changes, transaction.links, transaction.diff):
                try:
                    look()
                except CheckpointError:
                    pass
    finally:
        stop.set()
        worker.join()
        transaction.close()
