"""What a text may mean as a path: its variables too, however many signs of one it has."""

from __future__ import annotations

import os

import pytest

from ringfence.integrations.deep_agent.spellings import paths_in

POSIX = pytest.mark.skipif(os.name == "nt", reason="variables have other spellings there")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "/etc")
    monkeypatch.setenv("LONG", "x" * 4096)
    monkeypatch.delenv("NONE", raising=False)


@POSIX
@pytest.mark.parametrize("text", (
    "$PLACE/shadow", "${PLACE}/shadow", "$NONE/$PLACE", "${NONE}$PLACE", "$", "${", "${}", "${PLACE", "$$PLACE",
    "%24PLACE",
))  # fmt: skip
def test_variables_are_expanded_as_programs_expand_them(text: str) -> None:
    assert os.path.expandvars(text) in set(paths_in(text))


@POSIX
def test_a_variable_within_one_that_does_not_end_is_seen() -> None:
    assert "${/etc/shadow" in set(paths_in("${$PLACE/shadow"))


@pytest.mark.slow
@pytest.mark.parametrize("part", ("${", "$", "${NONE}", "%24%7b", "$a", "${$"))
def test_many_signs_take_no_time_that_grows_with_their_square(part: str) -> None:
    """With it some would take minutes."""
    text = "/" + part * (400_000 // len(part))
    assert text in set(paths_in(text))


@POSIX
def test_what_variables_bring_in_is_bounded_and_unknown_ones_take_no_room() -> None:
    text = "$NONE" * 20_000 + "$PLACE" + "$LONG" * 20_000
    longest = max(paths_in(text), key=len)
    assert longest.startswith("$NONE" * 20_000 + "/etc" + "x" * 4096) and len(longest) < len(text) + (1 << 16)


def test_half_a_character_in_a_name_is_no_exception() -> None:
    text = "${\ud800}"
    assert text in set(paths_in(text))
