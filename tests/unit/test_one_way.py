"""One way for one thing: what the whole package does in a single place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from ringfence.roles.job_start import still_to_enter

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "ringfence"
BY_THEMSELVES = ("evidence/", "pytest_runner/guest/")
"""They are read and run without the rest."""


def _with(pattern: str) -> list[str]:
    found = [path for path in PACKAGE.rglob("*.py") if re.search(pattern, path.read_text("utf-8"), re.MULTILINE)]
    names = sorted(str(path.relative_to(PACKAGE)) for path in found)
    return [name for name in names if not name.startswith(BY_THEMSELVES)]


def test_there_is_one_kind_of_record_and_one_replace() -> None:
    assert _with(r"^from dataclasses|^import dataclasses") == []
    assert _with(r"^    from dataclasses import") == ["model/record.py"]


def test_there_is_one_enum_of_strings() -> None:
    assert _with(r"from enum import .*StrEnum") == ["model/str_enum.py"]


def test_control_characters_are_escaped_in_one_place() -> None:
    assert _with(r"isprintable\(\).*ascii\(") == ["model/system_text.py"]


def test_what_a_process_must_still_enter_is_decided_in_one_place() -> None:
    assert _with(r'startswith\(f"\{(group|born_in)\}/"\)') == ["roles/job_start.py"]
    group, other = "/sys/fs/cgroup/a", "/sys/fs/cgroup/ab/cgroup.procs"
    assert still_to_enter(group, [f"{group}/cgroup.procs", other]) == [other]
    assert still_to_enter("", [other]) == [other]


MOVES = {"backends/on_windows/transfer.py", "checkpoint/apply.py", "checkpoint/store.py"}
"""They put a file in place of another for what they are there for: with its owner, its times and what it was."""


def test_a_file_is_written_whole_in_one_place() -> None:
    assert set(_with(r"os\.replace\(")) == {"model/own_files.py", *MOVES}


def test_pipes_for_output_are_given_away_in_one_place() -> None:
    assert _with(r"S_ISFIFO[^\n]*\n[^\n]*fchown") == ["transport/passing.py"]


def test_whoever_waits_for_a_change_takes_its_lock_and_not_the_condition() -> None:
    """A condition is entered in Python: a signal's exception in there leaves the lock taken for good."""
    assert _with(r"Condition\(\)") == []
    conditions = {name for path in PACKAGE.rglob("*.py")
                  for name in re.findall(r"(self\.\w+) = threading\.Condition", path.read_text("utf-8"))}  # fmt: skip
    assert conditions and _with("|".join(rf"with {re.escape(name)}\b" for name in conditions)) == []


ELSEWHERE = {
    "egress/upstream.py _connected": "connect, which calls it, catches it by name",
    "egress/spare_sockets.py _another": "listening, which calls it, catches it by name",
    "corpus/outside.py answer": "a server of the corpus that nobody has to come to",
    "corpus/outside.py _serve": "the same",
}
"""Functions that set a deadline and leave its end to others."""


def _parts(tree: ast.AST, above: tuple[ast.AST, ...] = ()) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:
    """Each node with those above it, the nearest last."""
    for child in ast.iter_child_nodes(tree):
        yield child, (*above, tree)
        yield from _parts(child, (*above, tree))


def _sets_a_deadline(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name, none = ast.unparse(node.func), [ast.unparse(each) for each in node.args] == ["None"]
    return name in ("asyncio.timeout", "asyncio.wait_for") or (name.endswith(".settimeout") and not none)


def _catches(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Try) and any(
        handler.type is not None and name in re.findall(r"\w+", ast.unparse(handler.type)) for handler in node.handlers)


def _unnamed_deadlines(source: str) -> list[str]:
    """The functions in which a deadline is set and its end is not caught by its name."""
    found = []
    for node, above in _parts(ast.parse(source)):
        functions = [each for each in above if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        if functions and _sets_a_deadline(node):
            own = functions[-1]
            tries = [each for each in ast.walk(own) if isinstance(each, ast.Try)]
            found += [own.name] if not any(_catches(each, "TimeoutError") for each in tries) else []
    return found


def test_the_end_of_a_deadline_is_caught_by_its_name() -> None:
    """A TimeoutError is an OSError: who catches that one alone takes a deadline of ours for a fault of the system."""
    found = {f"{path.relative_to(PACKAGE)} {name}" for path in PACKAGE.rglob("*.py")
             for name in _unnamed_deadlines(path.read_text("utf-8"))}  # fmt: skip
    assert found == ELSEWHERE.keys()
    swallowed = "async def f():\n try:\n  async with asyncio.timeout(1): pass\n except OSError: pass\n"
    assert _unnamed_deadlines(swallowed) == ["f"], "control"
    assert _unnamed_deadlines(swallowed.replace("OSError", "(OSError, TimeoutError)")) == []
