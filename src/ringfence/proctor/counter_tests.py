"""Counter-tests: each test of a file gets a twin that expects something wrong, and both are run in one file. Pure.

A runner in the same interpreter as the code that it judges can't trust a «passed»: that code can patch pytest, return
what is equal to everything, read the expected value in the caller's frame, or end the process. It can't know which of
two tests that look alike is the wrong one. Both can't hold, so a program for which both pass has forged something.

Each test gets one twin and no more: among three variants with one difference each, the right one would be the one that
both others resemble.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Container, Iterator, Mapping, Sequence
from random import Random

from ringfence.errors import UsageError
from ringfence.model.record import record
from ringfence.proctor.expectations import TestFunction, name_cases, rewrite, spots, without_words
from ringfence.proctor.plausible import World

_KNOWN_BASES = frozenset({"object", "TestCase", "IsolatedAsyncioTestCase"})
_SKIPPING = frozenset({"skip", "skipif", "skipIf", "skipUnless"})
_DIGITS = 12


@record
class Twin:
    """A test with one expectation made wrong."""

    node: TestFunction
    case: str = ""
    """The id of the only case that is wrong; empty: all of them are."""
    by_value: bool = True


@record(eq=False)
class Test:
    """A test as written in its file."""

    __test__ = False

    name: str
    """``Class::function``, or the function alone."""
    node: TestFunction
    twins: tuple[Twin, ...] = ()
    """Candidates; empty: none of its expectations can be made wrong."""
    plain: bool = True
    """It is left where it is, under its own name: something else may depend on that."""

    @property
    def may_skip(self) -> bool:
        """Whether a mark on it can skip it."""
        marks = [each.func if isinstance(each, ast.Call) else each for each in self.node.decorator_list]
        return any(_last(mark) in _SKIPPING for mark in marks)


@record
class Mixed:
    """A file in which tests and twins have names that give nothing away."""

    text: str
    tests: Mapping[str, str]
    """By the name in this file, ``Class::function``: the test's own."""
    twins: Mapping[str, tuple[str, Twin]]
    """By the name in this file: the own name of the test that it contradicts, and the twin."""


class TestFile:
    """The tests of one file, and what can be made of them."""

    __test__ = False

    def __init__(self, path: str, text: str, rng: Random, *, candidates: int = 2) -> None:
        self.path = path
        self._rng = rng
        try:
            self._tree = ast.parse(text, path)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise UsageError(f"{path}: a test file that can't be read: {error}") from error
        found = [*_tests(self._tree, _words(self._tree))]
        for test in found:
            if not test.plain:
                without_words(test.node)
                name_cases(test.node, rng)
        world: World = {}
        self.tests = [_with_twins(test, world, rng, candidates) for test in found]

    def mixed(
        self, chosen: Mapping[str, Sequence[Twin]], *, in_order: bool = False, forms: bool = True, turn: bool = True
    ) -> Mixed:
        """Return the file with these twins beside the tests. ``in_order``: the tests stay in their order. ``forms``:
        expectations are written in other forms, ``turn``: conditions too."""
        names = _Names(self.tests, chosen, self._rng, in_order)
        tree = copy.deepcopy(self._tree)
        for prefix, body in _bodies(tree):
            tests = {test.name: test for test in self.tests if not test.plain and test.name.startswith(prefix)}
            body[:] = self._laid_out(prefix, body, tests, names, in_order)
        for function in names.made:
            if forms:
                rewrite(function, self._rng, turn=turn)
        return Mixed(text=ast.unparse(ast.fix_missing_locations(tree)) + "\n", tests=names.tests, twins=names.twins)

    def _laid_out(
        self, prefix: str, body: list[ast.stmt], tests: Mapping[str, Test], names: _Names, in_order: bool
    ) -> list[ast.stmt]:
        """Shuffle each uninterrupted run of tests together with its twins."""
        done: list[ast.stmt] = []
        run: list[Test] = []
        for statement in [*body, None]:
            test = tests.get(prefix + statement.name) if isinstance(statement, TestFunction) else None
            if test is not None:
                run.append(test)
                continue
            done += self._shuffled(run, names, in_order)
            run = []
            if statement is not None:
                done.append(statement)
        return done

    def _shuffled(self, run: Sequence[Test], names: _Names, in_order: bool) -> list[TestFunction]:
        """In order: each twin stands right before or after its test, so that both find nearly the same left-overs."""
        groups = [[names.node_of(test), *names.twins_of(test)] for test in run]
        if in_order:
            for group in groups:
                self._rng.shuffle(group)
        mixed = [node for group in groups for node in group]
        if not in_order:
            self._rng.shuffle(mixed)
        return mixed


def halved(mixed: Mixed, rng: Random) -> tuple[str, str]:
    """Return the file twice; each copy has either the test or its twin, chosen at random. Code that sees only one of
    them has nothing to compare it with."""
    named = {own: name for name, own in mixed.tests.items()}
    left_out: tuple[set[str], set[str]] = (set(), set())
    for twin, (own, _) in mixed.twins.items():
        pair = rng.sample((twin, named[own]), 2)
        for names, name in zip(left_out, pair, strict=True):
            names.add(name)
    return _without(mixed.text, left_out[0]), _without(mixed.text, left_out[1])


