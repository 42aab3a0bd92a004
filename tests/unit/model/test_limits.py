"""Sizes and times as people write them, and the one table of limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.model.limits import (
    GIB,
    KIB,
    LIMIT_OF,
    LIMITS,
    MIB,
    format_size,
    parse_duration,
    parse_size,
)
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import field_names

SIZES = {
    "1000": 1000, "1000B": 1000, "512M": 512 * MIB, "512 MiB": 512 * MIB, "1.5GiB": 3 * GIB // 2,
    " 2k ": 2 * KIB, "0.5K": 512, "1t": 2**40, ".5k": 512,
}  # fmt: skip
DURATIONS = {"90": 90, "1.5s": 1.5, "10m": 600, "2h": 7200, "250ms": 0.25, " 3 S ": 3}
MALFORMED = ("", " ", "M", ".", "-1", "+1", "1.2.3", "1e5", "0x10", "nan", "inf", "1 0", "1_000", "٣", "²", "5\nM")


@pytest.mark.parametrize(("text", "size"), SIZES.items())
def test_a_size_is_read_as_people_write_it(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert type(parse_size(text)) is int


@pytest.mark.parametrize(("text", "seconds"), DURATIONS.items())
def test_a_time_is_read_as_people_write_it(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", MALFORMED)
@pytest.mark.parametrize("parse", (parse_size, parse_duration))
def test_what_is_not_a_number_with_a_unit_is_refused(parse, text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)


@pytest.mark.parametrize(("parse", "text"), ((parse_size, "5s"), (parse_duration, "5K"), (parse_size, "5 M B")))
def test_a_unit_of_another_kind_is_refused(parse, text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)


@given(st.integers(min_value=0, max_value=2**80), st.sampled_from(("", "K", "MiB", "GB", "T")))
def test_a_whole_size_is_read_exactly(number: int, unit: str) -> None:
    factor = {"": 1, "K": 2**10, "MiB": 2**20, "GB": 2**30, "T": 2**40}[unit]
    assert parse_size(f"{number}{unit}") == number * factor


# An alphabet of our own: hypothesis spends seconds on a table of all characters first.
@given(st.text("0123456789.,eE+-_ kKmMgGtTbBiIsShHxX\0\n\u0663\u00b2\ud800\U0001f600"))
def test_any_text_is_a_number_or_a_value_error(text: str) -> None:
    for parse in (parse_size, parse_duration):
        try:
            assert parse(text) >= 0
        except ValueError:
            pass


@pytest.mark.parametrize("text", ("9" * 400 + ".5", "9" * 5000))
def test_a_size_beyond_all_numbers_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


@given(st.floats(min_value=0.001, max_value=10**6))
def test_a_time_written_plainly_is_read_back(seconds: float) -> None:
    assert parse_duration(f"{seconds:f}s") == pytest.approx(float(f"{seconds:f}"))


@pytest.mark.parametrize(
    ("count", "text"),
    ((0, "0 B"), (17, "17 B"), (KIB, "1 KiB"), (512 * MIB, "512 MiB"), (3 * GIB // 2, "1.5 GiB"), (2**42, "4096 GiB")),
)
def test_a_size_is_written_as_people_read_it(count: int, text: str) -> None:
    assert format_size(count) == text


@given(st.integers(min_value=0, max_value=2**62))
def test_a_written_size_reads_back_within_its_rounding(count: int) -> None:
    assert parse_size(format_size(count)) == pytest.approx(count, rel=0.05)


def test_the_table_names_fields_of_the_policy_once_each() -> None:
    fields = [limit.field for limit in LIMITS]
    assert len(set(fields)) == len(fields) and set(fields) <= set(field_names(SandboxPolicy))
    assert len({limit.flag for limit in LIMITS}) == len(LIMITS)
    assert list(LIMIT_OF) == [limit.capability for limit in LIMITS]
