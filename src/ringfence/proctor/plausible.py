"""Wrong expectations that look right, and right ones that look another way. Pure: expressions in, expressions out.

A reader of a test must not be able to tell whether the number in it is the right one. So each change goes both ways
with the same chance: from 41 to 42 as from 42 to 41. Round numbers stay round, sorted lists sorted, words can still be
spoken. Within one file a value is always swapped with the same other value, in both directions: so its frequency tells
nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random

World = dict[str, object]
"""What each value of a file becomes where it is made wrong, by its text; filled while twins are made."""
_NO_LITERAL = (ValueError, TypeError, SyntaxError, MemoryError, RecursionError)
_LONGEST_INT = 10**300
"""Python refuses to write out an integer of some thousand digits."""
_SMALL, _SMALLEST = 0.01, 1e-4
_ALPHABETS = ("0123456789", "aeiou", "AEIOU", "bcdfghjklmnpqrstvwxyz", "BCDFGHJKLMNPQRSTVWXYZ")
"""A character of a text becomes another one of its alphabet: the first alphabet that occurs in the text."""
_DRAWS = 8
_TELLING = 4
"""Significant digits of a long number; a change after them could be within a tolerance."""


def wrong(node: ast.expr, world: World, rng: Random) -> ast.expr | None:
    """Return the expression with one value made wrong; absent: it has none that can be."""
    if is_approx(node):
        return _wrong_approx(node, world, rng)
    try:
        value = ast.literal_eval(node)
    except _NO_LITERAL:
        return _wrong_inside(node, world, rng)
    other = changed(value, world, rng)
    return None if other is None or other == value else _expression(other)


def values_in(node: ast.expr) -> list[object]:
    """Return the value of a literal, and the values in it: another test may get them as wrong ones."""
    try:
        return [ast.literal_eval(node)]
    except _NO_LITERAL:
        return [value for each in _parts(node) for value in values_in(each)]


def is_approx(node: ast.expr) -> bool:
    """Whether it is ``pytest.approx`` with its own tolerance."""
    if not isinstance(node, ast.Call) or node.keywords or len(node.args) != 1:
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name == "approx"


def changed(value: object, world: World, rng: Random) -> object | None:
    """Return another value of the same type that is near; absent: there is none."""
    known = world.get(_key(value))
    if known is None:
        known = _NEAR.get(type(value), _none_near)(value, world, rng)
        if known is not None and known != value and _key(known) not in world:
            world[_key(value)], world[_key(known)] = known, value
    return known if known is not None and known != value else None


def _key(value: object) -> str:
    return f"{type(value).__name__} {value!r}"


def _none_near(value: object, world: World, rng: Random) -> object | None:
    return None


def _near_bool(value: bool, world: World, rng: Random) -> object:
    return not value


def _next(character: str, ring: str, rng: Random) -> str:
    """A neighbour in a ring: each becomes the other equally often."""
    return ring[(ring.index(character) + rng.choice((1, -1))) % len(ring)]


def _near_int(value: int, world: World, rng: Random) -> object | None:
    """The last non-zero digit becomes another: 300 does not become 301."""
    if abs(value) >= _LONGEST_INT:
        return None
    sign, digits = "-" if value < 0 else "", str(abs(value))
    if len(digits) == 1 and not sign:
        return int(_next(digits, "0123456789", rng))
    kept = digits.rstrip("0")
    return int(sign + kept[:-1] + _next(kept[-1], "123456789", rng) + digits[len(kept) :])


def _near_float(value: float, world: World, rng: Random) -> object | None:
    """With as many digits as it has: 3.14 is not 4.140000000000001."""
    mantissa, _, exponent = repr(value).partition("e")
    if "." in mantissa and mantissa.endswith(".0") and not exponent:
        whole = _near_int(int(mantissa[:-2]), world, rng)
        return float(str(whole)) if whole is not None else None
    first = next((place for place, each in enumerate(mantissa) if each in "123456789"), -1)
    if first < 0 or abs(value) < _SMALLEST:
        return None
    places = [place for place in range(first, len(mantissa)) if mantissa[place].isdigit()][:_TELLING]
    place = first if abs(value) < _SMALL else places[-1]
    ring = "123456789" if place in (first, len(mantissa) - 1) else "0123456789"
    if mantissa[place] not in ring:
        return None
    before, after = mantissa[:place], mantissa[place + 1 :] + repr(value)[len(mantissa) :]
    return float(before + _next(mantissa[place], ring, rng) + after)


def _near_text(value: str, world: World, rng: Random) -> object | None:
    """A digit becomes another, else a vowel, else a consonant; else two characters change places."""
    for alphabet in _ALPHABETS:
        places = [place for place, each in enumerate(value) if each in alphabet]
        if places:
            place = rng.choice(places)
            return value[:place] + _next(value[place], alphabet, rng) + value[place + 1 :]
    pairs = [(one, two) for two in range(min(len(value), 50)) for one in range(two) if value[one] != value[two]]
    if not pairs:
        return value + " " if len(value) < 2 else None
    one, two = rng.choice(pairs)
    return value[:one] + value[two] + value[one + 1 : two] + value[one] + value[two + 1 :]


def _near_bytes(value: bytes, world: World, rng: Random) -> object | None:
    return str(_near_text(value.decode("latin-1"), world, rng) or "").encode("latin-1")


def _near_list(value: list[object], world: World, rng: Random) -> object | None:
    if not value:
        return [0]
    if _is_progression(value):
        return _shifted(value, world, rng)
    for _ in range(_DRAWS):
        place = rng.randrange(len(value))
        other = changed(value[place], world, rng)
        made = [*value[:place], other, *value[place + 1 :]]
        if other is not None and _look(made) == _look(value):
            return made
    place = rng.randrange(len(value))
    exchanged = [*value[:place], *value[place + 1 : place + 2], value[place], *value[place + 2 :]]
    return exchanged if exchanged != value else value[:-1]


def _is_progression(value: Sequence[object]) -> bool:
    numbers = [each for each in value if type(each) is int and abs(each) < _LONGEST_INT]
    steps = {two - one for one, two in pairwise(numbers)}
    return len(value) > 2 and len(numbers) == len(value) and len(steps) == 1


def _shifted(value: Sequence[object], world: World, rng: Random) -> list[object]:
    """Shift all by the same amount: else the one that breaks the sequence would be the wrong one."""
    numbers = [each for each in value if isinstance(each, int)]
    known = next((each for each in numbers if _key(each) in world), None)
    other = changed(rng.choice(numbers) if known is None else known, world, rng)
    step = rng.choice((1, -1))
    if known is not None and isinstance(other, int):
        step = other - known
    for each in numbers:
        if _key(each) not in world and _key(each + step) not in world:
            world[_key(each)], world[_key(each + step)] = each + step, each
    return [each + step for each in numbers]


def _look(value: Sequence[object]) -> tuple[bool, bool, bool]:
    """What the eye sees at once: whether a sequence rises or falls, and whether all its values differ."""
    try:
        pairs = [*pairwise(value)]
        rising = all(one <= two for one, two in pairs)  # type: ignore[operator]
        falling = all(one >= two for one, two in pairs)  # type: ignore[operator]
    except TypeError:
        rising = falling = False
    return rising, falling, len({*map(_key, value)}) == len(value)


def _near_tuple(value: tuple[object, ...], world: World, rng: Random) -> object | None:
    other = _near_list(list(value), world, rng)
    return tuple(other) if isinstance(other, list) else None


def _near_dict(value: dict[object, object], world: World, rng: Random) -> object | None:
    for key in rng.sample(list(value), len(value)):
        other = changed(value[key], world, rng)
        if other is not None:
            return {**value, key: other}
    return {name: each for name, each in value.items() if name != next(iter(value))} if value else None


def _near_set(value: set[object], world: World, rng: Random) -> object | None:
    for gone in rng.sample(sorted(value, key=repr), len(value)):
        other = changed(gone, world, rng)
        if other is not None and other not in value:
            return (value - {gone}) | {other}
    return value - {next(iter(value))} if value else {0}


_NEAR: dict[type, Callable[..., object | None]] = {
    bool: _near_bool, int: _near_int, float: _near_float, str: _near_text, bytes: _near_bytes,
    list: _near_list, tuple: _near_tuple, dict: _near_dict, set: _near_set,
}  # fmt: skip


def _wrong_approx(node: ast.expr, world: World, rng: Random) -> ast.expr | None:
    """A number that no tolerance of its own covers together with the right one."""
    assert isinstance(node, ast.Call)
    try:
        value = ast.literal_eval(node.args[0])
    except _NO_LITERAL:
        return None
    far = changed(value, world, rng) if type(value) in (int, float) else None
    return None if far is None else ast.Call(func=node.func, args=[_expression(far)], keywords=[])


def _wrong_inside(node: ast.expr, world: World, rng: Random) -> ast.expr | None:
    """In a list, tuple or dictionary with computed parts: make one of the others wrong, in place."""
    if not isinstance(node, ast.List | ast.Tuple | ast.Dict):
        return None
    parts = node.values if isinstance(node, ast.Dict) else node.elts
    for place in rng.sample(range(len(parts)), len(parts)):
        other = wrong(parts[place], world, rng)
        if other is not None:
            parts[place] = other
            return node
    return None


def _parts(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.Dict):
        return node.values
    return node.elts if isinstance(node, ast.List | ast.Tuple) else []


def _expression(value: object) -> ast.expr:
    """A literal. Infinity has none that ``repr`` writes."""
    if isinstance(value, dict):
        return ast.Dict(keys=[*map(_expression, value)], values=[*map(_expression, value.values())])
    if isinstance(value, list | tuple):
        kind = ast.List if isinstance(value, list) else ast.Tuple
        return kind(elts=[*map(_expression, value)], ctx=ast.Load())
    if isinstance(value, set) and value:
        return ast.Set(elts=[*map(_expression, value)])
    return ast.Constant(value) if isinstance(value, float) else ast.parse(repr(value), mode="eval").body


# ---- the same value, written another way


def same(node: ast.expr, rng: Random) -> ast.expr:
    """Return an expression of the same value in a form chosen at random; calls and names stay as they are."""
    if isinstance(node, ast.Dict):
        return _same_dict(node, rng)
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        node.elts = [same(each, rng) for each in node.elts]
    if isinstance(node, ast.Set) and _is_literal(node):
        rng.shuffle(node.elts)
    if isinstance(node, ast.Constant) and rng.random() < 0.5:
        return _SAME.get(type(node.value), _as_it_is)(node, rng)
    return node


def _as_it_is(node: ast.Constant, rng: Random) -> ast.expr:
    return node


def _same_int(node: ast.Constant, rng: Random) -> ast.expr:
    assert isinstance(node.value, int)
    step = rng.randrange(1, 10)
    if abs(node.value) > _LONGEST_INT:
        return node
    if rng.random() < 0.5:
        return ast.BinOp(left=_expression(node.value + step), op=ast.Sub(), right=ast.Constant(step))
    return ast.BinOp(left=_expression(node.value - step), op=ast.Add(), right=ast.Constant(step))


def _same_text(node: ast.Constant, rng: Random) -> ast.expr:
    assert isinstance(node.value, str | bytes)
    if len(node.value) < 2:
        return node
    place = rng.randrange(1, len(node.value))
    return ast.BinOp(left=ast.Constant(node.value[:place]), op=ast.Add(), right=ast.Constant(node.value[place:]))


def _same_dict(node: ast.Dict, rng: Random) -> ast.expr:
    """Equal dictionaries may differ in order; computed parts keep theirs, since they may depend on it."""
    movable = _is_literal(node) and _all_differ(node.keys)
    pairs = [(key, same(value, rng)) for key, value in zip(node.keys, node.values, strict=True)]
    if movable:
        rng.shuffle(pairs)
    return ast.Dict(keys=[key for key, _ in pairs], values=[value for _, value in pairs])


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except _NO_LITERAL:
        return False
    return True


def _all_differ(keys: Sequence[ast.expr | None]) -> bool:
    values = [key.value for key in keys if isinstance(key, ast.Constant)]
    return len(set(values)) == len(keys)


_SAME: dict[type, Callable[[ast.Constant, Random], ast.expr]] = {int: _same_int, str: _same_text, bytes: _same_text}
