"""Values across the border: every kind comes back as it was, everything else is refused by name and place."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import math
import os
import pathlib
import subprocess
import sys
import time
from collections import OrderedDict, namedtuple
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ringfence.python_jobs import decode as value_reader
from ringfence.python_jobs.decode import Undecodable, decode
from ringfence.python_jobs.encode import (
    MAX_DEPTH,
    MAX_PLAIN_KEYS,
    MIN_BESIDE_BYTES,
    TooLarge,
    Unsendable,
    encode,
    encode_apart,
)

pytestmark = pytest.mark.unmeasured

ZONE = dt.timezone(dt.timedelta(hours=-3, minutes=-30, seconds=5))
VALUES = (
    None, True, False, 0, -1, 2**63 - 1, 2**63, -(2**63), 10**5000, -(10**5000), 0.1, -0.0, 5e-324, math.inf, -math.inf,
    "", "ä€𐍈", "\ud800", "\ud83d\ude00", "\U0001f600", "\0\x1f\"\\\u2028", b"", bytes(range(256)),
    [], [1, "a", None, 2.5], [2**70, 1], [[[]]], (), (1,), ((1, 2), [3]), {}, {"a": 1}, {"$tuple": [1]},
    {"$x": 1, "y": 2},
    {1: "int", "1": "str", None: 0, True + 1: 3, (1, "k"): [1], 2.5: {}, b"k": 0, frozenset({1}): 1},
    set(), {1, 2}, {(1, "a"), "b"}, frozenset(), frozenset({frozenset({1})}), 1 + 2j, complex(-0.0, math.inf),
    dt.datetime(2024, 2, 29, 23, 59, 59, 999999), dt.datetime(2024, 10, 27, 2, 30, fold=1),
    dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 1, tzinfo=ZONE), dt.date(9999, 12, 31),
    dt.time(1, 2, 3, 4), dt.time(1, tzinfo=ZONE), dt.timedelta(days=-1, microseconds=1), dt.timedelta.max,
    Decimal("1.10"), Decimal("-0"), Decimal("Infinity"), Decimal("1E+999999"), UUID(int=5),
)  # fmt: skip


def _same(left: object, right: object) -> bool:
    """Equal, and of equal types all the way down; repr tells -0.0, nan, fold and Decimal's zeros apart."""
    if isinstance(left, set | frozenset):
        return type(left) is type(right) and left == right
    return type(left) is type(right) and (left == right or left != left) and _told(left) == _told(right)


def _told(value: object) -> str:
    return hex(value) if type(value) is int else repr(value)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_comes_back_as_it_was(value: object) -> None:
    limit = sys.get_int_max_str_digits()
    assert _same(value, decode(encode(value)))
    inner = decode(encode([1, {"k": (value,)}]))
    assert inner[0] == 1 and _same(value, inner[1]["k"][0])
    assert sys.get_int_max_str_digits() == limit


def test_not_a_number_comes_back() -> None:
    for nan in (math.nan, Decimal("NaN"), Decimal("sNaN123")):
        assert repr(decode(encode([nan]))) == repr([nan])


_LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(categories=("L", "Cs", "Cc"))),
    st.binary(), st.complex_numbers(), st.decimals(), st.uuids(), st.dates(), st.timedeltas(),
    st.datetimes(timezones=st.sampled_from([None, dt.UTC, ZONE])), st.times(),
)  # fmt: skip
_KEYS = st.one_of(st.text(), st.integers(), st.booleans(), st.none(), st.binary(), st.tuples(st.text(), st.integers()))
_ANY = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(_KEYS, inner), st.sets(_KEYS), st.frozensets(_KEYS)
    ),
    max_leaves=20,
)


@pytest.mark.slow
@given(_ANY)
@settings(max_examples=100, deadline=None)
def test_any_value_comes_back(value: object) -> None:
    back = decode(encode(value))
    assert type(back) is type(value)
    assert encode(back) == encode(value) or isinstance(value, set | frozenset) or "{" in repr(value)
    assert "nan" in repr(value).lower() or back == value


@pytest.mark.slow
@given(st.one_of(st.binary(), _ANY.map(encode).flatmap(lambda good: st.tuples(
    st.just(good), st.integers(0, len(good)), st.binary(max_size=4), st.integers(0, 5))
    .map(lambda cut: cut[0][:cut[1]] + cut[2] + cut[0][cut[1] + cut[3]:]))))  # fmt: skip
