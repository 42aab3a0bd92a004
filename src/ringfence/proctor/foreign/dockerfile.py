"""Reads a Dockerfile, strictly and without an engine: instructions in their order, each with its line.

Pure. An error names file and line. Carrying the instructions out is left to the engine, or to ``rootfs``, which looks
for their results on the host.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from ringfence.errors import UsageError
from ringfence.model.record import record

MAX_BYTES = 1 << 20
KNOWN = ("FROM", "WORKDIR", "ENV", "COPY", "ADD", "RUN", "USER", "ARG", "CMD", "ENTRYPOINT", "EXPOSE", "LABEL",
         "MAINTAINER", "SHELL", "STOPSIGNAL", "HEALTHCHECK", "VOLUME", "ONBUILD")  # fmt: skip
_WITH_HEREDOCS = ("RUN", "COPY", "ADD")
_HEREDOC = re.compile(r"(?<!<)<<(-?)(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\2")
_DIRECTIVE = re.compile(r"#\s*([a-z]+)\s*=\s*(\S.*?)\s*$", re.IGNORECASE)
_FLAG = re.compile(r"--([a-z][a-z-]*)(?:=(\S*))?\s*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VARIABLE = re.compile(r"\\(\$)|\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?::([-+])([^}]*))?\})")


@record
class Heredoc:
    """The text of a heredoc below an instruction."""

    name: str
    text: str
    is_plain: bool
    """Whether variables in it are left as they are."""


@record
class Instruction:
    """An instruction of a Dockerfile."""

    name: str
    """In capitals."""
    text: str
    """What follows the name and the flags, on one line."""
    line: int
    flags: tuple[tuple[str, str], ...] = ()
    heredocs: tuple[Heredoc, ...] = ()

    def words(self) -> tuple[str, ...] | None:
        """Those of the JSON form; None: it is not in that form."""
        try:
            found = json.loads(self.text) if self.text.startswith("[") else None
        except ValueError:
            return None
        if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
            return None
        return tuple(found)


@record
class Dockerfile:
    """A whole one."""

    path: str
    instructions: tuple[Instruction, ...]
    syntax: str = ""
    """The image that a ``# syntax=`` line wants it read by; absent: the engine reads it."""
    syntax_line: int = 0

    def named(self, *names: str) -> tuple[Instruction, ...]:
        return tuple(each for each in self.instructions if each.name in names)

    def problem(self, where: Instruction, what: str) -> UsageError:
        """The error that names file and line."""
        return UsageError(f"{self.path}:{where.line}: {where.name}: {what}")


def read(text: str, path: str) -> Dockerfile:
    """Read its text; UsageError names ``path`` and the line."""
    line, syntax = _syntax(text)
    found = Dockerfile(path=path, instructions=tuple(_instructions(text, path)), syntax=syntax, syntax_line=line)
    first = next((each for each in found.instructions if each.name != "ARG"), None)
    if first is None or first.name != "FROM":
        line = first.line if first else 1
        raise UsageError(f"{path}:{line}: a Dockerfile must begin with FROM")
    return found


def _instructions(text: str, path: str) -> Iterator[Instruction]:
    lines = text.replace("\r\n", "\n").split("\n")
    escape = _escape(lines, path)
    number = 0
    while number < len(lines):
        start = number
        whole, number = _joined(lines, number, escape)
        if not whole.strip():
            continue
        made = _instruction(whole.strip(), start + 1, path)
        heredocs = []
        if made.name in _WITH_HEREDOCS and not made.text.startswith("["):
            for dash, quote, name in _HEREDOC.findall(made.text):
                body, number = _heredoc(lines, number, name, bool(dash), f"{path}:{start + 1}")
                heredocs.append(Heredoc(name=name, text=body, is_plain=bool(quote)))
        yield Instruction(name=made.name, text=made.text, line=made.line, flags=made.flags, heredocs=tuple(heredocs))


