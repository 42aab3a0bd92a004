"""Tests and twins: what contradicts what, what is left alone, and that the form of neither tells which it is."""

from __future__ import annotations

import ast
import unittest
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import UsageError
from ringfence.proctor.counter_tests import Mixed, TestFile, halved
from ringfence.proctor.plausible import changed, same, wrong

VALUES = st.recursive(
    st.sampled_from([None, True, False]) | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    | st.lists(inner, max_size=3).map(tuple),
    max_leaves=8,
)  # fmt: skip
SEEDS = st.integers(0, 2**32)


def _expression(value: object) -> ast.expr:
    return ast.parse(repr(value), mode="eval").body


def _value(node: ast.expr) -> object:
    return eval(compile(ast.fix_missing_locations(ast.Expression(body=node)), "", "eval"))


@given(VALUES, SEEDS)
def test_a_wrong_value_is_another_one_of_the_same_type(value: object, seed: int) -> None:
    other = wrong(_expression(value), {}, Random(seed))
    if other is not None:
        assert _value(other) != value and type(_value(other)) is type(value)


@given(VALUES, SEEDS)
def test_another_form_has_the_same_value(value: object, seed: int) -> None:
    other = _value(same(_expression(value), Random(seed)))
    assert other == value and type(other) is type(value)


@pytest.mark.parametrize("value", [5, 0, True, 1.5, "ab", "", b"ab", [1, 2], [], (1,), {"a": 1}, {1, 2}])
def test_every_kind_of_value_has_wrong_ones(value: object) -> None:
    assert all(changed(value, {}, Random(seed)) != value for seed in range(50))


@pytest.mark.parametrize("value", [3.14, 0.1, 1e22, 2.0])
def test_a_wrong_float_has_no_more_digits_than_the_right_one(value: float) -> None:
    others = {changed(value, {}, Random(seed)) for seed in range(20)} - {None}
    assert {len(repr(other)) for other in others} <= {len(repr(value)), len(repr(value)) + 1}


def test_a_set_is_written_in_any_order_too() -> None:
    orders = {ast.unparse(same(ast.parse("{'a', 'b', 'c'}", mode="eval").body, Random(seed))) for seed in range(20)}
    assert len(orders) > 3


def test_an_approximate_number_is_moved_farther_than_any_tolerance() -> None:
    for text in ("approx(1e9)", "approx(0.5)", "approx(-3)"):
        made = wrong(ast.parse(f"pytest.{text}", mode="eval").body, {}, Random(1))
        assert made is not None
        value, other = (_value(ast.parse(each.partition("(")[2][:-1], mode="eval").body)
                        for each in (text, ast.unparse(made)))  # fmt: skip
        assert other != pytest.approx(value, rel=0.1) and value != pytest.approx(other, rel=0.1)
    assert wrong(ast.parse("approx(3, abs=5)", mode="eval").body, {}, Random(1)) is None


# ---- whole files, run in this process on a program that is right


SOLUTION = SimpleNamespace(
    slug=lambda text: "-".join(text.lower().split()), pair=lambda: (1, 2), table=lambda: {"a": 1, "b": [2, 3]},
    fib=lambda n: n if n < 2 else SOLUTION.fib(n - 1) + SOLUTION.fib(n - 2), half=lambda n: n / 2, yes=lambda: True,
    fail=lambda: int("x"), rows=lambda: [3, 3],
)  # fmt: skip


def _file(text: str, seed: int = 1, candidates: int = 9) -> TestFile:
    return TestFile("test_it.py", text, Random(seed), candidates=candidates)


def _all(file: TestFile, **how: bool) -> Mixed:
    return file.mixed({test.name: test.twins for test in file.tests}, **how)


def _passes(mixed: Mixed) -> dict[str, bool]:
    """Run the functions of a mixed file as pytest would, without fixtures and cases."""
    space: dict[str, object] = {"s": SOLUTION, "pytest": pytest, "unittest": unittest}
    exec(compile(mixed.text, "test_it.py", "exec"), space)
    found = {}
    for name in (*mixed.tests, *mixed.twins):
        owner, _, function = name.rpartition("::")
        made = space[owner] if owner else None
        case = made and issubclass(made, unittest.TestCase)
        test = getattr(made(function) if case else made(), function) if made else space[function]
        try:
            test()
            found[name] = True
        except Exception:
            found[name] = False
    return found


