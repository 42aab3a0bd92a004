"""Strict JSON in, canonical JSON out: RFC 8785's own vectors, a second implementation, and fuzzed input."""

from __future__ import annotations

import json
import math
import struct
import time
import tracemalloc

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.errors import EvidenceError, VerificationError
from ringfence.evidence import dsse, schema, strictjson
from ringfence.evidence.canonical import canonical
from ringfence.evidence.shape import Leaf
from ringfence.evidence.strictjson import decode, parse
from ringfence.evidence.trust import Trust
from ringfence.evidence.verify import verify_bundle, verify_verdict

pytestmark = pytest.mark.unmeasured

# RFC 8785, appendix B: IEEE 754 bits and their text; None where there is none.
NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "7fffffffffffffff": None,
    "7ff0000000000000": None,
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}


@pytest.mark.parametrize(("bits", "text"), NUMBERS.items())
def test_a_number_is_written_as_rfc_8785_appendix_b_says(bits: str, text: str | None) -> None:
    value = struct.unpack(">d", bytes.fromhex(bits))[0]
    if text is None:
        with pytest.raises(EvidenceError):
            canonical(value)
    else:
        assert canonical(value) == text.encode()


def test_the_example_of_rfc_8785_section_3_2_2() -> None:
    source = rb"""{
      "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
      "literals": [null, true, false]
    }"""
    expected = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert canonical(parse(source)) == expected.encode()


def test_the_sorting_example_of_rfc_8785_section_3_2_3() -> None:
    source = rb"""{
      "\u20ac": "Euro Sign", "\r": "Carriage Return", "\ufb33": "Hebrew Letter Dalet With Dagesh", "1": "One",
      "\ud83d\ude00": "Emoji: Grinning Face", "\u0080": "Control", "\u00f6": "Latin Small Letter O"
    }"""
    order = ["Carriage Return", "One", "Control", "Latin Small Letter O", "Euro Sign", "Emoji: Grinning Face"]
    found = list(json.loads(canonical(parse(source))).values())
    assert found == [*order, "Hebrew Letter Dalet With Dagesh"]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**53) + 1, max_value=2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=20,
)


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(VALUES)
def test_both_paths_agree_with_the_rfc8785_package(value: object) -> None:
    assert canonical(value) == rfc8785.dumps(value)  # type: ignore[arg-type]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_canonical_text_reads_back_as_the_same_canonical_text(value: object) -> None:
    text = canonical(value)
    # A float beyond 2^53 is written without a point and so reads as an unsafe integer: refused, not changed.
    try:
        assert canonical(parse(text)) == text
    except EvidenceError as error:
        assert "beyond 2^53" in str(error)


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), 2**53, -(2**53), "\ud800", {"\udfff": 1}, {1: 2}, (1,), b"x", {1}, object()],
)
def test_a_value_without_a_canonical_form_is_refused(value: object) -> None:
    with pytest.raises(EvidenceError):
        canonical(value)
    with pytest.raises(EvidenceError):
        canonical({"x": [value, 0.5]})


def test_true_and_one_have_different_canonical_texts() -> None:
    assert canonical({"n": True}) != canonical({"n": 1})


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"a":1}',
        b'{"a":1,"\\u0061":1}',
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"-1e999",
        b"9007199254740992",
        b"-9007199254740992",
        b"1" * 100_000,
        b"1e" + b"9" * 100_000,
        b'"\\ud800"',
        b'{"\\ud800":1}',
        b'["a\\udc00"]',
        b"[" * 65 + b"]" * 65,
        b"[" * 1_000_000,
        b'{"a":' * 100_000,
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        b"\xff",
        b"",
        b"{} {}",
        b"{'a':1}",
        b"[1,]",
        b"// x\n1",
        b"01",
        b"+1",
        b".5",
        b'"\x01"',
    ],
    ids=lambda text: text[:24].decode("latin-1"),
)
def test_what_two_readers_could_read_differently_is_refused(text: bytes) -> None:
    with pytest.raises(EvidenceError):
        parse(text)


def test_the_edges_of_strict_json_are_accepted() -> None:
    assert parse(b"[" * 64 + b"]" * 64)
    assert parse(b"9007199254740991") == 2**53 - 1
    assert parse(b'"\\ud83d\\ude00"') == "😀"
    assert math.copysign(1, parse(b"-0.0")) == -1  # type: ignore[arg-type]


