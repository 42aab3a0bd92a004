"""Diffs that no text makes slow."""

from __future__ import annotations

import difflib
import random

import pytest

from ringfence.checkpoint.diff import unified_diff as module
from ringfence.checkpoint.diff.unified_diff import unified


def _random(chance: random.Random) -> tuple[list[str], list[str]]:
    old = [chance.choice("abcdefgh") + "\n" for _ in range(chance.randrange(40))]
    new = list(old)
    for _ in range(chance.randrange(6)):
        place = chance.randrange(len(new) + 1)
        new[place : place + chance.randrange(2)] = [chance.choice("abcxyz") + "\n"] * chance.randrange(3)
    return old, new


def test_they_are_the_ones_that_everybody_knows() -> None:
    chance = random.Random(1)
    for _ in range(300):
        old, new = _random(chance)
        assert list(unified(old, new, "a", "b")) == list(difflib.unified_diff(old, new, "a", "b"))


def test_what_would_take_too_long_is_shown_as_replaced_and_is_as_true(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_WORK", 20)
    chance = random.Random(2)
    for _ in range(300):
        old, new = _random(chance)
        assert _applied(old, list(unified(old, new, "a", "b"))) == new


def test_the_work_is_counted_before_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    find = difflib.SequenceMatcher.find_longest_match

    def counted(self, alo=0, ahi=None, blo=0, bhi=None):
        done.append(sum(len(self.b2j.get(line, ())) + 1 for line in self.a[alo:ahi]))
        return find(self, alo, ahi, blo, bhi)

    monkeypatch.setattr(difflib.SequenceMatcher, "find_longest_match", counted)
    monkeypatch.setattr(module, "_MAX_WORK", 50_000)
    old = [f"{number}\n" for number in range(2000)]
    new = [line for each in old for line in (each, f"and {each}")]  # takes difflib the square of it
    assert _applied(old, list(unified(old, new, "a", "b"))) == new
    assert 0 < sum(done) <= 50_000


def _applied(old: list[str], lines: list[str]) -> list[str]:
    """What ``patch`` would make of it."""
    found, place = [], 0
    for line in lines[2:]:
        if line.startswith("@@"):
            start, _, count = line.split()[1][1:].partition(",")
            upto = int(start) - (count != "0")
            found += old[place:upto]
            place = upto
        elif line.startswith("+"):
            found.append(line[1:])
        else:
            assert line[1:] == old[place]
            found += [line[1:]] if line.startswith(" ") else []
            place += 1
    return found + old[place:]
