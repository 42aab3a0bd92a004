"""Whose attempt it was that the recorders of a box tell of: of a visit that runs, of an earlier one, or not known."""

from __future__ import annotations

import pytest

from ringfence import LateAttemptError
from ringfence.backends.living import hearing as box_hearing
from ringfence.backends.living.hearing import BoxHearing
from ringfence.checkpoint.late import LateAttempts

Note = dict[str, object]


def _note(visit: int, path: str = "/secret") -> Note:
    return {"aim": "hidden", "operation": "lookup", "path": path, "errno": 2} | ({"visit": visit} if visit else {})


class Leader:
    """Says what it is given to say."""

    is_a_result = is_told = False
    has_left = is_over = False

    def __init__(self, number: int = 0, since: str | None = "") -> None:
        self.number, self.since = number, since
        self.notes: list[Note] = []
        self.pages: list[Note] = []
        self.answers, self.hung_up = True, False

    def ask(self, within_s: float) -> bool:
        return self.answers

    catch_up = ask

    def network(self, *, settled: bool = False) -> tuple[int, str]:
        return 0, ""

    def hear_network(self, within_s: float) -> bool:
        return self.answers

    def end_network(self) -> None:
        """There is no gateway."""

    def take_notes(self) -> list[Note]:
        taken, self.notes = self.notes, []
        return taken

    take_own_notes = take_notes

    def take_pages(self) -> list[Note]:
        taken, self.pages = self.pages, []
        return taken

    def take_copies(self) -> tuple[list[Note], list[Note]]:
        return list(self.notes), []

    def await_word(self, within_s: float) -> None:
        self.has_left = True

    def is_gone_silently(self) -> bool:
        return self.has_left and not self.notes

    def hang_up(self) -> None:
        self.hung_up = True


@pytest.fixture
def hearing() -> BoxHearing:
    made = BoxHearing(LateAttempts(), wired=True)
    made.begin(Leader())  # type: ignore[arg-type]
    return made


def _visit(hearing: BoxHearing, since: str | None = "") -> Leader:
    visit = Leader(hearing.enter(since), since)
    hearing.begun(visit)  # type: ignore[arg-type]
    return visit


def _left(hearing: BoxHearing, since: str | None = "") -> Leader:
    visit = _visit(hearing, since)
    hearing.settle(visit)  # type: ignore[arg-type]
    hearing.stay(visit)  # type: ignore[arg-type]
    return visit


def _settled(hearing: BoxHearing, visit: Leader) -> list[tuple[str, int, int]]:
    found = hearing.settle(visit)  # type: ignore[arg-type]
    return [(each.since, len(each.notes), each.unrecorded) for each in found]


def test_a_visit_takes_its_own_and_leaves_those_of_others_that_run(hearing: BoxHearing) -> None:
    one, other = _visit(hearing), _visit(hearing)
    hearing._supervisor.notes = [_note(one.number), _note(other.number)]  # type: ignore[union-attr]
    assert hearing.take(one.number, beside=True) == [_note(0)]
    assert _settled(hearing, one) == []
    assert hearing.take(other.number, beside=True) == [_note(0)]


def test_what_the_gateway_tells_is_of_the_last_visit_that_has_a_result(hearing: BoxHearing) -> None:
    one, other, _ = _visit(hearing), _visit(hearing), _visit(hearing, None)
    hearing.enter("")  # it has not begun
    hearing._supervisor.notes = [{"decision": "refused"}]  # type: ignore[union-attr]
    assert hearing.take(one.number, beside=True) == []
    assert hearing.take(other.number, beside=True) == [{"decision": "refused"}]
    _settled(hearing, other)
    hearing._supervisor.notes = [{"decision": "allowed"}]  # type: ignore[union-attr]
    assert hearing.take(one.number, beside=True) == [{"decision": "allowed"}]


def test_an_earlier_visit_is_known_by_its_number_and_its_checkpoint(hearing: BoxHearing) -> None:
    earlier, now = _left(hearing, "before"), _visit(hearing, "later")
    hearing._supervisor.notes = [_note(earlier.number)]  # type: ignore[union-attr]
    earlier.notes, earlier.pages = [_note(0)], [{"unnamed": 4}]
    assert _settled(hearing, now) == [("before", 1, 0), ("before", 1, 0), ("before", 0, 4)]
    assert _settled(hearing, _visit(hearing)) == [], "once"


@pytest.mark.parametrize(("earlier", "since"), [(("a", "b"), "a"), ((), "now")])
def test_what_is_nobodys_may_be_of_the_oldest_that_is_there(
    hearing: BoxHearing, earlier: tuple[str, ...], since: str
) -> None:
    for each in earlier:
        _left(hearing, each)
    _left(hearing, None)
    hearing._supervisor.notes, hearing._supervisor.pages = [_note(0)], [{"lost": 2}]  # type: ignore[union-attr]
    assert _settled(hearing, _visit(hearing, "now")) == [(since, 1, 0), (since, 0, 2)]


