"""Closed sets of the main path behave like the real ``StrEnum``, which their type checkers see."""

from __future__ import annotations

import copy
import enum
import json
import pickle

import pytest

from ringfence import IsolationLevel, Status
from ringfence.model.str_enum import StrEnum


class Real(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Ours(StrEnum):
    RED = "red"
    BLUE = "blue"


@pytest.mark.parametrize(
    "look",
    [
        lambda kind: [str(member) for member in kind],
        lambda kind: [member.name for member in kind],
        lambda kind: [member.value for member in kind],
        lambda kind: kind("red") is kind.RED,
        lambda kind: kind.RED == "red",
        lambda kind: hash(kind.RED) == hash("red"),
        lambda kind: f"{kind.RED:>5}|{kind.BLUE}",
        lambda kind: json.dumps({kind.RED: kind.BLUE}),
        lambda kind: len(kind),
        lambda kind: kind["BLUE"].value,
        lambda kind: copy.deepcopy(kind.RED) is kind.RED and copy.copy(kind.RED) is kind.RED,
        lambda kind: pickle.loads(pickle.dumps(kind.BLUE)) is kind.BLUE,
        lambda kind: isinstance(kind.RED, str) and isinstance(kind.RED, kind),
        lambda kind: list(kind.__members__),
        lambda kind: repr(kind.RED).replace(kind.__name__, ""),
    ],
)
def test_it_answers_like_the_real_one(look: object) -> None:
    assert look(Ours) == look(Real)  # type: ignore[operator]


@pytest.mark.parametrize("wrong", ["green", "", None, 3, ["red"]])
def test_what_is_not_a_member_is_refused_like_there(wrong: object) -> None:
    for kind in (Ours, Real):
        with pytest.raises(ValueError, match="is not a valid"):
            kind(wrong)  # type: ignore[arg-type]


def test_it_is_closed() -> None:
    with pytest.raises(AttributeError):
        Ours.GREEN = "green"  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        Ours.RED.value = "green"  # type: ignore[misc]


def test_the_sets_of_the_model_have_their_members() -> None:
    assert [str(level) for level in IsolationLevel] == ["none", "process", "container", "strict"]
    assert Status("OK") is Status.OK
    assert "TIMEOUT" in Status
    assert "nonsense" not in Status
