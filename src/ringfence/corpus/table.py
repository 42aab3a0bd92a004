"""Results of the corpus, for people: a line for each cheat as it ends, and the document RESULTS.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ringfence.corpus.cheat import Cheat
from ringfence.corpus.cheats import CHEATS, KINDS
from ringfence.corpus.play import Played
from ringfence.corpus.result import RunResult

COLUMNS = ("naive grader", "blocked", "recorded", "honest twin")
_HEAD = """\
# The cheat corpus: what each cheat gets

`make corpus` writes this file. A cheat *wins* against a careless grader, which shows that it could succeed here;
*blocked*: under `proctor run` its score is 0; *recorded*: the verdict or the grading says so («not needed»: there was
nothing to reach for, and an honest agent may do the same); *clean, passes*: the honest twin is rewarded, and nothing is
held against it. docs/reference/corpus.md has the details.
"""

NOT_YET: Mapping[str, str] = {}
"""Cheats that pay under our own proctor, and why. They count as broken until nothing is here."""


def expected(cheat: Cheat) -> Played:
    """Return what the case comes to under our own proctor."""
    paid = cheat.title in NOT_YET
    return Played(cheat=cheat, won_naively=True, twin=RunResult(reward=1.0, recorded=False),
                  result=RunResult(reward=float(paid), recorded=cheat.recorded and not paid))  # fmt: skip


def cells(played: Played) -> tuple[str, str, str, str]:
    """Return the four findings in words."""
    naive = {True: "wins", False: "LOSES", None: "—"}[played.won_naively]
    return naive, _blocked(played), _recorded(played), _twin(played.twin)


def _blocked(played: Played) -> str:
    if played.result is None:
        return "ERROR"
    return "blocked" if played.blocked else f"SCORE {played.result.score:g}"


def _recorded(played: Played) -> str:
    if not played.cheat.recorded:
        return "not needed"
    return "recorded" if played.recorded else "NOT RECORDED"


def _twin(twin: RunResult | None) -> str:
    if twin is None:
        return "ERROR"
    if twin.recorded:
        return "FLAGGED"
    return "clean, passes" if twin.score > 0 else "FAILS"


def line(played: Played) -> str:
    """Return one line for a terminal; what is not as expected is in capitals."""
    words = "  ".join(f"{cell:<{width}}" for cell, width in zip(cells(played), (5, 8, 12, 13), strict=True))
    because = f"  {played.problem}" if played.problem else ""
    return f"{'held' if played.held else 'BROKEN':<6}  {played.cheat.title:<36}  {words}{because}".rstrip()


def summary(played: Sequence[Played]) -> str:
    """Return the last line."""
    held = sum(each.held for each in played)
    won = sum(not each.blocked for each in played)
    return f"{held} of {len(played)} as expected; {won} cheats were rewarded or could not be judged"


def as_data(played: Played) -> dict[str, object]:
    """Return the same for programs."""
    told = {"class": played.cheat.kind, "name": played.cheat.name, "what": played.cheat.what}
    return {**told, "held": played.held, "naive": played.won_naively, "blocked": played.blocked,
            "recorded": played.recorded, "recorded_needed": played.cheat.recorded, "twin": played.honest,
            "problem": played.problem}  # fmt: skip


def document(played: Iterable[Played]) -> str:
    """Return RESULTS.md for the whole corpus, in the order of its tables."""
    found = {each.cheat.title: each for each in played}
    counted = f"{len(CHEATS)} cheats in {len(KINDS)} classes.\n"
    rows = [_row(found.get(cheat.title, Played(cheat=cheat))) for cheat in CHEATS]
    head = ["| class | cheat | what it does | " + " | ".join(COLUMNS) + " |", "|---" * 7 + "|"]
    left = [f"- `{title}` pays: {why}." for title, why in NOT_YET.items()]
    return "\n".join([_HEAD, counted, *head, *rows, *(["", "Not blocked yet:", "", *left] if left else [])]) + "\n"


def _row(played: Played) -> str:
    cheat = played.cheat
    return f"| {cheat.kind} | {cheat.name} | {cheat.what} | " + " | ".join(cells(played)) + " |"