def test_a_transfer_is_nobodys_attempt_and_takes_nothing_of_the_gateway(hearing: BoxHearing) -> None:
    transfer = _visit(hearing, None)
    hearing._supervisor.notes = [_note(transfer.number), {"decision": "refused"}]  # type: ignore[union-attr]
    assert hearing.take(transfer.number, beside=False) == [_note(0)]
    hearing.leave(transfer.number)
    hearing._supervisor.notes = [_note(transfer.number)]  # type: ignore[union-attr]
    now = _visit(hearing)
    assert _settled(hearing, now) == [] and hearing.take(now.number, beside=True) == [{"decision": "refused"}]


@pytest.mark.parametrize("who", ["supervisor", "leader"])
def test_who_does_not_answer_has_perhaps_lost_something(hearing: BoxHearing, who: str) -> None:
    left = _left(hearing, "before")
    silent = left if who == "leader" else hearing._supervisor
    silent.answers = False  # type: ignore[union-attr]
    assert _settled(hearing, _visit(hearing)) == [("before", 0, 1)]
    assert left.hung_up == (who == "leader")


def test_a_leader_that_has_left_is_forgotten(hearing: BoxHearing) -> None:
    left = _left(hearing)
    left.has_left = True
    _left(hearing)
    assert left.hung_up and len(hearing._left) == 1


def test_a_commit_is_refused_for_what_was_left_and_for_what_still_runs(hearing: BoxHearing) -> None:
    hearing.collect()
    hearing.late.refuse()
    _visit(hearing, "now").notes = [_note(0, "/other")]
    _left(hearing, "before").notes = [_note(0)]
    hearing.collect()
    with pytest.raises(LateAttemptError) as caught:
        hearing.late.refuse()
    assert set(caught.value.since) == {"now", "before"} and len(caught.value.attempts) == 2


def test_a_commit_is_refused_where_the_recorder_of_a_visit_does_not_answer(hearing: BoxHearing) -> None:
    _visit(hearing, "now").answers = False
    hearing.collect()
    with pytest.raises(LateAttemptError):
        hearing.late.refuse()


def test_the_result_of_a_visit_that_the_end_of_the_box_ended_is_nobodys(hearing: BoxHearing) -> None:
    _left(hearing, "before").notes = [_note(0)]
    now = _visit(hearing, "now")
    now.notes = [_note(0)]
    hearing.begin_closing()
    assert _settled(hearing, now) == [("before", 1, 0)]
    with pytest.raises(LateAttemptError) as caught:
        hearing.late.refuse()
    assert caught.value.since == ("before", "now")


def test_the_last_words_of_a_box_are_kept(hearing: BoxHearing) -> None:
    left = _left(hearing, "before")
    hearing._supervisor.is_told, hearing._supervisor.answers = True, False  # type: ignore[union-attr]
    left.notes = [_note(0)]
    assert hearing.finish() == ""
    assert [each.since for each in hearing.late.take()] == ["before"]


def test_as_many_visits_are_known_as_there_is_room_for(hearing: BoxHearing) -> None:
    for _ in range(box_hearing._MOST_KNOWN + 5):
        hearing.leave(hearing.enter("x"))
    assert len(hearing._known) == box_hearing._MOST_KNOWN


def test_a_visit_that_left_something_running_is_known_however_many_come_after_it(hearing: BoxHearing) -> None:
    left = _left(hearing, "before")
    for _ in range(box_hearing._MOST_KNOWN + 5):
        hearing.leave(hearing.enter("x"))
    assert len(hearing._known) == box_hearing._MOST_KNOWN
    hearing._supervisor.notes = [_note(left.number), _note(0)]  # type: ignore[union-attr]
    assert _settled(hearing, _visit(hearing, "now")) == [("before", 1, 0), ("before", 1, 0)]


@pytest.mark.parametrize("note", [
    {"decision": "refused", "name": "a.example", "port": 443}, {"decision": "ended", "missed": 3},
], ids=["refused", "not named"])  # fmt: skip
def test_what_the_gateway_refused_or_did_not_name_blocks_a_commit_until_it_is_told(
    note: Note, hearing: BoxHearing
) -> None:
    hearing._supervisor.notes = [{"decision": "ended", "reason": "it was over"}]  # type: ignore[union-attr]
    hearing.late.refuse()  # the control: nothing of it was forbidden
    hearing._supervisor.notes = [note]  # type: ignore[union-attr]
    with pytest.raises(LateAttemptError, match="connection"):
        hearing.late.refuse()
    visit = _visit(hearing)
    assert [count for _, count, _ in _settled(hearing, visit)] == [1]
    hearing.late.refuse()


def test_a_gateway_that_does_not_answer_blocks_a_commit(hearing: BoxHearing) -> None:
    hearing._wired = False
    hearing.late.refuse()  # the control
    hearing._supervisor.answers = False  # type: ignore[union-attr]
    with pytest.raises(LateAttemptError, match="1 attempts not named"):
        hearing.late.refuse()
