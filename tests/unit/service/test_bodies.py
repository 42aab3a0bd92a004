"""Bodies of requests: the same values as Python's decoder gives, in short steps and within bounds."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import PolicyError
from ringfence.service import shapes
from ringfence.service.answer import _MOST_TOLD_CHARS, INSTEAD, HostPaths, Refused
from ringfence.service.bodies import decoding, texts
from ringfence.service.bodies.decoding import AT_ONCE_BYTES, MOST_VALUES, decoded, value_of
from ringfence.service.bodies.texts import MOST_REST_BYTES, PIECE, Lifted
from ringfence.service.routes import ROUTES, Route
from ringfence.service.run_requests import digest_of

ANY = Route(method="POST", path="/", handler="", summary="", body={})
RUN = next(route for route in ROUTES if route.handler == "create_run")
_TEXT = st.text(st.characters(codec="utf-8") | st.sampled_from('\\"\n,[{:é😀'), max_size=80)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_TEXT, inner, max_size=5), max_leaves=20,
)  # fmt: skip


def _decoded(body: bytes, route: Route = ANY) -> Any:
    return asyncio.run(decoded(body, route))


@given(value=_JSON, ascii_only=st.booleans(), indent=st.sampled_from([None, 1]), piece=st.integers(12, 40))
def test_a_large_body_has_the_value_that_a_small_one_would_have(
    value: object, ascii_only: bool, indent: int | None, piece: int
) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(texts, "PIECE", piece)
        patched.setattr(texts, "LONG_BYTES", 4)
        patched.setattr(decoding, "AT_ONCE_BYTES", 0)
        assert value_of(body, MOST_VALUES) == value


@pytest.mark.parametrize("begin", range(12))
def test_a_character_of_two_escapes_is_one_wherever_a_piece_ends(begin: int) -> None:
    text = "x" * begin + "😀" * PIECE
    assert value_of(json.dumps([text]).encode(), 10) == [text]


@pytest.mark.parametrize("text", [
    "a, b = [1], {2: 3}\n" * 850_000, '"\\' * (4 << 20), "é" * (7 << 20), "\x01\ud83d" * (1 << 20),
], ids=["commas and brackets", "quotes", "two bytes each", "half characters"])  # fmt: skip
def test_what_is_in_a_long_text_does_not_count(text: str) -> None:
    body = json.dumps({"source": text}, ensure_ascii="\ud83d" in text).encode("utf-8")
    assert len(body) > 8 << 20
    assert _decoded(body, RUN) == {"source": text}


@pytest.mark.parametrize("body", [
    b"[" + b"[]," * 200_000 + b"1]", b"[" + b"{}," * 200_000 + b"1]", b"[" + b'"",' * 200_000 + b'""]',
    b"{" + b",".join(b'"%x":1' % number for number in range(200_000)) + b"}", b"[" * (15 << 20), b"," * (15 << 20),
], ids=["lists", "objects", "texts", "members", "deep", "commas"])  # fmt: skip
def test_more_values_than_a_body_may_have_are_counted_and_never_made(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "_decoder", lambda number: pytest.fail("it was decoded"))
    with pytest.raises(Refused, match="at most 100,000 values") as caught:
        _decoded(body)
    assert caught.value.status == 413


def test_the_most_values_that_a_body_may_have_are_decoded() -> None:
    """The control, and as many as a run could need at most."""
    assert len(_decoded(b"[" + b"1," * (MOST_VALUES - 2) + b"1]")) == MOST_VALUES - 1
    files = {f"a/long/folder/file_{number}.py": {"base64": "QUJD" * 1000} for number in range(1000)}
    most = {"argv": ["x" * 100] * 10_000, "env": {f"A{number}": "b" * 100 for number in range(1000)}, "files": files}
    assert _decoded(json.dumps(most, indent=1).encode(), RUN) == most


def test_names_and_numbers_of_megabytes_are_refused() -> None:
    most = MOST_REST_BYTES + 1
    for body in (b'{"' + b"a\\n" * most + b'":1}', b"[" + b"1" * most + b"]", b" " * most):
        with pytest.raises(Refused, match="besides long strings") as caught:
            _decoded(body)
        assert caught.value.status == 413
    for body in (b"[0." + b"1" * 1001 + b"]", b"[" + b"1" * 41 + b"]", b"[0." + b"1" * 20_000 + b"]"):
        with pytest.raises(Refused, match="digits"):
            _decoded(body)


@pytest.mark.parametrize("body", [
    b'["', b'["a', b'["\\', b'["\\u12', b'["\\u12"]', b'["\\ud83d\\"]', b'["\\x"]', b'["\x01"]', b'["\xff"]', b'"a""b"',
    b'{"a":1,"a":2}', b'{1:2}', b'["a" "b"]', b"[NaN]", b"[1e999]", b"\xff", b'[1,]',
])  # fmt: skip
@pytest.mark.parametrize("fill", [0, 2 * AT_ONCE_BYTES], ids=["small", "large"])
def test_what_is_not_json_is_refused(body: bytes, fill: int) -> None:
    with pytest.raises(Refused, match="not JSON") as caught:
        _decoded(b" " * fill + body)
    assert caught.value.status == 400


def test_a_text_that_looks_like_many_is_not_json() -> None:
    with pytest.raises(ValueError, match="between two strings"):
        Lifted(b'""' * 10**6, MOST_VALUES)


def test_no_step_looks_at_more_than_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    scan = texts.scanstring

    def scanned(text: str, *more: Any) -> Any:
        looked_at.append(len(text))
        return scan(text, *more)

    monkeypatch.setattr(texts, "scanstring", scanned)
    value_of(json.dumps(["a\n" * (1 << 20)]).encode(), 10)
    assert sum(looked_at) > 3 << 20 and max(looked_at) <= PIECE + 1
    monkeypatch.setattr(texts, "PIECE", 10**9)  # the control
    value_of(json.dumps(["a\n" * (1 << 20)]).encode(), 10)
    assert max(looked_at) > 3 << 20


def test_the_loop_goes_on_while_a_large_body_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread decodes it, and the loop has its turn before it is done; a small one takes no thread."""
    went_on, threads = threading.Event(), []
    checked = decoding._checked

    def waiting(data: bytes, route: Route) -> Any:
        threads.append(threading.current_thread())
        assert len(data) <= AT_ONCE_BYTES or went_on.wait(30)
        return checked(data, route)

    async def both() -> Any:
        asyncio.get_running_loop().call_later(0.01, went_on.set)
        return await decoded(b"1", ANY), await decoded(b" " * AT_ONCE_BYTES + b"1", ANY)

    monkeypatch.setattr(decoding, "_checked", waiting)
    assert asyncio.run(both()) == (1, 1)
    assert threads[0] is threading.main_thread() is not threads[1]


