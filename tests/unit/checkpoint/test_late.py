"""What was tried after the last result lies with the transaction, bounded, until somebody is told or it is undone."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence import CheckpointError, LateAttemptError, Transaction
from ringfence.checkpoint.late import LATE_FILE, Late, LateAttempts

NOTE = {"operation": "open", "path": "/secret", "errno": errno.ENOENT, "aim": "hidden"}
ALLOWED = {"operation": "connect", "path": "127.0.0.1:80", "errno": 0, "aim": "noted"}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "base").mkdir()
    return tmp_path / "base"


@pytest.fixture
def transaction(base: Path, tmp_path: Path) -> Iterator[Transaction]:
    with Transaction.create(tmp_path / "tx", [base]) as made:
        yield made


def _refuses(transaction: Transaction) -> bool:
    try:
        transaction.commit()
    except LateAttemptError:
        return True
    return False


def test_only_what_is_forbidden_is_kept(transaction: Transaction, tmp_path: Path) -> None:
    transaction.late.add([Late(since=""), Late(since="", notes=(ALLOWED,))])
    assert not _refuses(transaction) and not (tmp_path / "tx" / LATE_FILE).exists()
    transaction.late.add([Late(since="", notes=(ALLOWED, NOTE))])
    with pytest.raises(LateAttemptError, match="open /secret") as caught:
        transaction.commit()
    assert caught.value.attempts == ("open /secret",) and caught.value.since == ("",)


@pytest.mark.parametrize("late", [Late(since="x", notes=(NOTE,)), Late(since="", unrecorded=2, problems=("lost",))])
def test_it_is_there_for_who_opens_the_transaction_next_and_is_told_once(
    late: Late, transaction: Transaction, tmp_path: Path
) -> None:
    transaction.late.add([late])
    transaction.close()
    with Transaction.open(tmp_path / "tx") as again:
        assert _refuses(again)
        assert again.late.take() == [late] and again.late.take() == []
        assert not _refuses(again)
    with Transaction.open(tmp_path / "tx") as after:
        assert not _refuses(after)


def test_a_flood_is_bounded_and_the_rest_is_counted(transaction: Transaction) -> None:
    for _ in range(3):
        transaction.late.add([Late(since="", notes=(NOTE,) * 70)])
    (kept,) = transaction.late.take()
    assert len(kept.notes) == 100 and kept.unrecorded == 110


def test_going_back_undoes_what_began_later_and_nothing_else(transaction: Transaction) -> None:
    first, second = (transaction.create_checkpoint().checkpoint_id for _ in range(2))
    for since in ("", first, second, "deleted"):
        transaction.late.add([Late(since=since, notes=(NOTE,))])
    transaction.rollback(second, ["part"])
    assert len(transaction.late._all()) == 4, "some paths are not all"
    transaction.rollback(second)
    assert [each.since for each in transaction.late._all()] == ["", first, "deleted"]
    transaction.rollback(first)
    assert [each.since for each in transaction.late._all()] == ["", "deleted"]
    transaction.discard()
    assert not _refuses(transaction)


def test_who_works_on_it_is_asked_before_a_commit(transaction: Transaction) -> None:
    transaction.late.collect = lambda: transaction.late.add([Late(since="", notes=(NOTE,))])
    assert _refuses(transaction)


@pytest.mark.parametrize("text", ["{}", '{"late": [{}]}', '{"late": [{"since": 1, "notes": {}, "problems": []}]}', "x"])
def test_what_can_not_be_read_refuses(transaction: Transaction, tmp_path: Path, text: str) -> None:
    (tmp_path / "tx" / LATE_FILE).write_text(text)
    with pytest.raises(CheckpointError):
        transaction.commit()


def test_of_a_box_without_a_transaction_it_is_in_memory_alone() -> None:
    late = LateAttempts()
    late.add([Late(since="", notes=(NOTE,))])
    with pytest.raises(LateAttemptError):
        late.refuse()
    assert len(late.take()) == 1
    late.refuse()
