"""How often a submission that reads its tests guesses which are real: no more often than coins would fall so."""

from __future__ import annotations

from random import Random

import pytest
from tests.unit.proctor.guesser import alone, together

from ringfence.proctor.counter_tests import Mixed, TestFile, Twin, halved
from ringfence.proctor.plausible import changed


def related(rng: Random) -> str:
    """Five tests of one formula: some of their values are the same, and one has nothing to be made wrong."""
    factor, offset = rng.randrange(2, 65538), rng.randrange(1, 65537)
    scaled = [n * factor + offset for n in (3, 1000, 0, 1, 2)]
    return (
        "def test_import(): assert callable(scale)\n"
        f"def test_small(): assert scale(3) == {scaled[0]}\n"
        f"def test_large(): assert scale(1000) == {scaled[1]}\n"
        f"def test_steps(): assert steps(4) == {[*scaled[2:], scaled[0]]}\n"
        f"def test_label(): assert label(7) == 't{rng.getrandbits(32):08x}-7'\n"
    )


def apart(rng: Random) -> str:
    """Six tests that have nothing to do with each other, with values as authors choose them."""
    words = ("hello", "world", "some text", "parsed value", "left to right", "never mind")
    return (
        f"def test_a(): assert a(1) == {rng.choice((10, 100, 42, 7, 0, 1, 250))}\n"
        f"def test_b(): assert b(1) == {rng.choice(words)!r}\n"
        f"def test_c(): assert c(1) == {sorted(rng.sample(range(100), 4))}\n"
        f"def test_d(): assert d(1) == {{'width': {rng.randrange(100)}, 'height': {rng.randrange(100)}}}\n"
        f"def test_e(): assert e(1) == {rng.choice((0.5, 3.14, 2.75, 1e-3))}\n"
        f"def test_f(): assert f(1) == {rng.choice((True, False))}\n"
    )


def mixed_of(text: str, rng: Random) -> Mixed:
    file = TestFile("test_it.py", text, rng)
    chosen: dict[str, list[Twin]] = {test.name: [*test.twins[:1]] for test in file.tests}
    return file.mixed(chosen)


def share_guessed(make: object, runs: int, *, halves: bool) -> float:
    """Return how many of the files were guessed whole."""
    won = 0
    for seed in range(runs):
        rng = Random(seed)
        mixed = mixed_of(make(rng), rng)  # type: ignore[operator]
        if halves:
            right = [alone(text, rng) == {name for name in mixed.tests if name in text} for text in halved(mixed, rng)]
            won += all(right)
        else:
            won += together(mixed.text, rng) == mixed.tests.keys()
    return won / runs


@pytest.mark.slow
@pytest.mark.parametrize(("make", "coins"), [(related, 2), (apart, 3)])
def test_a_file_with_both_of_each_is_guessed_no_more_often_than_its_independent_values_allow(
    make: object, coins: int
) -> None:
    assert share_guessed(make, 60, halves=False) < 1.3 * 0.5**coins


@pytest.mark.slow
@pytest.mark.parametrize(("make", "coins"), [(related, 4), (apart, 5)])
def test_a_file_with_one_of_each_is_guessed_no_more_often_than_coins_fall(make: object, coins: int) -> None:
    assert share_guessed(make, 60, halves=True) < 1.5 * 0.5**coins


@pytest.mark.parametrize("value", [0, 1, 9, 10, 42, 300, -5, -40, 0.5, 3.14, 12.0, "a1b2", "hello", "XYZ", True])
def test_each_change_goes_both_ways_with_the_same_chance(value: object) -> None:
    """How often one value is made of another, and that one of it, over many lots."""
    rng = Random(7)
    made = [changed(value, {}, rng) for _ in range(200)]
    for other in {repr(each): each for each in made}.values():
        back = [changed(other, {}, rng) for _ in range(200)]
        assert abs(made.count(other) - back.count(value)) < 60, (value, other)
