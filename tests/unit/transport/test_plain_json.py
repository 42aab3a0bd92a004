"""What our processes write as JSON is what ``json`` would write."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.transport.plain_json import dumps

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.slow
@given(VALUES)
def test_it_is_what_json_writes(value: object) -> None:
    assert dumps(value) == json.dumps(value)


def test_bytes_that_were_no_text_are_escaped() -> None:
    name = b"\xff\x00\n".decode("utf-8", "surrogateescape")
    assert dumps({name: (name,)}) == json.dumps({name: [name]})


@pytest.mark.parametrize("value", [b"bytes", {1: 2}, object(), float("nan"), float("inf"), {"a": {1}}])
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        dumps(value)
