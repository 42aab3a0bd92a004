"""Tests that take more than a second: the gate has ten minutes, and these 6 % would take most of it.

``over_a_second.txt`` names them, one on a line, as they were measured. ``RINGFENCE_TEST_TOOK=FILE make test-all`` on an
idle machine and then ``python -m tests.over_a_second FILE`` write it anew. Of every attack of the corpus one level and
the control stay in the gate, however long they take, and so does one test of each door that has no quicker one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

LIST = Path(__file__).with_suffix(".txt")
LIMIT_S = 1.0
PATIENCE_S = 900
"""The time limit of tests that are known to take long, and say nothing else themselves."""
SMOKE = (
    "tests/doors/test_container_level.py::test_words_decide_nothing",
    "tests/doors/test_container_level.py::test_the_command_line_runs_one",
    "tests/doors/test_docker_sandbox.py::test_a_valid_strategy_runs_and_its_container_is_gone",
    "tests/doors/test_mcp.py::test_a_model_cannot_widen_its_policy",
)
_LONG = ("over_a_second", "long", "guest", "soak")
_CORPUS = "tests/escape/test_corpus.py::"
_ATTACK, _CONTROL = f"{_CORPUS}test_the_attack_fails[", f"{_CORPUS}test_the_same_succeeds_without_a_sandbox["


@cache
def listed() -> frozenset[str]:
    return frozenset(LIST.read_text(encoding="utf-8").splitlines())


def apply(items: Iterable[pytest.Item]) -> None:
    """Mark what is listed, and give it time."""
    for item in items:
        if item.nodeid in listed():
            item.add_marker("over_a_second")
        if any(map(item.get_closest_marker, _LONG)) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(PATIENCE_S))


def rows(names: Iterable[str], kept: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """The list of what takes long. ``kept``: of each attack its name and its levels, the cheapest first."""
    found = set(names) - set(SMOKE)
    for attack, levels in kept:
        found.discard(f"{_CONTROL}{attack}]")
        cases = [f"{_ATTACK}{attack}-{level}]" for level in levels]
        if all(case in found for case in cases):
            found.discard(cases[0])
    return sorted(found)


def attacks() -> Iterator[tuple[str, Sequence[str]]]:
    """Each attack of the corpus with the levels that promise it, as its tests are named."""
    from tests.escape.promises import corpus, levels_of

    for attack in corpus():
        yield f"{attack.family}-{attack.name}", sorted(levels_of(attack))


def measured(files: Iterable[Path]) -> Iterator[str]:
    """Names of what took long; what was prepared for many does not count."""
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["took"] > LIMIT_S:
                yield row["test"]


def main(files: Sequence[str]) -> None:
    found = rows(measured(map(Path, files)), attacks())
    LIST.write_text("".join(f"{name}\n" for name in found), encoding="utf-8")
    print(f"{len(found)} tests take more than {LIMIT_S:g} s: {LIST}")


if __name__ == "__main__":
    main(sys.argv[1:])
