"""What a client speaks: nothing that some server takes for HTTP or TLS is taken for something else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.egress.tls_hellos import real_hello

from ringfence.egress.client_hello import Hello
from ringfence.egress.sniffing import FirstLine, Spoken, begins_line, other_server, spoken, spoken_in_all


@pytest.mark.parametrize("data", [
    b"GET / HTTP/1.1\r\n", b"\r\n\r\nGET / HTTP/1.1\r\n", b"get / http/1.1\n", b"GET\t/\tHTTP/1.1\r\n",
    b"PRI * HTTP/2.0\r\n",
    b"\n\n\nX / HTTP/1.0\n", b"GET /\0 HTTP/1.1\r\n", b"A" * 70000, b"{ HTTP/1.1\n",
    b"GET http://other.example/\r\n", b" GET\thttp://other.example/\n", b"\r\n" * 33, b"\r\n" * 33 + b"ping\n",
])  # fmt: skip
def test_http(data: bytes) -> None:
    assert spoken(data)[0] is Spoken.HTTP


@pytest.mark.parametrize("data", [
    b"SSH-2.0-client\r\n", b"EHLO me\r\n", b"*1\r\n$4\r\nPING\r\n", b"\0\0\0\x08\x04\xd2\x16/", b"\x10\x1f\0\x04MQTT",
    b"0032git-upload-pack /x\0host=y\0", b"AMQP\0\0\x09\x01", b"GET key\r\n", b"get http://a\r\n", b"\x80\x01\0\x01",
])  # fmt: skip
def test_other_protocols(data: bytes) -> None:
    assert spoken(data)[0] is Spoken.OTHER


@pytest.mark.parametrize("data", [b"", b"\r\n", b"G", b"GET / HTTP/1.1", b"GET /\x01", b"\x16", b"\x16\x03\x01\x02"])
def test_more_is_needed(data: bytes) -> None:
    assert spoken(data)[0] is Spoken.UNKNOWN


@pytest.mark.parametrize(("data", "begins"), [
    (b"ping", True), (b"\r\nhi", True), (b"x" * 4096, True), (b"", False), (b"\r\n", False), (b"\x16\x03", False),
    (b"GET /a", False), (b"post", False), (b"X / http/1", False),
])  # fmt: skip
def test_a_client_may_pause_in_a_line_that_is_no_likely_request(data: bytes, begins: bool) -> None:
    assert begins_line(data) is begins


@pytest.mark.parametrize("blank", [b" ", b"\t", b"\r\n ", b"\x0b", b"\x0c", b"\x1c", b"\x85", b"\xa0", b" \n\t\r"])
def test_blanks_before_a_request_hide_nothing_however_they_are_cut(blank: bytes) -> None:
    """Python's http.server skips all that Python takes for a blank."""
    for request in (b"GET / HTTP/1.1\r\n", b"FETCH\x0b/\x1f HTTP/1.1\r\n"):
        data = blank + request
        found = [spoken(data[:count])[0] for count in range(len(data) + 1)]
        assert found == [Spoken.UNKNOWN] * len(data) + [Spoken.HTTP]


@pytest.mark.parametrize("data", [b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n", b"PROXY UNKNOWN\r\nGET / HTTP/1.1\r\n",
                                  b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"])  # fmt: skip
def test_the_proxy_protocol_is_told_from_others_however_it_is_cut(data: bytes) -> None:
    found = [spoken(data[:count])[0] for count in range(len(data) + 1)]
    assert {*found} == {Spoken.UNKNOWN, Spoken.PROXIED} and found[-1] is Spoken.PROXIED


@pytest.mark.parametrize(("data", "kind"), [
    (b"GET http://other.example/ HTTP/1.0", Spoken.HTTP), (b"GET http://other.example/", Spoken.HTTP),
    (b"ping", Spoken.OTHER), (b"GET", Spoken.OTHER), (b"", Spoken.UNKNOWN), (b"\x16\x03", Spoken.UNKNOWN),
])  # fmt: skip
def test_a_line_that_ends_with_the_connection_is_judged_like_any_other(data: bytes, kind: Spoken) -> None:
    """Some servers answer it: the client may close one direction alone."""
    assert spoken(data)[0] is Spoken.UNKNOWN and spoken_in_all(data)[0] is kind


def test_no_number_of_empty_lines_has_a_client_wait_for_ever() -> None:
    """Some server would skip them, so it is a request, and refused as one."""
    lengths = [len(line) for line in (b"\n" * count for count in range(100)) if spoken(line)[0] is Spoken.UNKNOWN]
    assert lengths == [*range(65)]


@given(
    st.integers(1, 30), st.sampled_from([b"", b"\r\n", b"\n\n"]), st.sampled_from([b"X / HTTP/1.1", b"G /x http/1.0"])
)
def test_a_line_never_becomes_a_request_however_it_is_cut(size: int, empty: bytes, request: bytes) -> None:
    data, line, passed = empty + request + b"\r\nHost: other\r\n", FirstLine(), b""
    for piece in (data[at : at + size] for at in range(0, len(data), size)):
        if not line.take(piece):
            break
        passed += piece
    assert b"HTTP/" not in passed.upper()


def test_a_line_that_has_ended_is_no_request_and_what_follows_is_not_looked_at() -> None:
    line = FirstLine()
    assert line.take(b"\r\n") and not line.ended
    assert line.take(b"ping") and line.take(b" HTT") and line.take(b"P\nHTTP/1.1") and line.ended


def test_tls() -> None:
    kind, found = spoken(real_hello("api.example.com"))
    assert kind is Spoken.TLS and found is not None and found.name == "api.example.com"  # type: ignore[union-attr]
    assert spoken(b"\x16\x03\x01\0\x01\0")[0] is Spoken.TLS


@given(
    st.integers(1, 10), st.sampled_from([b"", b"\r\n", b" "]),
    st.sampled_from([b"PROXY UNKNOWN\r\nGET / HTTP/1.1\r\n", b"GET http://other.example/\r\n"]),
)  # fmt: skip
def test_a_line_never_becomes_one_for_another_server_however_it_is_cut(size: int, empty: bytes, said: bytes) -> None:
    data, line = empty + said, FirstLine()
    assert not all(line.take(data[at : at + size]) for at in range(0, len(data), size) if not line.ended)


@given(st.binary(max_size=300))
def test_what_is_known_stays_known(data: bytes) -> None:
    """Once decided, more bytes change nothing: the first packet may end anywhere."""
    found = [spoken(data[:count])[0] for count in range(len(data) + 1)]
    decided = [kind for kind in found if kind is not Spoken.UNKNOWN]
    assert len(set(decided)) <= 1 and found[len(found) - len(decided) :] == decided


@pytest.mark.parametrize(
    ("hello", "by_default", "unnamed"),
    [
        (Hello(name="a.example", ech=False, alpn=()), True, True),
        (Hello(name="b.example", ech=False, alpn=()), False, False),
        (Hello(name=None, ech=False, alpn=()), False, True),
        (Hello(name="outer.example", ech=True, alpn=()), False, True),
        (None, False, False),
    ],
)
def test_a_rule_decides_whether_the_server_must_be_named(hello: Hello | None, by_default: bool, unnamed: bool) -> None:
    assert (other_server(hello, "a.example") == "") is by_default
    assert (other_server(hello, "a.example", unnamed=True) == "") is unnamed


def test_a_first_message_that_can_not_be_read_is_refused_with_what_to_do() -> None:
    assert "if it is not TLS, list the address" in other_server(spoken(b"\x16\x02\0\0\1\1")[1], "a.example")
