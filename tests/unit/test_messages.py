"""What errors say: they are found in every layer, and none has a turn that a native speaker would not use."""

from __future__ import annotations

import ast
import re

import pytest
from tests.unit.messages import Message, _of_call, errors, exceptions, messages, of_module

ALL = [*messages()]
CLUMSY = re.compile(r"\bcan not\b|  |\binformations\b|\ballows to\b|^\s|(?<!:)\s$|(?<!\.)\.$")


def test_the_messages_of_every_layer_are_found() -> None:
    assert len(ALL) > 2000
    assert {"cli", "model", "evidence", "engine", "backends", "proctor"} <= {each.place.split("/")[0] for each in ALL}


def test_no_message_has_a_clumsy_turn() -> None:
    assert [f"{each.place}: {each.text}" for each in ALL if each.part != "problem" and CLUMSY.search(each.text)] == []


@pytest.mark.parametrize(("code", "texts"), [
    ('UsageError(f"{name} is odd", hint="write " + more)', ["{…} is odd", "write {…}"]),
    ('PolicyError("field", "too large" if big else "too small")', ["too large", "too small"]),
    ('UnavailableError("no engine here", fixes=("install one", "or do without"))',
     ["no engine here", "install one", "or do without"]),
])  # fmt: skip
def test_texts_are_read_off_the_source(code: str, texts: list[str]) -> None:
    call = ast.parse(code, mode="eval").body
    assert isinstance(call, ast.Call)
    assert [each.text for each in _of_call(call, "m.py")] == texts


@pytest.mark.parametrize(("code", "texts"), [
    ('class Full(SandboxError): ...\nclass Fuller(Full): ...\nraise Fuller("no room left")', ["no room left"]),
    ('_HINT = "write a name"\ndef f(): raise UsageError("it is odd", hint=_HINT)', ["it is odd", "write a name"]),
    ('def f(n):\n    why = f"{n} is odd"\n    if n:\n        why = "no name"\n    raise ValueError(why)',
     ["{…} is odd", "no name"]),
    ('def f():\n    text = "of another one"\ndef g(text): raise ValueError(text)\ng("given to it")', ["given to it"]),
    ('def _wrong(where, what) -> UsageError: ...\ndef f(): return _wrong("a.json", "is not there")', ["is not there"]),
    ('def f(self): raise self.refused(1, "too much of it")', ["too much of it"]),
    ('Lack(capability="io", missing="a control group", fix="run as root")', ["a control group", "run as root"]),
    ('_TEXT = "{} is odd, too"\ndef f(): raise ToolError(_TEXT.format(1))', ["{} is odd, too"]),
    ('def f():\n    text, hint = "it is odd", "write more of it"\n    raise ValueError(text, hint)',
     ["it is odd", "write more of it"]),
])  # fmt: skip
def test_classes_helpers_and_names_are_followed(code: str, texts: list[str]) -> None:
    nodes = [*ast.walk(ast.parse(code))]
    known = errors() | exceptions([*nodes, *ast.walk(ast.parse("class SandboxError(Exception): ..."))])
    assert [each.text for each in of_module("m.py", nodes, known, {})] == texts


def test_a_constant_of_another_module_is_followed() -> None:
    given = {"HINT": [ast.Constant("write a name")]}
    found = of_module("m.py", [*ast.walk(ast.parse("raise ValueError(HINT)"))], errors(), given)
    assert [each.text for each in found] == ["write a name"]


def test_no_family_of_errors_is_missed() -> None:
    families = {"Refused", "Full", "BadRequest", "BadSocks", "PatchError", "Undecodable", "TooLarge", "Unsendable",
                "Garbled", "ToolError", "Lack"}  # fmt: skip
    assert families <= {each.error for each in ALL}


@pytest.mark.parametrize("text", ["it can not do it", "it  fails", "it allows to fail", "it failed."])
def test_a_clumsy_turn_is_noticed(text: str) -> None:
    assert CLUMSY.search(Message("m.py:1", "UsageError", "text", text).text)
