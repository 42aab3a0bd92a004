"""The escape corpus: every attack fails on every level that promises it, and succeeds without a sandbox."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ringfence import Outcome
from ringfence.kernel.cgroup import group as cgroups
from tests.escape import threat_table
from tests.escape.attack import (
    BOTH,
    ESCAPED,
    STRICT,
    Attack,
    Stage,
    close_pools,
    control,
    perform,
    perform_source,
    perform_warm,
)
from tests.escape.promises import LESS, corpus, levels_of, statuses_of
from tests.finality import AttackSucceeded, Unsure
from tests.testable import host_refusal, not_testable_here

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]

CORPUS = [attack for attack in corpus() if attack.possible]
_GROUP = cgroups.probe().missing("memory") is None
PROMISED = [(attack, level) for attack in CORPUS if _GROUP or not attack.held_by_group
            for level in levels_of(attack)]  # fmt: skip


@pytest.fixture
def stage() -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="stage-", dir="/var/tmp") as name, Stage(Path(name)) as made:
        os.chmod(name, 0o755)
        yield made


@pytest.fixture(scope="module", autouse=True)
def _pools_end() -> Iterator[None]:
    yield
    close_pools()


def _fails(perform: Callable[[Attack, str, Stage], Outcome], attack: Attack, level: str, stage: Stage) -> None:
    outcome = perform(attack, level, stage)
    told = outcome.stdout + outcome.stderr
    if ESCAPED in outcome.stdout or stage.escaped():
        raise AttackSucceeded(told)
    expected = statuses_of(attack, level)
    if expected and str(outcome.status) not in expected:
        raise Unsure(outcome.status, outcome.reason, told)


@pytest.mark.parametrize(("attack", "level"), PROMISED, ids=[f"{a.family}-{a.name}-{level}" for a, level in PROMISED])
def test_the_attack_fails(attack: Attack, level: str, stage: Stage) -> None:
    _fails(perform, attack, level, stage)


WARM = [(attack, level) for attack, level in PROMISED if level in BOTH and not attack.workspace]
WARM_NAMES = [f"{a.family}-{a.name}-{level}" for a, level in WARM]


@pytest.mark.parametrize(("attack", "level"), WARM, ids=WARM_NAMES)
def test_the_attack_fails_in_a_sandbox_that_stood_by(attack: Attack, level: str, stage: Stage) -> None:
    _fails(perform_warm, attack, level, stage)


_FIRST = {(attack.family, level): attack for attack, level in reversed(WARM)}
"""The gate has one attack of each family and level."""
AS_PYTHON = [
    pytest.param(attack, level, id=name, marks=() if _FIRST[attack.family, level] is attack else pytest.mark.long)
    for (attack, level), name in zip(WARM, WARM_NAMES, strict=True)
]


@pytest.mark.once
@pytest.mark.parametrize(("attack", "level"), AS_PYTHON)
def test_the_attack_fails_as_a_python_job_without_an_interpreter_of_its_own(
    attack: Attack, level: str, stage: Stage
) -> None:
    _fails(perform_source, attack, level, stage)


CONTROLS = [attack for attack in CORPUS if os.geteuid() == 0 or not attack.needs_root]


@pytest.mark.control
@pytest.mark.parametrize("attack", CONTROLS, ids=[f"{a.family}-{a.name}" for a in CONTROLS])
def test_the_same_succeeds_without_a_sandbox(attack: Attack, stage: Stage) -> None:
    told = control(attack, stage)
    if ESCAPED not in told and (refusal := host_refusal(told)):
        not_testable_here(refusal)
    assert ESCAPED in told, told


def test_the_corpus_is_as_large_as_promised_and_names_are_unique() -> None:
    names = [(attack.family, attack.name) for attack in CORPUS]
    assert len(names) >= 120
    assert len(set(names)) == len(names)


def test_what_is_left_out_without_namespaces_is_promised_with_them() -> None:
    assert LESS.keys() <= {(attack.family, attack.name) for attack in corpus() if STRICT in attack.levels}


def test_the_threat_model_prints_what_the_corpus_promises() -> None:
    assert threat_table.WRITTEN.current() == threat_table.rendered(), "run: python -m tests.escape.threat_table"
