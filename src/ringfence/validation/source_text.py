"""Looks at code as text, before anything parses it: size, null bytes, encodings, look-alikes, and nesting.

Owns: what must be known before ``ast.parse``. Its parser recurses in C, so how deep an expression can become is bounded
here, by one pass of a regular expression over the tokens that nest or chain. It is exact for the lexical rules of
Python 3.11; where strings may stand inside the braces of f-strings (3.12) the interpreter has bounds of its own.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator

from ringfence.validation.rule_words import WATCHED_NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.validation.rules import Limits

Problem = tuple[str, int, str]
"""(rule, where in the text, what)."""

_TOKENS = re.compile(
    r'''(?xs)
    \#[^\n]*+
  | """(?:[^"\\]++|\\.|"(?!""))*+""" | \'\'\'(?:[^'\\]++|\\.|'(?!''))*+\'\'\'
  | "(?:[^"\\\n]++|\\.)*+" | '(?:[^'\\\n]++|\\.)*+'
  | [()\[\]{}] | [,;\n] | \\\n | [.+\-*/%@&|^<>~]++
    '''
)
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_COOKIE = re.compile(r"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_PLAIN_ENCODINGS = frozenset({"utf-8", "utf8", "utf_8", "utf-8-sig", "u8", "ascii", "us-ascii"})
_ASCII_ALIKE = frozenset({"latin-1", "latin1", "iso-8859-1", "iso-8859-15", "cp1252", "windows-1252", "l1", "gbk",
                          "iso8859-1", "euc-kr", "gb2312", "cp1251", "windows-1251"})  # fmt: skip
_REORDERING = re.compile("[\u202a-\u202e\u2066-\u2069]")
_SHELL = re.compile(
    r"/dev/(?:tcp|udp)/|:\(\)\s*\{|\bbash\s+-i\b|\bnc(?:at)?\s+-\w*e\b|\brm\s+-rf?\s+(?:--no-preserve-root\s+)?[/~*]"
    r"|\b(?:curl|wget)\b[^|\n]{0,200}\|\s*(?:ba|z)?sh\b|/bin/(?:ba)?sh\s+-i\b|\bpowershell(?:\.exe)?\s+-"
    r"|\bmkfifo\s+/|\bchmod\s+(?:777|\+s|4755)\s+/|\bdd\s+if=/dev/|>\s*/dev/sd[a-z]"
)
_SHELL_WORDS = ("/dev/tcp", "/dev/udp", ":()", "bash", "nc ", "ncat", "rm ", "curl", "wget", "/bin/sh", "powershell",
                "mkfifo", "chmod", "dd ", "/dev/sd")  # fmt: skip
_LINE_END = re.compile(r"\r\n|\r|\n")
_HALF = re.compile("[\ud800-\udfff]")
_NAME = re.compile(r"[^\W\d]\w*")
_LOOKALIKES = str.maketrans(
    "аеорсухіјѕһԁԛԝкмтвнєгпοανρτυικεχηωıɑɡАЕОРСУХІЈЅКМТВΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
    "aeopcyxijshdqwkmtbhernoavptuikexnwiagAEOPCYXIJSKMTBABEZHIKMNOPTYX",
)


class Places:
    """Lines and columns of a text. Where its lines begin is found out once, for the first question."""

    def __init__(self, code: str) -> None:
        self._code = code
        self._begins: list[int] = []

    def of(self, place: int) -> tuple[int, int]:
        """Line and column, from 1, of what is at this place of the text."""
        if not self._begins:
            self._begins = [0, *(found.end() for found in _LINE_END.finditer(self._code))]
        line = bisect_right(self._begins, place)
        return line, place - self._begins[line - 1] + 1


def problems(code: str, limits: Limits) -> Iterator[Problem]:
    """Why it must not be parsed at all; the first reason is enough."""
    if len(code) > limits.code_bytes:
        yield "code-size", 0, f"{len(code):,} characters of code, at most {limits.code_bytes:,}"
        return
    if "\0" in code:
        yield "null-byte", code.index("\0"), "\\x00"
        return
    yield from _encoding_problems(code)
    if not code.isascii():
        yield from _unicode_problems(code)
    yield from _nesting_problems(code, limits)
    yield from _shell_problems(code)


def decoded(data: bytes) -> str:
    """The text of a file; ValueError if it is not text. A byte order mark at its beginning is dropped."""
    head = data[:4096].decode("latin-1").splitlines()[:2]
    named = [found[1].lower().replace("_", "-") for line in head if (found := _COOKIE.match(line))]
    encoding = named[0] if named and named[0] in _ASCII_ALIKE else "utf-8-sig"
    try:
        return data.decode(encoding)
    except LookupError:
        raise ValueError(f"{encoding[:40]} is not a known encoding") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not {encoding.removesuffix('-sig')} at byte {error.start}") from None


def _encoding_problems(code: str) -> Iterator[Problem]:
    for number, line in enumerate(code[:4096].splitlines()[:2]):
        found = _COOKIE.match(line)
        if found and not _is_plain(found[1].lower().replace("_", "-"), code):
            yield "encoding", number and code.index("\n") + 1, found[1][:40]


def _is_plain(encoding: str, code: str) -> bool:
    """Whether the bytes of the code mean the same in this encoding. Many encodings agree on ASCII."""
    return encoding in _PLAIN_ENCODINGS or (encoding in _ASCII_ALIKE and code.isascii())


def _unicode_problems(code: str) -> Iterator[Problem]:
    half = _HALF.search(code)
    if half is not None:
        yield "not-text", half.start(), "an unpaired surrogate (not valid Unicode)"
    reordering = _REORDERING.search(code)
    if reordering:
        yield "reordered-text", reordering.start(), f"U+{ord(reordering[0]):04X}"
    if not any(map(is_disguised, _odd_names(code))):
        return
    seen: set[str] = set()
    for place, name in _names(code):
        if name not in seen and is_disguised(name):
            yield "disguised-name", place, ascii(name)[1:-1]
        seen.add(name)


def _odd_names(code: str) -> set[str]:
    """Words that are not plain ASCII, anywhere in the text: a quick check that most code passes."""
    lines = (line for line in code.split("\n") if not line.isascii())
    return {name for line in lines for name in _NAME.findall(line) if not name.isascii()}


def _names(code: str) -> Iterator[tuple[int, str]]:
    """The names outside of strings and comments that are not plain ASCII."""
    blank = _TOKENS.sub(lambda found: " " * len(found[0]) if found[0][0] in "#\"'" else found[0], code)
    return ((found.start(), found[0]) for found in _NAME.finditer(blank) if not found[0].isascii())


def is_disguised(name: str) -> bool:
    """Whether Python and a human reader see different names.

    >>> is_disguised("ｅval"), is_disguised("е\u200bval"), is_disguised("Δx"), is_disguised("цена")
    (True, True, False, False)
    """
    normal = unicodedata.normalize("NFKC", name)
    if normal != name and normal.isascii():
        return True
    plain = "".join(letter for letter in normal if unicodedata.category(letter) not in ("Mn", "Cf"))
    if plain.translate(_LOOKALIKES) in WATCHED_NAMES:
        return True
    return any(_mixes(part) for part in re.split(r"[_\d]+", normal))


def _mixes(word: str) -> bool:
    """Whether one word mixes Latin and Cyrillic letters. Greek ones are common in formulas."""
    return not word.isascii() and {"LATIN", "CYRILLIC"} <= {unicodedata.name(each, "").split(" ")[0] for each in word}


def _shell_problems(code: str) -> Iterator[Problem]:
    """Shell commands that only attacks use, in strings; comments do not count."""
    words = [word for word in _SHELL_WORDS if word in code]
    suspected = (line for line in code.split("\n") if any(word in line for word in words)) if words else ()
    if not any(_SHELL.search(line) for line in suspected):
        return
    for token in _TOKENS.finditer(code):
        found = _SHELL.search(token[0]) if token[0][0] in "\"'" else None
        if found:
            yield "shell-payload", token.start(), found[0]


def _nesting_problems(code: str, limits: Limits) -> Iterator[Problem]:
    text = code.replace("\r\n", "\n").replace("\r", "\n") if "\r" in code else code
    line = _too_deep(_TOKENS.findall(text), limits)
    if line is not None:
        place = sum(map(len, text.splitlines(keepends=True)[: line - 1]))
        yield "nesting", place, f"more than {limits.nesting} brackets or {limits.chain} operators in each other"


def _too_deep(tokens: list[str], limits: Limits) -> int | None:
    """The line where it becomes too deep. ``chain``: operators since the last comma, of all open brackets."""
    outer: list[int] = []
    chain = start = 0
    line = 1
    for token in tokens:
        first = token[0]
        if first == "\n":
            line += 1
            if not outer:
                chain = 0
        elif first in _OPENING:
            chain += 1
            outer.append(start)
            start = chain
        elif first in _CLOSING:
            chain = start
            start = outer.pop() if outer else 0
        elif first in ",;":
            chain = start
        elif first in "\"'#\\":
            line += token.count("\n")
            chain += len(token) // 2 if len(token) > limits.chain and _may_nest(token, limits) else 0
        else:
            chain += 1 if len(token) < 3 else len(token)
        if chain > limits.chain or len(outer) > limits.nesting:
            return line
    return None


def _may_nest(token: str, limits: Limits) -> bool:
    """Whether a long string would be an expression of many operators if it were an f-string."""
    return "{" in token and any(
        len(re.findall(r"[.+\-*/%@&|^<>~(\[]", field)) > limits.chain for field in re.split(r"[{}]", token)
    )
