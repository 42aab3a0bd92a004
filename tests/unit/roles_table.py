"""Writes the table of processes into ARCHITECTURE.md, out of the headers of the roles.

    python -m tests.unit.roles_table

A file that is a process says in its docstring, in this order, ``Runs as``, ``Parent``, ``Holds`` and ``Must not have``;
one that is two says it twice. Any other file says ``Part of``, and of which processes.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

from tests.unit.source import nodes_of, tree_of
from tests.written_parts import WrittenPart

ROOT = Path(__file__).resolve().parents[2]
_DOCUMENT = ROOT / "ARCHITECTURE.md"
PACKAGE = ROOT / "src" / "ringfence"
WRITTEN = WrittenPart(
    _DOCUMENT, "<!-- the processes: begin, written by tests/unit/roles_table.py -->", "<!-- the processes: end -->"
)
ROLES = [path for path in sorted(PACKAGE.glob("roles/**/*.py")) if path.stem != "__init__"]
ELSEWHERE = ("steps/pid1.py", "egress/gateway.py", "container/guardian.py", "container/network_entry.py")
"""pid 1 is no role of its own: it is what executes the plan of a sandbox, once that is carried out. The others lead no
job; each is in the room of what it does."""
FILES = [*ROLES, *(PACKAGE / name for name in ELSEWHERE)]
KEYS = ("Runs as", "Parent", "Holds", "Must not have")
PART = "Part of"
CALLER = "caller"


class Process(NamedTuple):
    """One header: who it is, how many there are, who forks it."""

    name: str
    when: str
    parents: tuple[str, ...]
    holds: str
    must_not_have: str
    file: str


def headers(docstring: str) -> list[dict[str, str]]:
    """The headers that follow the first line of a docstring, one for each process, or one with what it is part of."""
    found: list[dict[str, str]] = []
    for line in (line for block in docstring.split("\n\n")[1:] for line in block.split("\n")):
        key, colon, words = line.partition(": ")
        if colon and key in (KEYS[0], PART):
            found.append({})
        if colon and key in (*KEYS, PART) and found:
            found[-1][key] = words
        elif found and line.startswith("    "):
            last = next(reversed(found[-1]))
            found[-1][last] += f" {line.strip()}"
    return found


def headers_of(path: Path) -> list[dict[str, str]]:
    return headers(ast.get_docstring(tree_of(path)) or "")


def names_in(words: str) -> tuple[str, ...]:
    """The processes that are named, up to «, as …»."""
    return tuple(words.partition(", as ")[0].split(", "))


def processes() -> list[Process]:
    """All of them, each after the process that forks it."""
    found = [_process(header, path) for path in FILES for header in headers_of(path) if PART not in header]
    born = [CALLER]
    ordered: list[Process] = []
    while len(ordered) < len(found):
        young = [each for each in found if each not in ordered and set(each.parents) <= set(born)]
        if not young:
            raise ValueError(f"nobody forks {', '.join(each.name for each in found if each not in ordered)}")
        ordered += young
        born += [each.name for each in young]
    return ordered


def _process(header: dict[str, str], path: Path) -> Process:
    name, _, when = header[KEYS[0]].partition(", ")
    parents, holds, must_not_have = (header[key] for key in KEYS[1:])
    return Process(name, when, names_in(parents), holds, must_not_have, str(path.relative_to(PACKAGE)))


# ---- what the imports say


def imported(path: Path) -> dict[Path, bool]:
    """The roles that a file imports when it runs, at once or later, and whether a class of it derives from theirs."""
    nodes = nodes_of(path)
    for_types = {id(each) for node in nodes if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
                 for each in ast.walk(node)}  # fmt: skip
    bases = {ast.unparse(base).split(".")[0] for node in nodes if isinstance(node, ast.ClassDef) for base in node.bases}
    found: dict[Path, bool] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and id(node) not in for_types:
            for alias in node.names:
                for name in (node.module or "", f"{node.module}.{alias.name}"):
                    target = PACKAGE.parent / f"{name.replace('.', '/')}.py"
                    if target in FILES and target != path:
                        found[target] = found.get(target, False) or (alias.asname or alias.name) in bases
    return found


def parts_of(path: Path) -> tuple[str, ...]:
    """The processes that a file says it is part of; none: it is a process."""
    return next((names_in(header[PART]) for header in headers_of(path) if PART in header), ())


def descendants(name: str) -> set[str]:
    children = {each.name for each in processes() if name in each.parents}
    return children | {deeper for child in children for deeper in descendants(child)}


def runs(name: str) -> set[Path]:
    """The files that a process runs code of, by imports: from its own on, and up to those of what it forks.

    Of another process's file it runs what its classes derive from. A file that derives from a process's own classes is
    that process too: it is imported by whatever forks it.
    """
    own = {path for path in FILES for header in headers_of(path) if header.get(KEYS[0], "").split(", ")[0] == name}
    open_ = [*own, *(path for path in FILES if name in parts_of(path)
                     and any(derives and target in own for target, derives in imported(path).items()))]  # fmt: skip
    below = descendants(name)
    found: set[Path] = set()
    while open_:
        path = open_.pop()
        found.add(path)
        for target, derives in imported(path).items():
            named = parts_of(target)
            forked = name not in named and below.intersection(named)
            if target not in found and (derives if not named else not forked):
                open_.append(target)
    return found


def rendered() -> str:
    rows = [(f"{each.name} (`{each.file}`): {each.when}", ", ".join(each.parents), each.holds, each.must_not_have)
            for each in processes()]  # fmt: skip
    header = ("process", "forked by", "what it holds", "what it must not have")
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.rstrip('.').replace('``', '`') for cell in line)} |" for line in lines)


if __name__ == "__main__":
    WRITTEN.write(rendered())
