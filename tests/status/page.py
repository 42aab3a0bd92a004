"""docs/status.md, made of the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from tests.status import SPECIFICATIONS
from tests.status.facts import ROOT
from tests.status.row import Row, Specification, State

PATH = ROOT / "docs" / "status.md"
DECISIONS = ROOT / "docs" / "adr"
_HEAD = """\
<!-- Written by python -m tests.status. Tests check it against the table, and the table against the code. -->

# Status

Four specifications say what ringfence must provide. This page lists every interface in them and says how far it works.
Use it to check whether something that a specification names is there, and under which name. To learn how to use
ringfence, begin with the [tutorial](tutorial/index.md).

| state | meaning |
|---|---|
| works | as specified; the tests named in the row show it |
| works with these limits | as specified, except for what the row says |
| not yet | it does not exist yet. The row says what happens when you try: an error says so, and nothing runs |
| refused | it will not exist. The decision (ADR) says why |

The table is data ([tests/status](../tests/status/__init__.py)), and tests check it against the code
([ADR 0140](adr/0140-what-works-is-a-table-that-is-tried.md)). Every name can be imported and has these parameters,
fields and defaults. The parser knows every option. Every test and every decision exists. For what does
not exist, the row shows a call that a test tries, and a part of the error. A test named here may run only in
`make test-all`, not in the gate. What the levels promise against an attacker is in another table:
[guarantees](explanation/guarantees.md).
"""
_COLUMNS = "| interface | state | here | limits, or what happens | shown by |\n|---|---|---|---|---|"


def text() -> str:
    parts = [_HEAD, _summary(), *(line for each in SPECIFICATIONS for line in _specification(each))]
    return "\n".join(parts).rstrip() + "\n"


def _summary() -> str:
    rows = [f"| specification | {' | '.join(State)} |", f"|---|{'---|' * len(State)}"]
    for each in SPECIFICATIONS:
        counts = Counter(row.state for row in each.rows)
        rows.append(f"| [{each.title}](#{anchor(each.title)}) | {' | '.join(str(counts[state]) for state in State)} |")
    return "\n".join([*rows, ""])


def anchor(title: str) -> str:
    """As Markdown makes it of a heading."""
    kept = "".join(sign for sign in title.lower() if sign.isalnum() or sign in " -")
    return kept.replace(" ", "-")


def _specification(each: Specification) -> Iterator[str]:
    yield f"## {each.title}\n\n{each.about}\n"
    for group in each.groups:
        yield f"### {group.title}\n\n{_COLUMNS}"
        yield from map(_line, group.rows)
        yield ""


def _line(row: Row) -> str:
    told = " ".join(filter(None, (row.told, _tried(row), _decisions(row.adr))))
    cells = (row.interface, row.state, ", ".join(fact.shown for fact in row.here), told, ", ".join(_proofs(row.proof)))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |".replace("|  |", "| |")


def _tried(row: Row) -> str:
    return f"`{row.tried.written}`: «{row.tried.words}»." if row.tried else ""


def _decisions(numbers: Iterable[int]) -> str:
    links = [f"[ADR {number:04}](adr/{decision(number)})" for number in numbers]
    return f"({', '.join(links)})" if links else ""


def decision(number: int) -> str:
    """The file of a decision; StopIteration where there is none."""
    return next(DECISIONS.glob(f"{number:04}-*.md")).name


def _proofs(proofs: Iterable[str]) -> Iterator[str]:
    for proof in proofs:
        path, _, name = proof.partition("::")
        yield f"[{name or path.removeprefix('tests/')}](../{path})"