def _syntax(text: str) -> tuple[int, str]:
    """Line and value of a directive that has another program read the file. Builders only look at the first comments,
    but differ in where these end; we look at everything before the first instruction."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            break
        found = _DIRECTIVE.fullmatch(line.strip())
        if found and found[1].lower() == "syntax":
            return number, found[2]
    return 0, ""


def without_line(text: str, number: int) -> str:
    """The same text without one line. A comment in its place would end what builders read as directives."""
    lines = text.split("\n")
    return "\n".join(lines[: number - 1] + lines[number:])


def _escape(lines: list[str], path: str) -> str:
    """The sign that joins lines: a directive at the very top may choose another."""
    for number, line in enumerate(lines, 1):
        if number == 1 and line.startswith("#!"):
            continue
        found = _DIRECTIVE.fullmatch(line.strip())
        if not found:
            break
        if found[1].lower() == "escape":
            if found[2] not in ("\\", "`"):
                raise UsageError(f"{path}:{number}: escape: {found[2]!r} is neither \\ nor `")
            return found[2]
    return "\\"


def _joined(lines: list[str], number: int, escape: str) -> tuple[str, int]:
    """An instruction on one line, and the number of the next. Comments and empty lines in it are left out."""
    parts: list[str] = []
    while number < len(lines):
        line = lines[number]
        number += 1
        if line.lstrip().startswith("#") or (parts and not line.strip()):
            if parts or number >= len(lines):
                continue
            return "", number
        stripped = line.rstrip()
        if not stripped.endswith(escape):
            return "".join((*parts, stripped)), number
        parts.append(stripped[:-1])
    return "".join(parts), number


def _instruction(text: str, line: int, path: str) -> Instruction:
    name, _, rest = re.sub(r"\s+", " ", text, count=1).partition(" ")
    name = name.upper()
    if name not in KNOWN:
        raise UsageError(f"{path}:{line}: {name[:40]!r} is not a Dockerfile instruction",
                         hint=f"there are {', '.join(KNOWN)}")  # fmt: skip
    flags, rest = [], rest.strip()
    while name in ("FROM", "COPY", "ADD", "RUN", "HEALTHCHECK") and (flag := _FLAG.match(rest)):
        flags.append((flag[1], flag[2] or ""))
        rest = rest[flag.end() :]
    if not rest:
        raise UsageError(f"{path}:{line}: {name} has no arguments")
    return Instruction(name=name, text=rest, line=line, flags=tuple(flags))


def _heredoc(lines: list[str], number: int, name: str, dash: bool, where: str) -> tuple[str, int]:
    found: list[str] = []
    while number < len(lines):
        line = lines[number].lstrip("\t") if dash else lines[number]
        number += 1
        if line == name:
            return "".join(f"{each}\n" for each in found), number
        found.append(line)
    raise UsageError(f"{where}: the heredoc {name} is not closed")


# ---- values


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """With ``$NAME``, ``${NAME}``, ``${NAME:-word}`` and ``${NAME:+word}`` replaced, as an image's builder does it.

    >>> expanded("$A/${B:-c}/${A:+d}/\\\\$A", {"A": "a"})
    'a/c/d/$A'
    """

    def one(found: re.Match[str]) -> str:
        if found[1]:
            return found[1]
        value = variables.get(found[2] or found[3], "")
        word = found[5] or ""
        return {"-": value or word, "+": word if value else ""}.get(found[4], value)

    return _VARIABLE.sub(one, text)


def assignments(dockerfile: Dockerfile, where: Instruction, variables: Mapping[str, str]) -> dict[str, str]:
    """What ENV, ARG or LABEL sets: ``NAME=value …``, or of ENV ``NAME the rest``."""
    found: dict[str, str] = {}
    rest = where.text
    name, _, value = rest.partition(" ")
    if where.name == "ENV" and "=" not in name:
        if not _NAME.fullmatch(name) or not value.strip():
            raise dockerfile.problem(where, f"{rest[:80]!r} sets no variable")
        return {name: expanded(value.strip(), variables)}
    while rest:
        found_name, equal, rest = rest.partition("=")
        if not equal or not _NAME.fullmatch(found_name.strip()):
            raise dockerfile.problem(where, f"{(found_name or rest)[:80]!r} is not a NAME=value")
        value, rest = _value(rest, dockerfile, where)
        found[found_name.strip()] = expanded(value, variables)
    return found


def _value(text: str, dockerfile: Dockerfile, where: Instruction) -> tuple[str, str]:
    """The value at the start of a text, without its quotes, and the rest. In single ones no variable is meant."""
    parts, quote, place = [], "", 0
    while place < len(text) and (quote or not text[place].isspace()):
        sign = text[place]
        if sign == "\\" and quote != "'" and text[place + 1 : place + 2] and text[place + 1] != "$":
            place += 1
            parts.append(text[place])
        elif sign == quote:
            quote = ""
        elif not quote and sign in "'\"":
            quote = sign
        else:
            parts.append("\\$" if sign == "$" and quote == "'" else sign)
        place += 1
    if quote:
        raise dockerfile.problem(where, "a quote is not closed")
    return "".join(parts), text[place:].lstrip()


def stages(dockerfile: Dockerfile) -> tuple[tuple[str, str], ...]:
    """Image and name of each FROM; ARG before the first may be a part of it."""
    variables: dict[str, str] = {}
    found: list[tuple[str, str]] = []
    for each in dockerfile.instructions:
        if each.name == "ARG" and not found:
            variables |= declared(dockerfile, each, variables)
        elif each.name == "FROM":
            words = each.text.split()
            if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
                raise dockerfile.problem(each, f"{each.text[:80]!r} is not IMAGE or IMAGE AS NAME")
            found.append((expanded(words[0], variables), words[2] if len(words) == 3 else ""))
    return tuple(found)


def declared(dockerfile: Dockerfile, where: Instruction, variables: Mapping[str, str]) -> dict[str, str]:
    """What an ARG sets: its default, or nothing."""
    if "=" in where.text:
        return assignments(dockerfile, where, variables)
    if not all(_NAME.fullmatch(name) for name in where.text.split()):
        raise dockerfile.problem(where, f"{where.text[:80]!r} is not a NAME or NAME=value")
    return {}
