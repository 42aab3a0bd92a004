"""What errors say: they are found in every layer, and none has a turn that a native speaker would not use."""

from __future__ import annotations

import ast
import re

import pytest
from tests.unit.messages import Message, _of_call, messages

ALL = [*messages()]
CLUMSY = re.compile(r"\bcan not\b|  |\binformations\b|\ballows to\b|^\s|(?<!:)\s$|(?<!\.)\.$")


def test_the_messages_of_every_layer_are_found() -> None:
    assert len(ALL) > 1000
    assert {"cli", "model", "evidence", "engine", "backends", "proctor"} <= {each.place.split("/")[0] for each in ALL}


def test_no_message_has_a_clumsy_turn() -> None:
    assert [f"{each.place}: {each.text}" for each in ALL if each.part != "problem" and CLUMSY.search(each.text)] == []


@pytest.mark.parametrize(("code", "texts"), [
    ('UsageError(f"{name} is odd", hint="write " + more)', ["{…} is odd"]),
    ('PolicyError("field", "too large" if big else "too small")', ["too large", "too small"]),
    ('UnavailableError("no engine here", fixes=("install one", "or do without"))',
     ["no engine here", "install one", "or do without"]),
])  # fmt: skip
def test_texts_are_read_off_the_source(code: str, texts: list[str]) -> None:
    call = ast.parse(code, mode="eval").body
    assert isinstance(call, ast.Call)
    assert [each.text for each in _of_call(call, "m.py")] == texts


@pytest.mark.parametrize("text", ["it can not do it", "it  fails", "it allows to fail", "it failed."])
def test_a_clumsy_turn_is_noticed(text: str) -> None:
    assert CLUMSY.search(Message("m.py:1", "UsageError", "text", text).text)
