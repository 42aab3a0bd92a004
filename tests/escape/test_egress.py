"""Attacks on a network list: each fails in a sandbox, and succeeds without one; see ``egress_attacks``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from tests.egress_world import World
from tests.escape.egress_attacks import ATTACKS, LESS_USUAL, PRELUDE, EgressAttack, is_forbidden

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]

each = pytest.mark.parametrize("attack", ATTACKS, ids=[attack.name for attack in ATTACKS])


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def _once_stood_by(attack: EgressAttack) -> object:
    """A pool's sandbox has the same gateway; the less usual ways are tried there by the soak."""
    marks = [pytest.mark.soak] if attack in LESS_USUAL else []
    return pytest.param(attack, id=attack.name, marks=marks)


def _argv(source: str) -> list[str]:
    return [sys.executable, "-I", "-c", PRELUDE + source]


def _policy(attack: EgressAttack) -> dict[str, object]:
    return {"isolation": "strict", "wall_time_s": 40, "network": list(attack.network)}


def _fails(outcome: dict[str, object], world: World) -> None:
    told = (outcome["stdout"], outcome["stderr"], outcome["reason"])
    assert "ESCAPED" not in str(outcome["stdout"]), told
    assert not [row for row in world.heard() if is_forbidden(row)], told
    assert outcome["status"] in ("OK", "FAILED"), told


@each
def test_the_attack_fails(attack: EgressAttack, world: World) -> None:
    world.heard()
    _fails(world.ask(op="run", argv=_argv(attack.probe), policy=_policy(attack)), world)


@pytest.mark.parametrize("attack", [_once_stood_by(attack) for attack in ATTACKS])
def test_the_attack_fails_in_a_sandbox_that_stood_by(attack: EgressAttack, world: World) -> None:
    world.heard()
    _fails(world.ask(op="pooled", argv=_argv(attack.probe), policy=_policy(attack)), world)


CONTROLS = [attack for attack in ATTACKS if os.geteuid() == 0 or not attack.needs_root]


@pytest.mark.control
@pytest.mark.parametrize("attack", CONTROLS, ids=[attack.name for attack in CONTROLS])
def test_the_same_succeeds_without_a_sandbox(attack: EgressAttack, world: World) -> None:
    world.heard()
    told = world.control(_argv(attack.control or attack.probe))
    assert "ESCAPED" in told or any(is_forbidden(row) for row in world.heard()), told


def test_there_are_as_many_as_promised_and_names_are_unique() -> None:
    names = [attack.name for attack in ATTACKS]
    assert len(names) >= 40 and len(set(names)) == len(names)