TESTS = '''
def test_text():
    """It gives hello-world."""
    assert s.slug("Hello World") == "hello-world", "it should be hello-world"
def test_number(): assert s.fib(10) == 55 and s.fib(1) == 1
def test_pair(): assert s.pair() == (1, 2)
def test_left(): assert {"a": 1, "b": [2, 3]} == s.table()
def test_variable():
    expected = [0, 1, 1, 2]
    assert [s.fib(n) for n in range(4)] == expected
def test_approximate(): assert s.half(3) == pytest.approx(1.5)
def test_condition(): assert s.yes()
def test_refused():
    with pytest.raises(ValueError):
        s.fail()
def test_each():
    for n in (1, 2):
        assert s.fib(n) == 1
class Numbers(unittest.TestCase):
    def test_equal(self): self.assertEqual(s.fib(5), 5, "five")
    def test_in(self): self.assertIn(1, s.pair())
    def test_raises(self): self.assertRaises(ValueError, s.fail)
'''


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("how", [{}, {"in_order": True, "forms": False}, {"turn": False}], ids=str)
def test_for_a_right_program_tests_pass_and_all_their_twins_fail(seed: int, how: dict[str, bool]) -> None:
    file = _file(TESTS, seed)
    mixed = _all(file, **how)
    assert len(file.tests) == 12 and all(test.twins for test in file.tests)
    passes = _passes(mixed)
    assert all(passes[name] for name in mixed.tests)
    assert not [name for name in mixed.twins if passes[name]], mixed.text