def _without(text: str, names: Container[str]) -> str:
    tree = ast.parse(text)
    for prefix, body in _bodies(tree):
        kept = [each for each in body if not isinstance(each, TestFunction) or prefix + each.name not in names]
        body[:] = kept or [ast.Pass()]
    return ast.unparse(tree) + "\n"


class _Names:
    """Names that give nothing away, and whose they are."""

    def __init__(
        self, tests: Sequence[Test], chosen: Mapping[str, Sequence[Twin]], rng: Random, in_order: bool
    ) -> None:
        self.tests: dict[str, str] = {}
        self.twins: dict[str, tuple[str, Twin]] = {}
        self.made: list[TestFunction] = []
        self._chosen = chosen
        self._lots = _dealt({test.name: 1 + len(chosen.get(test.name, ())) for test in tests if not test.plain},
                            rng, in_order)  # fmt: skip
        self.tests |= {test.name: test.name for test in tests if test.plain}

    def node_of(self, test: Test) -> TestFunction:
        node, name = self._named(test, test.node, self._lots[test.name].pop())
        self.tests[name] = test.name
        return node

    def twins_of(self, test: Test) -> Iterator[TestFunction]:
        for twin in self._chosen.get(test.name, ()):
            node, name = self._named(test, twin.node, self._lots[test.name].pop())
            self.twins[name] = (test.name, twin)
            yield node

    def _named(self, test: Test, node: TestFunction, lot: int) -> tuple[TestFunction, str]:
        made = copy.deepcopy(node)
        made.name = f"test_{lot:0{_DIGITS}x}"
        self.made.append(made)
        prefix, separator, _ = test.name.rpartition("::")
        return made, prefix + separator + made.name


def _dealt(wanted: Mapping[str, int], rng: Random, in_order: bool) -> dict[str, list[int]]:
    """Return as many random numbers as each name wants. ``in_order``: a name's numbers lie between those of its
    neighbours, and those of a test and its twin are in random order: else the one out of order would be the twin."""
    lots = [rng.getrandbits(4 * _DIGITS) for _ in range(sum(wanted.values()))]
    if in_order:
        lots.sort()
    dealt: dict[str, list[int]] = {}
    for name in sorted(wanted):
        dealt[name], lots = lots[: wanted[name]], lots[wanted[name] :]
        rng.shuffle(dealt[name])
    return dealt


def _bodies(tree: ast.Module) -> Iterator[tuple[str, list[ast.stmt]]]:
    """The places with tests: the file itself, and its classes."""
    yield "", tree.body
    for node in _closed(tree).values():
        if node.name.startswith("Test") or any(base != "object" for base in _bases(node)):
            yield f"{node.name}::", node.body


def _closed(tree: ast.Module) -> dict[str, ast.ClassDef]:
    """Classes whose methods can be renamed: what they inherit from and what inherits from them is in this file too."""
    everywhere = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    names = [node.name for node in everywhere]
    found = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef) and names.count(node.name) == 1}
    while True:
        heirs = {base for node in everywhere if node.name not in found for base in _bases(node)}
        kept = {name: node for name, node in found.items() if name not in heirs
                and all(base in _KNOWN_BASES or base in found for base in _bases(node))}  # fmt: skip
        if len(kept) == len(found):
            return kept
        found = kept


def _bases(node: ast.ClassDef) -> list[str]:
    return [_last(base) for base in node.bases]


def _replaced(tree: ast.Module) -> set[str]:
    """Names of methods that a class may replace in one that it inherits from."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    names = {node.name for node in classes}
    parents = {base for node in classes for base in _bases(node)}
    related = [node for node in classes if node.name in parents or names & {*_bases(node)}]
    methods = [each.name for node in related for each in node.body if isinstance(each, TestFunction)]
    return {name for name in methods if methods.count(name) > 1}


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _tests(tree: ast.Module, bound: Container[str]) -> Iterator[Test]:
    replaced = _replaced(tree)
    for prefix, body in _bodies(tree):
        functions = [node for node in body if isinstance(node, TestFunction) and node.name.startswith("test")]
        names = [node.name for node in functions]
        for node in functions:
            plain = node.name in bound or names.count(node.name) > 1 or bool(prefix and node.name in replaced)
            yield Test(name=prefix + node.name, node=node if plain else copy.deepcopy(node), plain=plain)


def _words(tree: ast.Module) -> set[str]:
    """Every name and text in the file except in definitions: whatever is among them may be looked up by its name."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def _with_twins(test: Test, world: World, rng: Random, count: int) -> Test:
    twins = () if test.plain else tuple(_twins(test.node, world, rng, count))
    return Test(name=test.name, node=test.node, twins=twins, plain=test.plain)


def _twins(function: TestFunction, world: World, rng: Random, count: int) -> Iterator[Twin]:
    """Candidates, those with another value first: a negated condition is easier to see through."""
    found = spots(function)
    places = rng.sample(range(len(found)), len(found))
    known = {ast.dump(function)}
    for place in sorted(places, key=lambda place: not found[place].by_value):
        node = copy.deepcopy(function)
        spot = spots(node)[place]
        if spot.change(rng, world) and (text := ast.dump(node)) not in known:
            known.add(text)
            yield Twin(node=node, case=spot.case, by_value=spot.by_value)
        if len(known) > count:
            return
