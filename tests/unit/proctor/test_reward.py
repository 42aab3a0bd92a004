"""What a reward file says, and when it counts."""

from __future__ import annotations

import pytest

from ringfence.proctor.reward import MAX_BYTES, Written, judged, preferred, read

PATH = "/logs/verifier/reward.txt"


@pytest.mark.parametrize(("data", "value"), [
    (b"1", 1.0), (b" 0.25\n", 0.25), (b"-1e2", -100.0), (b'{"reward": 0.5}', 0.5), (b'{"reward": 1, "x": [1]}', 1.0),
    (b"+.5", 0.5),
])  # fmt: skip
def test_one_finite_number_is_read(data: bytes, value: float) -> None:
    assert read(data) == value


# shortcoming 13
@pytest.mark.parametrize("data", [
    b"inf", b"-Infinity", b"nan", b"1e999", b"1" + b"0" * 400, b'{"reward": Infinity}', b'{"reward": NaN}',
    b"1e300", b"-1e17", b'{"reward": 1e999}', b'{"reward": ' + b"9" * 400 + b"}",
], ids=lambda data: repr(data[:30]))  # fmt: skip
def test_what_is_not_finite_is_no_reward(data: bytes) -> None:
    with pytest.raises(ValueError):
        read(data)
    found = judged(Written(data=data, writers=1), PATH)
    assert found.problem and found.value == 0.0


@pytest.mark.parametrize("data", [
    b"", b"one", b"1 1", b"1_000", "１".encode(), b"0x10", b"\xff", b'{"reward": true}', b'{"reward": "1"}', b"[1]",
    b'{"reward": 0, "reward": 1}', b'{"score": 1}', b'{"reward": 1} x', b"true", b"1" * (MAX_BYTES + 1),
    b'{"reward":' + b"[" * 60000, b"\xef\xbb\xbf1",
], ids=lambda data: repr(data[:30]))  # fmt: skip
def test_anything_else_is_no_reward_either(data: bytes) -> None:
    with pytest.raises(ValueError):
        read(data)


# shortcoming 4
def test_a_file_that_two_have_written_or_somebody_has_exchanged_is_forged() -> None:
    assert judged(Written(data=b"1", writers=1), PATH).value == 1.0
    assert "2 times" in judged(Written(data=b"1", writers=2), PATH).forged
    assert "moved" in judged(Written(data=b"1", writers=1, touched=("moved",)), PATH).forged
    nothing = judged(Written(), PATH)
    assert nothing.problem and not nothing.forged


JSON = "/logs/verifier/reward.json"
NONE, ONE, HALF = Written(), Written(data=b"1", writers=1), Written(data=b"0.5", writers=1)
TWICE, BAD = Written(data=b"1", writers=2), Written(data=b"x", writers=1)
MOVED = Written(data=b"1", writers=1, touched=("moved",))


@pytest.mark.parametrize(("first", "other", "value"), [(NONE, ONE, 1.0), (HALF, NONE, 0.5), (ONE, ONE, 1.0)])
def test_of_two_files_the_preferred_counts(first: Written, other: Written, value: float) -> None:
    assert preferred(first, JSON, other, PATH).value == value


@pytest.mark.parametrize(("first", "other"), [
    (ONE, HALF), (ONE, BAD), (BAD, ONE), (ONE, MOVED), (MOVED, ONE), (TWICE, NONE), (NONE, TWICE), (MOVED, NONE),
])  # fmt: skip
def test_two_files_that_do_not_say_the_same_are_forged(first: Written, other: Written) -> None:
    """Shortcoming 4: reward.json outranks what the real script writes."""
    found = preferred(first, JSON, other, PATH)
    assert found.forged and found.value == 0.0


def test_without_any_there_is_none() -> None:
    found = preferred(NONE, JSON, NONE, PATH)
    assert found.problem and not found.forged
    assert preferred(BAD, JSON, NONE, PATH).problem