@example(b'{"$tuple":3}')
@example(b'{"$set":[[1]]}')
@example(b'{"$dict":[[1]]}')
@example(b'{"$datetime":["2024-01-01",2]}')
@example(b'{"$timedelta":[1e400,0,0]}')
@example(b'{"$timedelta":[9999999999,0,0]}')
@example(b'{"$decimal":[0,[1],"F"]}')
@example(b'{"$decimal":"x"}')
@example(b'{"$uuid":7}')
@example(b'{"$int":{}}')
@example(b'{"$unknown":1}')
@example(b'{"$complex":["1","x"]}')
@example(b"1" * 5000)
@settings(max_examples=150, deadline=None)
def test_any_bytes_give_a_value_or_one_kind_of_error(data: bytes) -> None:
    try:
        encode(decode(data))
    except Undecodable as error:
        assert "\n" not in str(error) and len(str(error)) < 100


@dataclasses.dataclass
class _Point:
    x: int


_Pair = namedtuple("_Pair", "a b")


class _Colour(enum.IntEnum):
    RED = 1


class _Tree(dt.tzinfo):
    pass


REFUSED = (
    (_Point(1), "_Point", "asdict"), (_Pair(1, 2), "_Pair", "tuple(it)"), (_Colour.RED, "_Colour", ".value"),
    (OrderedDict(a=1), "OrderedDict", "dict(it)"), (bytearray(b"x"), "bytearray", "bytes(it)"),
    (object(), "object", "plain"),
    (pathlib.Path("/x"), "Path", "str(it)"), (iter([1]), "list_iterator", "list(it)"), (print, "function", "plain"),
    (type("S", (str,), {})("x"), "S", "plain"), (dt.datetime(2024, 1, 1, tzinfo=_Tree()), "named time zone", "utc"),
    (..., "ellipsis", "plain"),
)  # fmt: skip


@pytest.mark.parametrize(("value", "name", "hint"), REFUSED, ids=[row[1] for row in REFUSED])
def test_what_has_no_encoding_is_refused_with_its_type_its_place_and_what_to_do(value, name, hint) -> None:
    with pytest.raises(Unsendable) as refused:
        encode({"a": [1, (2, value)]})
    assert name in refused.value.type_name
    assert hint in refused.value.hint
    assert refused.value.place == "value['a'][1][1]"


@pytest.mark.parametrize(("value", "place"), (
    ({1: {object(): 1}}, "value[1] (key object)"), ([{frozenset({object})}], "value[0] (member) (member)"),
    (object, "value"), ({"k" * 100: object()}, f"value['{'k' * 59}…]"),
), ids=("key", "member", "top", "long key"))  # fmt: skip
def test_the_place_of_what_is_refused_is_named(value: object, place: str) -> None:
    with pytest.raises(Unsendable) as refused:
        encode(value)
    assert refused.value.place == place


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[object] = [1]
    loop.append({"again": loop})
    with pytest.raises(Unsendable, match=r"nested so deep.*contains itself"):
        encode(loop)


def test_a_value_may_be_as_deep_as_allowed_and_no_deeper() -> None:
    value: object = ()
    for _ in range(MAX_DEPTH - 1):
        value = {(): value}
    assert decode(encode(value)) == value
    with pytest.raises(Unsendable):
        encode([value])


@pytest.mark.slow
def test_shared_parts_that_multiply_end_as_too_large() -> None:
    doubled: object = "x"
    for _ in range(60):
        doubled = [doubled, doubled]
    with pytest.raises(TooLarge):
        encode(doubled, max_bytes=100_000)
    assert decode(encode([[part := [1]], part])) == [[[1]], [1]]


def test_a_value_of_more_bytes_than_allowed_is_refused_on_both_sides() -> None:
    assert decode(encode("x" * 8, max_bytes=10), max_bytes=10) == "x" * 8
    with pytest.raises(TooLarge, match="11 bytes, 10 are allowed"):
        encode("x" * 9, max_bytes=10)
    with pytest.raises(Undecodable, match="11 bytes, 10 are allowed"):
        decode(encode("x" * 9), max_bytes=10)


HOSTILE_DEPTHS = (
    b"[" * 100_000,
    b'[{"a":' * 50_000,
    b'{"$tuple":[' * 50_000 + b"]}" * 50_000,
    b'["\\"' + b"]" * 999 + b'",' + b"[" * 999,
)


@pytest.mark.parametrize("data", HOSTILE_DEPTHS, ids=range(len(HOSTILE_DEPTHS)))
def test_depth_is_measured_before_parsing_for_the_parser_trusts_the_hosts_recursion_limit(data, monkeypatch) -> None:
    monkeypatch.setattr(value_reader, "_decoder", lambda data: pytest.fail("it was parsed"))
    with pytest.raises(Undecodable, match="nested too deep"):
        decode(data)


def test_brackets_within_strings_are_no_depth() -> None:
    value = ["[" * 500, '"\\' + "{" * 500, {"[" * 300: "]"}]
    assert decode(encode(value)) == value


