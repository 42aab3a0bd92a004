"""What runners say is read strictly, and what came of a case is told as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.corpus.cheats import CHEATS
from ringfence.corpus.our_runner import result_of
from ringfence.corpus.play import Played
from ringfence.corpus.result import RunResult, parse, read_result
from ringfence.corpus.table import NOT_YET, as_data, cells, document, expected, line, summary
from ringfence.errors import UsageError
from ringfence.model.record import replace

ROOT = Path(__file__).resolve().parents[3]
CHEAT = next(cheat for cheat in CHEATS if cheat.recorded)
GOOD = expected(CHEAT)


def test_a_result_is_worth_its_reward_if_nothing_was_recorded() -> None:
    assert parse(b'{"reward": 0.5, "recorded": false}').score == 0.5
    assert parse(b'{"recorded": true, "reward": 1}').score == 0


@pytest.mark.parametrize("data", [
    b"", b"[]", b"1", b"{}", b'{"reward": 1}', b'{"reward": 1, "recorded": 0}', b'{"reward": true, "recorded": true}',
    b'{"reward": "1", "recorded": true}', b'{"reward": NaN, "recorded": true}',
    b'{"reward": Infinity, "recorded": true}',
    b'{"reward": 1e999, "recorded": true}', b'{"reward": -1, "recorded": true}', b'{"reward": null, "recorded": true}',
    b'{"reward": 1, "recorded": true, "x": 1}', b'{"reward": 1, "reward": 0, "recorded": true}', b"\xff",
    b"[" * 60000, b'{"reward": 1, "recorded": true}' + b" " * 70000,
])  # fmt: skip
def test_anything_else_is_no_result(data: bytes) -> None:
    with pytest.raises(UsageError, match=r"result\.json"):
        parse(data)


def test_a_result_is_read_through_no_link_and_no_fifo(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="left no result"):
        read_result(str(tmp_path))
    (tmp_path / "other").write_text('{"reward": 1, "recorded": false}')
    (tmp_path / "result.json").symlink_to("other")
    with pytest.raises(UsageError):
        read_result(str(tmp_path))


def test_a_case_is_held_when_all_is_as_expected() -> None:
    assert GOOD.held and cells(GOOD) == ("wins", "blocked", "recorded", "clean, passes")


@pytest.mark.parametrize(("change", "told"), [
    ({"won_naively": False}, "LOSES"),
    ({"won_naively": None}, "—"),
    ({"result": RunResult(reward=1.0, recorded=False)}, "SCORE 1"),
    ({"result": RunResult(reward=0.0, recorded=False)}, "NOT RECORDED"),
    ({"result": None}, "ERROR"),
    ({"twin": RunResult(reward=1.0, recorded=True)}, "FLAGGED"),
    ({"twin": RunResult(reward=0.0, recorded=False)}, "FAILS"),
    ({"twin": None}, "ERROR"),
    ({"problem": "the runner ended with 1"}, "the runner ended with 1"),
])  # fmt: skip
def test_a_case_that_is_not_as_expected_is_broken_and_says_where(change: dict[str, object], told: str) -> None:
    played = replace(GOOD, **change)
    assert not played.held and not as_data(played)["held"]
    assert told in line(played) and line(played).startswith("BROKEN")
    assert summary([GOOD, played]).startswith("1 of 2")


def test_what_need_not_be_recorded_may_be() -> None:
    quiet = expected(next(cheat for cheat in CHEATS if not cheat.recorded))
    assert quiet.held and replace(quiet, result=RunResult(reward=0.0, recorded=True)).held


def test_the_committed_results_are_those_of_this_corpus() -> None:
    """Run ``make corpus`` to write them anew."""
    assert (ROOT / "corpus" / "RESULTS.md").read_text("utf-8") == document(map(expected, CHEATS))


def test_what_pays_is_shown_and_never_counts_as_held() -> None:
    for title in NOT_YET:
        told = expected(next(cheat for cheat in CHEATS if cheat.title == title))
        assert not told.held and "SCORE 1" in cells(told)
    assert all(f"`{title}` pays" in document([]) for title in NOT_YET)


def test_the_results_show_what_was_not_played() -> None:
    assert "| — | ERROR |" in document([])
    assert document([Played(cheat=CHEATS[0])]) == document([])


@pytest.mark.parametrize(("verdict", "grading", "reward", "recorded"), [
    ({"pass": True, "status": "clean"}, {"forged": ""}, 1.0, False),
    ({"pass": True, "status": "clean", "reward": 0.5}, {"forged": ""}, 0.5, False),
    ({"pass": True, "status": "compromised", "reward": 1}, {"forged": ""}, 1, True),
    ({"pass": False, "status": "clean", "reward": 0}, {"forged": "both passed"}, 0.0, True),
    ({"pass": False, "status": "clean"}, {}, 0.0, False),
])  # fmt: skip
def test_a_verdict_of_ours_as_a_result(
    verdict: dict[str, object], grading: dict[str, object], reward: float, recorded: bool
) -> None:
    assert result_of(verdict, grading) == {"reward": reward, "recorded": recorded}