# ---- what a request may ask for, and what it is told


@pytest.mark.parametrize("handler", ["create_run", "create_box", "create_pool"])
def test_what_tightens_a_policy_is_small(handler: str) -> None:
    route = next(route for route in ROUTES if route.handler == handler)
    more = {"argv": ["true"]} if handler == "create_run" else {}
    fits = {**more, "tighten": {"hidden_paths": ["/a" * 1000] * 30}}
    assert _decoded(json.dumps(fits).encode(), route) == fits
    for value in (["/a" * 1000] * 40, "x" * (64 << 10), [[]] * 30_000):
        with pytest.raises(Refused, match="tighten has, as JSON, more characters than 65536"):
            _decoded(json.dumps({**more, "tighten": {"hidden_paths": value}}).encode(), route)


def test_of_thousands_of_errors_a_few_are_told() -> None:
    error = PolicyError("a", "first", more=tuple(PolicyError("b", f"number {each}") for each in range(5000)))
    told = str(HostPaths().error(error)["message"])
    assert told.startswith("a: first; b: number 0;") and told.endswith("b: number 19; and more") and len(told) < 1000


def test_a_long_error_is_cut_between_two_words_and_tells_no_path_of_ours() -> None:
    paths = HostPaths("/srv/own state")
    for before in range(_MOST_TOLD_CHARS - 40, _MOST_TOLD_CHARS):
        told = str(paths.error(PolicyError("a", "x" * before + " /srv/own/" + "y" * 10**6))["message"])
        assert len(told) <= _MOST_TOLD_CHARS + 4 and "yyy" not in told
    assert INSTEAD in str(paths.error(PolicyError("a", "in /srv/own state/x"))["message"])  # the control


def test_the_digest_of_a_request_is_that_of_its_values() -> None:
    one = {"argv": ["a"], "files": {"b": "x" * 5000}}
    assert digest_of(one) == digest_of({"files": {"b": "x" * 5000}, "argv": ["a"]})
    others: list[dict[str, Any]] = [
        {**one, "files": {"b": "x" * 5001}}, {**one, "files": {"c": "x" * 5000}}, {**one, "argv": ["b"]},
    ]  # fmt: skip
    assert len({digest_of(each) for each in (one, *others, {**one, "files": {"b": "\ud800" * 5000}})}) == 5


def test_every_request_that_may_begin_a_sandbox_is_counted() -> None:
    bodies = {"create_run": shapes.RUN, "create_box": shapes.BOX, "run_in_box": shapes.BOX_RUN,
              "create_pool": shapes.POOL, "run_in_pool": shapes.POOL_RUN}  # fmt: skip
    assert {route.handler for route in ROUTES if route.counted} == bodies.keys()
