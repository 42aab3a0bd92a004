"""How much the validator does for hostile code: by counting calls, not by time."""

from __future__ import annotations

import ast
import base64
import sys
from collections.abc import Callable
from types import FrameType
from typing import SupportsIndex

import pytest

from ringfence.validation import SecurityValidator, evaluation, folding
from ringfence.validation.checks import Report
from ringfence.validation.rules import Limits
from ringfence.validation.values import Const, PathOf, Start, Value, size

VALIDATOR = SecurityValidator()


def calls_for(code: str) -> int:
    """How many functions are called to validate it, those of C included."""
    count = 0

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        VALIDATOR.validate(code)
    finally:
        sys.setprofile(before)
    return count


def of_names(size: int) -> str:
    names = "".join(f"x{i} = x{i - 1} + 'a' if x{i - 1} else x{i // 2}\n" for i in range(1, size))
    return names + "".join(f"getattr(o, x{i})\nopen(x{i})\n" for i in range(1, size))


def of_functions_that_mention_a_shadowed_name(size: int) -> str:
    return "print = 1\n" + "".join(f"def f{i}(): print\n" for i in range(size))


def of_functions_that_mention_a_long_sum(size: int) -> str:
    return "a = ''\n" + "a += 'b'\n" * size + "".join(f"def f{i}(): a.x\n" for i in range(size))


def of_lists_in_lists(size: int) -> str:
    """Each has the one before twice; the first is worked out first."""
    lists = "x0 = [1]\n" + "".join(f"x{i + 1} = [x{i}, x{i}]\n" for i in range(size // 10))
    return lists + f"'%s' % x{size // 10}\n" + "".join(f"x{i}.y\n" for i in reversed(range(size // 10)))


@pytest.mark.parametrize("made", [of_names, of_functions_that_mention_a_shadowed_name,
                                  of_functions_that_mention_a_long_sum, of_lists_in_lists])  # fmt: skip
def test_work_does_not_grow_faster_than_the_code(made: Callable[[int], str]) -> None:
    assert calls_for(made(200)) < 5 * calls_for(made(50))


@pytest.mark.parametrize("grown", [
    lambda value: folding.joined_path(None, value, value),
    lambda value: folding.binary(ast.Add(), Const("a" * 5000), value),
    lambda value: folding.binary(ast.Add(), value, Const("a" * 5000)),
], ids=["a path in itself", "before a start", "after a text"])  # fmt: skip
@pytest.mark.parametrize("begun", [PathOf(Const("ab")), Start("ab"), Const("ab")], ids=["path", "start", "text"])
def test_nothing_known_grows_without_bound(grown: Callable[[Value | None], Value | None], begun: Value) -> None:
    value: Value | None = begun
    for _ in range(20):
        value = grown(value)
    assert size(value) <= folding.MAX_TEXT


@pytest.mark.parametrize("code", [
    "\nc = '" + "".join(map(chr, range(0x4E00, 0x4E00 + 3000))) + "'\nopen(c.encode('punycode'))\n",
    "import codecs\nc = '" + "ab" * 2000 + "'\ncodecs.decode(c, 'IDNA')\n",
    "import base64\nc = '" + "a" * 8000 + "'\n" + "base64.a85decode(c)\n" * 20,
], ids=["punycode", "idna", "many"])  # fmt: skip
def test_code_that_would_be_too_much_work_is_refused(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(evaluation, "_ROOM", 100_000)
    assert "work" in {finding.rule for finding in VALIDATOR.validate(code).findings}
    assert "work" not in {finding.rule for finding in VALIDATOR.validate(code.replace("\nc = ", "\n#")).findings}


@pytest.mark.parametrize("text", [b"system-".decode(), "caf-dma"])
def test_what_is_spelled_in_punycode_is_read(text: str) -> None:
    found = VALIDATOR.validate(f"import os\ngetattr(os, b{text!r}.decode('punycode'))('id')\n").findings
    assert ("process-call" in {finding.rule for finding in found}) is (text == "system-")


def test_of_a_long_constant_the_beginning_is_decoded() -> None:
    packed = base64.b64encode(b"import os; os.system('id')\n" * 2000).decode()
    found = VALIDATOR.validate(f"import base64\nc = {packed!r}\nbase64.b64decode(c)\n").findings
    assert "encoded-payload" in {finding.rule for finding in found}


class Sliced(str):
    """Code that notes how much of it is copied by slices."""

    copied = 0

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        piece = super().__getitem__(key)
        Sliced.copied += len(piece)
        return piece


def test_places_of_findings_are_found_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sliced, "copied", 0)
    code = Sliced("'rm -rf /'\r\n" * 1000)
    found = VALIDATOR.validate(code).findings
    assert [(each.line, each.column) for each in found[1:4]] == [(1, 1), (2, 1), (3, 1)]
    assert Sliced.copied < 4 * len(code)


def test_no_column_is_counted_for_what_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    column = Report._column
    monkeypatch.setattr(Report, "_column", lambda report, *place: asked.append(1) or column(report, *place))
    assert not VALIDATOR.validate("é = 1;" + "eval;" * 1000).is_valid
    assert len(asked) <= Limits().findings + 1