def test_measuring_depth_takes_linear_time_for_strings_that_never_end() -> None:
    def seconds(count: int) -> float:
        data = b'"' + b'\\"[' * count
        start = time.process_time()
        with pytest.raises(Undecodable):
            decode(data)
        return time.process_time() - start

    seconds(1000)
    # Ten times the bytes: quadratic time would be a hundred times as long.
    assert seconds(40_000) < max(seconds(4_000), 0.002) * 50


def test_long_numbers_are_refused_also_where_the_host_has_lifted_pythons_bound() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        with pytest.raises(Undecodable):
            decode(b"9" * 5000)
        assert decode(encode([2**63 - 1, -(2**63) + 1, 2**64])) == [2**63 - 1, -(2**63) + 1, 2**64]
    finally:
        sys.set_int_max_str_digits(before)


@pytest.mark.parametrize("made", (set, frozenset, dict.fromkeys), ids=("set", "frozenset", "dict"))
def test_keys_that_were_chosen_to_have_one_hash_are_refused(made) -> None:
    colliding = [number * sys.hash_info.modulus for number in range(1, 200)]
    assert len(set(map(hash, colliding))) == 1
    with pytest.raises(Undecodable):
        decode(encode(made(colliding)))
    honest = made([2.0**power for power in range(1000)])
    assert decode(encode(honest)) == honest


M = sys.hash_info.modulus


def _same_hash_tree(depth: int, leaf: int) -> str:
    """Pairs of pairs, all with one hash: telling two of them apart takes quadratic time."""
    if depth == 0:
        return str(M * leaf)
    return _in("$frozenset", f"{_same_hash_tree(depth - 1, leaf * 2)},{_same_hash_tree(depth - 1, leaf * 2 + 1)}")


def _in(word: str, inner: object, times: int = 1) -> str:
    return f'{{"{word}":[' * times + str(inner) + "]}" * times


COSTLY_KEYS = {
    # Python turns the number into a Decimal to compare them, which takes quadratic time.
    "a long number beside a Decimal": f'{{"$set":[{{"$decimal":"5"}},{{"$int":"{(M << 800_000) + 5:x}"}}]}}',
    "sets of sets": f'{{"$set":[{_same_hash_tree(9, 1)},{_same_hash_tree(9, 3)}]}}',
    "sets of sets in tuples": f'{{"$set":[{",".join(_in("$tuple", _same_hash_tree(9, leaf)) for leaf in (1, 3))}]}}',
    "sets as deep as may be": f'{{"$set":[{",".join(_in("$frozenset", M * leaf, 60) for leaf in (1, 3))}]}}',
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("text", COSTLY_KEYS.values(), ids=COSTLY_KEYS)
def test_keys_that_take_long_to_tell_apart_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Undecodable, match="too many keys with one hash"):
        decode(text.encode())
    monkeypatch.setattr(value_reader, "_weight", lambda key: 0)
    assert len(decode(text.encode())) == 2


def test_keys_that_happen_to_share_a_hash_come_back() -> None:
    grid = {(x, y, z): x for x in range(-4, 4) for y in range(-4, 4) for z in range(-4, 4)}
    edges = {frozenset({one, other}) for one in range(-9, 9) for other in range(-9, 9)}
    assert len(set(map(hash, grid))) < len(grid)
    assert decode(encode([grid, edges])) == [grid, edges]


@pytest.mark.slow
@pytest.mark.parametrize("made", (set, frozenset, dict.fromkeys), ids=("set", "frozenset", "dict"))
def test_keys_whose_hash_is_no_secret_are_bounded_on_both_sides(made) -> None:
    most = made(range(MAX_PLAIN_KEYS))
    assert decode(encode(most)) == most
    with pytest.raises(TooLarge, match="more than 32768 keys that are not strings; return a list of pairs"):
        encode([most, made([1.5])])
    last = encode(made([1.5]))
    with pytest.raises(Undecodable, match="more than 32768 keys"):
        decode(b"[" + encode(most) + b"," + last + b"]")


@pytest.mark.slow
@pytest.mark.parametrize("key", (str, lambda number: b"%d" % number, lambda number: ("k", number)),
                         ids=("str", "bytes", "tuple"))  # fmt: skip
def test_keys_with_a_random_hash_may_be_many(key) -> None:
    many = {key(number) for number in range(MAX_PLAIN_KEYS + 9)}
    assert decode(encode(many)) == many


def test_a_word_that_is_spelled_with_escapes_is_bounded_too() -> None:
    keys = ",".join(map(str, range(MAX_PLAIN_KEYS + 1)))
    for word in ("$set", "\\u0024set", "$s\\u0065t"):
        with pytest.raises(Undecodable):
            decode(f'{{"{word}":[{keys}]}}'.encode())
    assert decode(encode([{1, 2}, {3: 4}, (5,)])) == [{1, 2}, {3: 4}, (5,)]


