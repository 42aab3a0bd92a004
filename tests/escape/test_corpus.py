"""The escape corpus: every attack fails on every level that promises it, and succeeds without a sandbox."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.escape.attack import ESCAPED, Attack, Stage, control, perform

FAMILIES = ("process", "memory", "descriptors", "output", "filesystem", "privilege", "syscalls", "network",
            "information", "neighbours")  # fmt: skip


def corpus() -> list[Attack]:
    found: list[Attack] = []
    for family in FAMILIES:
        found += importlib.import_module(f"tests.escape.{family}_attacks").ATTACKS
    return found


CORPUS = corpus()
PROMISED = [(attack, level) for attack in CORPUS for level in attack.levels]


@pytest.fixture
def stage() -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="stage-", dir="/var/tmp") as name, Stage(Path(name)) as made:
        os.chmod(name, 0o755)
        yield made


@pytest.mark.parametrize(("attack", "level"), PROMISED, ids=[f"{a.family}-{a.name}-{level}" for a, level in PROMISED])
def test_the_attack_fails(attack: Attack, level: str, stage: Stage) -> None:
    outcome = perform(attack, level, stage)
    told = outcome.stdout + outcome.stderr
    assert ESCAPED not in outcome.stdout, told
    assert not stage.escaped(), told
    if attack.status:
        assert str(outcome.status) in attack.status, (outcome.reason, told)


CONTROLS = [attack for attack in CORPUS if os.geteuid() == 0 or not attack.needs_root]


@pytest.mark.parametrize("attack", CONTROLS, ids=[f"{a.family}-{a.name}" for a in CONTROLS])
def test_the_same_succeeds_without_a_sandbox(attack: Attack, stage: Stage) -> None:
    told = control(attack, stage)
    assert ESCAPED in told, told


def test_the_corpus_is_as_large_as_promised_and_names_are_unique() -> None:
    names = [(attack.family, attack.name) for attack in CORPUS]
    assert len(names) >= 120
    assert len(set(names)) == len(names)
