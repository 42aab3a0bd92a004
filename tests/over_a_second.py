"""Tests that take more than a second: the gate has ten minutes, and these few would take most of it.

``over_a_second.txt`` names them as they were measured, a test or one of its cases on a line.
``RINGFENCE_TEST_TOOK=FILE make test-all`` on an idle machine and then ``python -m tests.over_a_second FILE…`` write it
anew. What proves something that nothing else in the gate proves stays in it, however long it takes: of every attack of
the corpus the quickest level and the control, of every check of the conformance suite one level, of every row of
docs/explanation/guarantees.md one proof, of every test that THREAT-MODEL.md names one case, and of some doors one test.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
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
_ATTACK, _CONTROL = f"{_CORPUS}test_the_attack_fails", f"{_CORPUS}test_the_same_succeeds_without_a_sandbox"
_CHECK = "tests/contract/test_conformance.py::test_the_promise_holds_and_its_control_succeeds"


@cache
def listed() -> frozenset[str]:
    return frozenset(LIST.read_text(encoding="utf-8").splitlines())


def is_listed(name: str) -> bool:
    return name in listed() or name.partition("[")[0] in listed()


def apply(items: Iterable[pytest.Item]) -> None:
    """Mark what is listed, and give it time."""
    for item in items:
        if is_listed(item.nodeid):
            item.add_marker("over_a_second")
        if any(map(item.get_closest_marker, _LONG)) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(PATIENCE_S))


def rows(took: Mapping[str, float], groups: Iterable[Collection[str]]) -> list[str]:
    """The list of what takes long, without the quickest of a group that would be in it whole."""
    slow = {name for name, seconds in took.items() if seconds > LIMIT_S}
    for group in map(frozenset, groups):
        if group and group <= slow:
            slow.discard(min(group, key=took.__getitem__))
    return sorted(set(_joined(slow, took)))


def _joined(slow: Collection[str], took: Mapping[str, float]) -> Iterator[str]:
    """A test of which every case takes long stands there once, without its cases."""
    quick = {name.partition("[")[0] for name in took if name not in slow}
    for name in slow:
        test = name.partition("[")[0]
        yield name if test in quick else test


def kept(names: Collection[str]) -> Iterator[list[str]]:
    """Groups of tests, by their names, of each of which one must stay in the gate."""
    from tests.escape.promises import corpus, levels_of
    from tests.unit import test_threat_model as guarantees

    for name in SMOKE:
        yield [name]
    for attack in corpus():
        full = f"{attack.family}-{attack.name}"
        yield [f"{_CONTROL}[{full}]"]
        yield [f"{_ATTACK}[{full}-{level}]" for level in levels_of(attack)]
    for test in guarantees.NAMED_BY_THE_MODEL:
        yield [name for name in names if name.partition("::")[2].partition("[")[0] == test]
    for check in guarantees.CHECK_OF:
        yield [f"{_CHECK}[{check}-{level}]" for level in ("process", "strict")]
    for row in (*guarantees.ROWS, *guarantees.EVERYWHERE):
        proofs = {proof for cell in row[1:] for proof in guarantees.named(cell)}
        if not proofs & {*guarantees.CHECK_OF, *guarantees.ATTACKS}:
            yield [name for name in names if name.partition("::")[2].partition("[")[0] in proofs]


def measured(files: Iterable[Path]) -> dict[str, float]:
    lines = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return {row["test"]: row["took"] for row in lines}


def main(files: Iterable[str]) -> None:
    took = measured(map(Path, files))
    groups = [[name for name in group if name in took] for group in kept(took)]
    found = rows(took, groups)
    LIST.write_text("".join(f"{name}\n" for name in found), encoding="utf-8")
    print(f"{len(found)} tests and cases take more than {LIMIT_S:g} s: {LIST}")


if __name__ == "__main__":
    main(sys.argv[1:])