READ_WITH_A_SEED = """
import json, sys
from ringfence.python_jobs.decode import Undecodable, decode
many, few = range(32769), range(32768)
def told(text):
    try: return len(decode(text.encode()))
    except Undecodable: return "refused"
rows = json.dumps([{"name": number, "\\"": 1} for number in many])
print(*map(told, (json.dumps(dict.fromkeys(many)), json.dumps(dict.fromkeys(few)),
    json.dumps({"$set": list(map(str, many))}), json.dumps({"$set": list(map(str, few))}), rows)))
"""


@pytest.mark.system
@pytest.mark.parametrize("seed", ("0", "5", "random"))
def test_strings_are_bounded_too_where_their_hash_is_no_secret(seed: str) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run([sys.executable, "-c", READ_WITH_A_SEED], env=environment, capture_output=True, check=False)
    free = seed == "random"
    names, members = ("32769", "32769") if free else ("refused", "refused")
    assert done.stdout.decode().split() == [names, "32768", members, "32768", "32769"], done.stderr.decode()


def test_names_are_counted_in_linear_time_for_strings_that_never_end() -> None:
    assert value_reader._NAMES.findall(b'"' + b'\\"' * 3) == [(b'\\"' * 3, b"")]
    assert value_reader._NAMES.findall(rb'{"a\"b" : ["c:", "d"], "e":1}') == [
        (rb"a\"b", b":"), (b"c:", b""), (b"d", b""), (b"e", b":")
    ]  # fmt: skip


# ---- long bytes beside the text

LONG = bytes(range(256)) * 4


@pytest.mark.slow
@given(_ANY)
@settings(max_examples=100, deadline=None)
def test_any_value_comes_back_with_its_bytes_beside_it(value: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ringfence.python_jobs.encode.MIN_BESIDE_BYTES", 1)
        text, beside = encode_apart(value)
    back = decode(text, b"".join(beside))
    assert type(back) is type(value)
    assert "nan" in repr(value).lower() or back == value


def test_only_long_bytes_stand_beside_the_text_and_as_they_are() -> None:
    assert len(LONG) == MIN_BESIDE_BYTES
    text, beside = encode_apart({LONG: [b"short", LONG[1:], LONG + b"x"]})
    assert beside == [LONG, LONG + b"x"] and b"$bytes" in text and len(text) < 1600
    assert decode(text, b"".join(beside)) == {LONG: [b"short", LONG[1:], LONG + b"x"]}
    assert encode_apart([b"short"]) == (encode([b"short"]), [])


def test_bytes_may_be_as_long_as_a_value_may_be_and_no_longer() -> None:
    text, beside = encode_apart(bytes(5000), max_bytes=5000)
    assert decode(text, beside[0], max_bytes=5000) == bytes(5000)
    for value in (bytes(5001), [bytes(3000)] * 2, [bytes(3000), "x" * 6100], [bytes(1024), "x" * 5000]):
        with pytest.raises(TooLarge, match="5000 are allowed"):
            encode_apart(value, max_bytes=5000)


def test_parts_that_are_shared_many_times_over_are_refused_before_they_are_copied() -> None:
    with pytest.raises(TooLarge):
        encode_apart([bytes(1 << 20)] * 100_000)


@pytest.mark.parametrize(
    "place", ["[0,5]", "[-1,2]", "[2,-1]", "[4,1]", "[0,1,2]", "[0]", "3", "null", '["0",1]', "[true,1]", "[0,1.0]",
              "[0,99999999999999999999]", "[[0],1]"],
)  # fmt: skip
def test_a_place_that_is_not_beside_the_text_is_undecodable(place: str) -> None:
    with pytest.raises(Undecodable):
        decode(b'{"$beside":%s}' % place.encode(), b"abcd")
    assert decode(b'{"$beside":[1,3]}', b"abcd") == b"bcd"


def test_no_more_bytes_are_made_than_arrived() -> None:
    many = b"[" + b",".join([b'{"$beside":[0,4]}'] * 1000) + b"]"
    with pytest.raises(Undecodable):
        decode(many, b"abcd")
    assert decode(b'[{"$beside":[0,2]},{"$beside":[0,2]}]', b"abcd") == [b"ab", b"ab"]
    with pytest.raises(Undecodable):
        decode(b'{"$beside":[0,1]}')  # nothing stands beside it


def test_keys_that_stand_beside_the_text_are_counted_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfence.python_jobs.decode._SEED_IS_KNOWN", True)
    keys = b",".join(b'{"$beside":[%d,1]}' % place for place in range(MAX_PLAIN_KEYS + 1))
    with pytest.raises(Undecodable, match="keys"):
        decode(b'{"$set":[%s]}' % keys, bytes(MAX_PLAIN_KEYS + 1))