READERS = [
    parse,
    decode,
    Trust.parse,
    lambda data: verify_bundle(data, trust=Trust.unsafe_any_signer()),
    lambda data: verify_verdict(data, trust=Trust.unsafe_any_signer()),
    lambda data: dsse.unseal(data, Trust.unsafe_any_signer()),
]


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=400) | st.text(alphabet='{}[]":,\\u0dD8eE+-.9 ntf', max_size=200).map(str.encode))
def test_no_reader_answers_garbage_with_anything_but_an_evidence_error(data: bytes) -> None:
    for read in READERS:
        try:
            read(data)
        except EvidenceError:
            pass


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    VALUES,
    st.sampled_from(["verdict", "violations", "manifest", "environment", "contents", "anchors", "keys"]),
)
def test_no_verifier_crashes_on_well_formed_nonsense(value: object, member: str) -> None:
    text = json.dumps({"bundle_version": 3, "verdict": {"proctor_version": "ringfence-3/1"}, member: value}).encode()
    for read in READERS[2:]:
        with pytest.raises((EvidenceError, VerificationError)):
            read(text)


@pytest.mark.slow
def test_hostile_input_costs_little_time_and_memory() -> None:
    hostile = [
        b"[" * 2_000_000,
        b"9" * 2_000_000,
        b'{"a":' * 400_000,
        b'"' + b"\\u0061" * 300_000,
        b"[" + b"[]," * 20_000_000 + b"[]]",
        b"[" + b"0," * 4_000_001 + b"0]",
    ]
    started = time.process_time()
    tracemalloc.start()
    for data in hostile:
        with pytest.raises(EvidenceError):
            parse(data)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert time.process_time() - started < 5
    assert peak_bytes < 200 << 20


@pytest.mark.parametrize(
    ("leaf", "good", "bad"),
    [
        (
            schema.BASE64,
            ["", "QQ==", "QUI=", "QUJD"],
            ["QR==", "QQ", "QQ=", "Q Q==", "QQ==\n", "QUJ=", "é===", 1, None],
        ),
        (
            schema.TIME,
            ["2024-02-29T23:59:59Z", "0001-01-01T00:00:00.1Z", "2026-11-01T12:03:00.000001Z"],
            [
                "2023-02-29T00:00:00Z",
                "0000-01-01T00:00:00Z",
                "2026-01-01T00:00:60Z",
                "2026-01-01T00:00:00",
                "2026-01-01",
                "2026-01-01T00:00:00.Z",
                "2026-01-01T00:00:00.1234567Z",
                "2026-01-01T00:00:00+00:00",
                "٢٠٢٦-01-01T00:00:00Z",
            ],
        ),
        (schema.HEX64, ["0" * 64], ["0" * 63, "0" * 65, "A" * 64, "0" * 64 + "\n", "٠" * 64, 0]),
        (schema.COUNT, [0, 1], [True, -1, 1.0, "1", None]),
        (schema.NUMBER, [0, -1, 0.5, 2**53 - 1], [True, "1", None, 2**53, float("nan"), float("inf"), 1e300]),
        (
            schema.PATH_NAME,
            ["a", "a/b", "ä.txt"],
            ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\\b", "a\0", "x" * 256],
        ),
    ],
    ids=["base64", "time", "hex", "count", "number", "path"],
)
def test_a_form_accepts_exactly_one_way_of_writing(leaf: Leaf, good: list[object], bad: list[object]) -> None:
    assert [value for value in good if not leaf.accepts(value)] == []
    assert [value for value in bad if leaf.accepts(value)] == []


@pytest.mark.parametrize("part", (b"0,", b"[[[[]]]],", b'{"a":{}},'), ids=("numbers", "arrays", "objects"))
def test_so_many_values_that_they_fill_the_memory_are_refused_before_they_are_read(
    part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strictjson, "MAX_COMMAS", 1000)
    monkeypatch.setattr(strictjson, "decode", lambda data: pytest.fail("it was read"))
    with pytest.raises(EvidenceError, match="more than 1,000 commas and brackets"):
        strictjson.parse(b"[" + part * 1200 + b"0]")