def test_nothing_in_the_file_tells_which_is_which() -> None:
    file = _file(TESTS)
    text = _all(file).text
    assert "it should be" not in text and "It gives" not in text and "'five'" not in text
    assert not [test.name for test in file.tests if f" {test.name.rpartition('::')[2]}(" in text]
    names = [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    assert len({len(name) for name in names }) == 1


def test_tests_are_rewritten_in_the_forms_that_twins_have() -> None:
    """Seen over many files: every form that a twin has, some test has too."""
    text = "def test_a(): assert s.fib(10) == 55\n"
    forms: dict[bool, set[str]] = {True: set(), False: set()}
    for seed in range(100):
        file = _file(text, seed, candidates=1)
        mixed = _all(file)
        for node in ast.parse(mixed.text).body:
            assert isinstance(node, ast.FunctionDef) and isinstance(node.body[0], ast.Assert)
            shape = "".join(char for char in ast.unparse(node.body[0].test) if not char.isdigit())
            forms[node.name in mixed.tests].add(shape)
    assert forms[True] == forms[False] and len(forms[True]) == 6


def test_the_order_is_by_lot_or_kept() -> None:
    text = "".join(f"def test_{letter}(): assert s.fib(2) == 1\n" for letter in "abcdefgh")

    def order(seed: int, **how: bool) -> str:
        mixed = _all(_file(text, seed), **how)
        names = [node.name for node in ast.parse(mixed.text).body if isinstance(node, ast.FunctionDef)]
        return "".join(mixed.tests[name][-1] for name in names if name in mixed.tests)

    assert {order(seed, in_order=True) for seed in range(5)} == {"abcdefgh"}
    assert len({order(seed) for seed in range(5)}) > 1


@pytest.mark.slow
def test_where_the_order_is_kept_no_name_is_out_of_order_more_often_than_the_other() -> None:
    """With lots of its own for each twin, it was the twin nearly always."""
    text = "".join(f"def test_{letter}(): assert s.fib(2) == 1\n" for letter in "abcdefgh")
    twin_first = []
    for seed in range(40):
        mixed = _all(_file(text, seed, candidates=1), in_order=True)
        own = {**mixed.tests, **{name: test for name, (test, _) in mixed.twins.items()}}
        names = sorted(own)
        assert [own[name] for name in names[::2]] == [own[name] for name in names[1::2]]
        twin_first += [name in mixed.twins for name in names[::2]]
    assert 0.35 < sum(twin_first) / len(twin_first) < 0.65


@pytest.mark.parametrize("body", [
    "for row in s.rows():\n        assert row == 3",
    "if s.yes():\n        assert s.fib(1) == 1",
    "try:\n        assert s.fib(1) == 1\n    except ValueError: pass",
    "with s.context():\n        assert s.fib(1) == 1",
    "if not s.yes(): return\n    assert s.fib(1) == 1",
    "def inner():\n        assert s.fib(1) == 1\n    inner()",
    "while s.yes():\n        assert s.fib(1) == 1\n        break",
    "s.check(1, 2)",
    "with pytest.raises(s.OwnError):\n        s.fail()",
])  # fmt: skip
def test_what_an_honest_wrong_program_may_not_reach_gets_no_twin(body: str) -> None:
    """Both the test and its twin would pass for a program that returns nothing: no forgery."""
    (test,) = _file(f"def test_it():\n    {body}\n").tests
    assert test.twins == ()


@pytest.mark.parametrize("condition", ["'a' in s.slug('a b')", "s.fib(9) > 5", "s.fib(3) == 2 or s.fib(3) == 4",
                                       "s.fib(3) == s.fib(3)", "not s.fib(0)", "s.slug('a') is not None"])  # fmt: skip
def test_what_other_values_do_not_contradict_is_only_turned_round(condition: str) -> None:
    (test,) = _file(f"def test_it(): assert {condition}\n").tests
    assert [twin.by_value for twin in test.twins] == [False]
    assert [*_passes(_all(_file(f"def test_it(): assert {condition}\n"))).values()] == [True, False]


def test_a_variable_that_is_used_as_input_too_is_not_changed() -> None:
    (test,) = _file("def test_it():\n    x = 5\n    assert s.fib(x) == x\n").tests
    assert [twin.by_value for twin in test.twins] == [False]


def test_one_case_of_a_table_is_made_wrong_under_the_same_ids() -> None:
    text = "@pytest.mark.parametrize('n, e', [(1, 1), (2, 1), (7, 13)])\ndef test_it(n, e): assert s.fib(n) == e\n"
    file = _file(text)
    (test,) = file.tests
    twin = test.twins[0]
    assert twin.by_value and twin.case
    mixed = file.mixed({"test_it": [twin]})
    ids = {ast.unparse(node.decorator_list[0].keywords[0].value)
           for node in ast.parse(mixed.text).body if isinstance(node, ast.FunctionDef)}  # fmt: skip
    assert len(ids) == 1 and twin.case in ids.pop()


def test_ids_of_the_author_stay() -> None:
    text = "@pytest.mark.parametrize('n, e', [(1, 1), (2, 1)], ids=['a', 'b'])\ndef test_it(n, e): assert n == e\n"
    (test,) = _file(text).tests
    assert [twin.case for twin in test.twins] == [""] and "ids=['a', 'b']" in _all(_file(text)).text


@pytest.mark.parametrize("text", [
    "def test_it(): assert s.fib(1) == 1\nalias = test_it\n",
    "def test_it(): assert s.fib(1) == 1\ndef test_it(): assert s.fib(2) == 1\n",
    "def test_it(): assert s.fib(1) == 1\ndef test_other(request): request.getfixturevalue('test_it')\n",
])  # fmt: skip
def test_what_is_known_by_its_name_keeps_it(text: str) -> None:
    test = _file(text).tests[0]
    assert test.plain and not test.twins
    assert "def test_it" in _all(_file(text)).text


A = "class TestA:\n    def test_it(self): assert s.fib(1) == 1\n"


@pytest.mark.parametrize("other", [
    "class TestB(TestA):\n    def test_it(self): assert s.fib(2) == 1\n",
    "class TestB(TestA, elsewhere.Tests): pass\n",
    "def f():\n    class TestB(TestA): pass\n",
    "class TestA(object): pass\n",
])  # fmt: skip
def test_what_others_may_replace_or_inherit_keeps_its_name(other: str) -> None:
    file = _file(A + other)
    assert all(test.plain for test in file.tests)
    assert _all(file).text.count("def test_it") == (A + other).count("def test_it")


def test_what_a_class_inherits_within_the_file_has_twins() -> None:
    file = _file(A + "class TestB(TestA):\n    def test_more(self): assert s.fib(2) == 1\n")
    assert [(test.name, test.plain) for test in file.tests] == [("TestA::test_it", False), ("TestB::test_more", False)]
    passes = _passes(_all(file))
    assert sum(passes.values()) == 2 < len(passes)


def test_async_tests_have_twins_too() -> None:
    (test,) = _file("async def test_it(): assert await s.fib(1) == 1\n").tests
    assert test.twins and "async def" in _all(_file("async def test_it(): assert await s.fib(1) == 1\n")).text


def test_fixtures_and_what_stands_between_tests_stay_in_their_place() -> None:
    text = "CASES = [1]\n@pytest.mark.parametrize('n', CASES)\ndef test_a(n): assert s.fib(n) == 1\nCASES = [2]\n"
    assert _all(_file(text)).text.rstrip().endswith("CASES = [2]")


def test_a_file_that_is_no_python_is_refused() -> None:
    with pytest.raises(UsageError, match=r"test_it\.py: a test file that can't be read"):
        _file("def test_(:\n")


def test_halves_have_one_of_each_pair_and_all_else_twice() -> None:
    text = TESTS + "def test_alone(): print(s)\n"
    file = _file(text, candidates=1)
    mixed = _all(file)
    one, other = halved(mixed, Random(3))
    for name, (own, _) in mixed.twins.items():
        real = next(each for each, test in mixed.tests.items() if test == own)
        short = [each.rpartition("::")[2] for each in (name, real)]
        assert sorted(each in one for each in short) == [False, True]
        assert all((each in one) != (each in other) for each in short)
    alone = next(name for name, own in mixed.tests.items() if own == "test_alone")
    assert alone in one and alone in other


@pytest.mark.slow
def test_halves_are_by_lot() -> None:
    mixed = _all(_file(TESTS, candidates=1))
    real = {name.rpartition("::")[2] for name in mixed.tests}
    assert len({sum(name in halved(mixed, Random(seed))[0] for name in real) for seed in range(30)}) > 3
