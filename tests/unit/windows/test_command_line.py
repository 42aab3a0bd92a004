"""Arguments, environment and program names as Windows takes them."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import UsageError
from ringfence.windows.command_line import command_line, environment_block, program

_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


def _parsed(line: str) -> list[str]:
    """By the rules that the C runtime documents, written down a second time."""
    words, word, quoted, begun, place = [], "", False, False, 0
    while place < len(line):
        slashes = len(line[place:]) - len(line[place:].lstrip("\\"))
        place += slashes
        sign = line[place : place + 1]
        if sign == '"':
            word += "\\" * (slashes // 2)
            word, quoted, begun = (word + '"', quoted, True) if slashes % 2 else (word, not quoted, True)
            place += 1
        else:
            word += "\\" * slashes
            begun = begun or bool(slashes)
            if sign in (" ", "\t") and sign and not quoted:
                if begun:
                    words.append(word)
                word, begun = "", False
            elif sign:
                word, begun = word + sign, True
            place += bool(sign)
    return [*words, word] if begun else words


@given(st.lists(_TEXT, max_size=5))
def test_what_the_runtime_reads_is_what_was_given(words: list[str]) -> None:
    line = command_line(["C:\\a b\\p.exe", *words])
    assert line.startswith('"C:\\a b\\p.exe"')
    assert _parsed(line[len('"C:\\a b\\p.exe"') :]) == words


@given(st.lists(_TEXT, max_size=5))
def test_the_standard_library_is_read_the_same_way(words: list[str]) -> None:
    """The control of the reader above."""
    assert _parsed(subprocess.list2cmdline(["p", *words])) == ["p", *words]


def test_too_long_or_no_name() -> None:
    for argv in (["p", "x" * 32767], ['a"b']):
        with pytest.raises(UsageError):
            command_line(argv)


def test_an_environment_is_sorted_and_has_each_name_once() -> None:
    assert environment_block({"b": "2", "A": "1", "B": "3"}) == "A=1\0B=3\0\0"
    assert environment_block({}) == "\0\0"


FILES = {"C:\\bin\\tool.exe", "C:\\bin\\odd", "C:\\work\\tool.exe", "C:\\work\\here.exe", "C:\\two words\\b.com"}


@pytest.mark.parametrize(("name", "found"), [
    ("tool", "C:\\bin\\tool.exe"), ("tool.exe", "C:\\bin\\tool.exe"), ("here", ""), ("b", "C:\\two words\\b.com"),
    (".\\here.exe", "C:\\work\\here.exe"), ("./here", "C:\\work\\here.exe"), ("C:\\bin\\tool", "C:\\bin\\tool.exe"),
    ("odd", "C:\\bin\\odd"), ("none", ""),
])  # fmt: skip
def test_which_program_a_name_means(name: str, found: str) -> None:
    """Never one of the current directory by a bare name."""
    assert program(name, "C:\\work", 'C:\\bin;.;"C:\\two words"', FILES.__contains__) == found


@pytest.mark.parametrize("name", ["a.bat", "A.CMD", "C:\\x\\a.bat", "a.bat.", "a.cmd  .", ".\\a.Bat"])
def test_batch_files_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="batch file"):
        program(name, "C:\\", "C:\\bin", lambda _: True)
