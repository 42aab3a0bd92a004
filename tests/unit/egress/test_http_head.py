"""Requests as the gateway reads them: what is accepted, what is refused, and what upstream gets."""

from __future__ import annotations

import h11
import pytest

from ringfence.egress.http_head import (
    MAX_HEAD_BYTES,
    BadRequest,
    BadResponse,
    RequestHead,
    RequestReader,
    UpstreamSide,
    end_to_end,
    for_wanted,
    response_of,
)


def head_of(data: bytes) -> RequestHead:
    reader = RequestReader()
    reader.receive(data)
    found = reader.next_event()
    assert isinstance(found, RequestHead)
    return found


def lines(*rows: str) -> bytes:
    return "\r\n".join((*rows, "", "")).encode("latin-1")


def test_a_request_is_read_as_it_arrives() -> None:
    reader = RequestReader()
    data = lines("POST /v1?a=b HTTP/1.1", "Host: API.example.com.:443", "Content-Length: 3", "X: y")
    for byte in data[:-1]:
        reader.receive(bytes([byte]))
        assert reader.next_event() is h11.NEED_DATA
    reader.receive(data[-1:] + b"abcGET")
    head = reader.next_event()
    assert isinstance(head, RequestHead) and (head.method, head.path, head.has_body) == ("POST", "/v1?a=b", True)
    assert str(head.host) == "api.example.com:443" and head.values(b"x") == [b"y"]
    body, end = reader.next_event(), reader.next_event()
    assert isinstance(body, h11.Data) and bytes(body.data) == b"abc" and isinstance(end, h11.EndOfMessage)
    assert reader.waiting == b"GET"


def test_the_targets_of_a_proxy_are_brought_to_origin_form() -> None:
    head = head_of(lines("GET HTTP://Example.com?x HTTP/1.1", "Host: example.com"))
    assert (head.path, str(head.host), head.is_absolute) == ("/?x", "example.com:80", True)
    head = head_of(lines("CONNECT example.com:443 HTTP/1.0"))
    assert (head.method, str(head.host), head.path) == ("CONNECT", "example.com:443", "")
    assert head_of(lines("OPTIONS * HTTP/1.1", "Host: a.example")).path == "*"


def test_what_follows_connect_is_left_for_the_server() -> None:
    reader = RequestReader()
    reader.receive(lines("CONNECT a.example:443 HTTP/1.1", "Host: a.example:443") + b"\x16\x03\x01")
    assert isinstance(reader.next_event(), RequestHead) and reader.waiting == b"\x16\x03\x01"


HOST = "Host: a.example"
REFUSED = {
    "no host": lines("GET / HTTP/1.1", "X: y"),
    "no host in HTTP/1.0": lines("GET / HTTP/1.0"),
    "two hosts": lines("GET / HTTP/1.1", HOST, HOST),
    "two hosts in one": lines("GET / HTTP/1.1", "Host: a.example, b.example"),
    "an empty host": lines("GET / HTTP/1.1", "Host:"),
    "a host with a user": lines("GET / HTTP/1.1", "Host: a.example@b.example"),
    "a space before the colon": lines("GET / HTTP/1.1", HOST, "Host : b.example"),
    "two readings of the target": lines("GET http://b.example/ HTTP/1.1", HOST),
    "two ports": lines("GET http://a.example/ HTTP/1.1", "Host: a.example:81"),
    "https to a proxy": lines("GET https://a.example/ HTTP/1.1", HOST),
    "another scheme": lines("GET ftp://a.example/ HTTP/1.1", HOST),
    "no scheme": lines("GET a.example HTTP/1.1", HOST),
    "a star": lines("GET * HTTP/1.1", HOST),
    "a fragment": lines("GET /#x HTTP/1.1", HOST),
    "connect without a port": lines("CONNECT a.example HTTP/1.1", HOST),
    "connect to a path": lines("CONNECT /x HTTP/1.1", HOST),
    "connect to a URL": lines("CONNECT http://a.example:443 HTTP/1.1", HOST),
    "connect for another host": lines("CONNECT b.example:443 HTTP/1.1", HOST),
    "connect for another port": lines("CONNECT a.example:443 HTTP/1.1", "Host: a.example:80"),
    "connect with a body": lines("CONNECT a.example:443 HTTP/1.1", HOST, "Content-Length: 5"),
    "length and coding": lines("POST / HTTP/1.1", HOST, "Content-Length: 3", "Transfer-Encoding: chunked"),
    "two lengths": lines("POST / HTTP/1.1", HOST, "Content-Length: 3", "Content-Length: 3"),
    "two lengths in one": lines("POST / HTTP/1.1", HOST, "Content-Length: 3, 3"),
    "a length with a sign": lines("POST / HTTP/1.1", HOST, "Content-Length: +3"),
    "a length that some count round": lines("POST / HTTP/1.1", HOST, f"Content-Length: {(1 << 64) + 3}"),
    "another coding": lines("POST / HTTP/1.1", HOST, "Transfer-Encoding: gzip, chunked"),
    "a hidden coding": lines("POST / HTTP/1.1", HOST, "Transfer-Encoding: xchunked"),
    "two codings": lines("POST / HTTP/1.1", HOST, "Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
    "a coding in HTTP/1.0": lines("POST / HTTP/1.0", HOST, "Transfer-Encoding: chunked"),
    "a folded line": lines("GET / HTTP/1.1", HOST, "X: a", " b"),
    "a folded host": lines("GET / HTTP/1.1", "Host:", " a.example"),
    "a lone LF": b"GET / HTTP/1.1\nHost: a.example\n\n",
    "a lone LF in a header": b"GET / HTTP/1.1\r\nHost: a.example\r\nX: a\nHost: b.example\r\n\r\n",
    "a lone CR": b"GET / HTTP/1.1\r\nHost: a.example\r\nX: a\rHost: b.example\r\n\r\n",
    "a NUL": lines("GET / HTTP/1.1", HOST, "X: a\0b"),
    "a DEL": lines("GET / HTTP/1.1", HOST, "X: a\x7fb"),
    "a blank line first": b"\r\n" + lines("GET / HTTP/1.1", HOST),
    "a space first": b" " + lines("GET / HTTP/1.1", HOST),
    "a target that is not ASCII": lines("GET /ä HTTP/1.1", HOST),
    "a tab in the line": lines("GET\t/ HTTP/1.1", HOST),
    "two spaces": lines("GET  / HTTP/1.1", HOST),
    "a method that is none": lines("GE(T / HTTP/1.1", HOST),
    "HTTP/0.9": lines("GET /"),
    "HTTP/2": lines("PRI * HTTP/2.0"),
    "HTTP/1.2": lines("GET / HTTP/1.2", HOST),
    "another expectation": lines("GET / HTTP/1.1", HOST, "Expect: the unexpected"),
    "too many headers": lines("GET / HTTP/1.1", HOST, *["X: y"] * 256),
    "a head without end": b"GET / HTTP/1.1\r\nX: " + b"a" * MAX_HEAD_BYTES,
    "a head too long": lines("GET / HTTP/1.1", HOST, "X: " + "a" * MAX_HEAD_BYTES),
    "TLS": b"\x16\x03\x01\x02\x00\x01",
    "an octal address": lines("GET / HTTP/1.1", "Host: 0177.0.0.1"),
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED.keys())
def test_what_two_servers_could_read_differently_is_refused(data: bytes) -> None:
    reader = RequestReader()
    reader.receive(data)
    with pytest.raises(BadRequest) as caught:
        reader.next_event()
    assert 400 <= caught.value.status < 600
    told = reader.refuse(caught.value.status, str(caught.value))
    assert told.startswith(b"HTTP/1.1 %d " % caught.value.status) and b"connection: close" in told.lower()


def test_the_words_of_a_refusal_are_in_its_first_line_and_end_no_line() -> None:
    """Clients of a proxy show no more of it than that line."""
    first, _, rest = (
        RequestReader().refuse(403, "a.example is not listed\r\nX-Evil: 1\N{SNOWMAN}" + "x" * 9999).partition(b"\r\n")
    )
    assert first.startswith(b"HTTP/1.1 403 a.example is not listed??X-Evil: 1?x") and len(first) < 500
    assert b"X-Evil" not in rest.partition(b"\r\n\r\n")[0]


def test_what_is_behind_a_body_is_no_head_until_it_is_clean() -> None:
    """h11 alone would take the second request, which has lines that end with LF alone."""
    reader = RequestReader()
    first = lines("POST / HTTP/1.1", HOST, "Content-Length: 2") + b"ab"
    reader.receive(first + b"GET /b HTTP/1.1\nHost: b.example\n\n")
    assert [type(reader.next_event()) for _ in range(3)] == [RequestHead, h11.Data, h11.EndOfMessage]
    with pytest.raises(BadRequest):
        reader.next_event()


def test_a_body_that_is_cut_off_is_refused() -> None:
    for body in (b"ab", b""):
        reader = RequestReader()
        reader.receive(lines("POST / HTTP/1.1", HOST, "Content-Length: 5") + body)
        reader.next_event()
        reader.receive(b"")
        with pytest.raises(BadRequest):
            while True:
                reader.next_event()


def test_a_closed_connection_is_no_error_between_requests_and_one_within() -> None:
    reader = RequestReader()
    reader.receive(b"")
    assert isinstance(reader.next_event(), h11.ConnectionClosed)
    reader = RequestReader()
    reader.receive(b"GET / HT")
    reader.receive(b"")
    with pytest.raises(BadRequest):
        reader.next_event()


def test_a_request_must_be_for_the_host_that_its_connection_is_to() -> None:
    head = head_of(lines("GET / HTTP/1.1", "Host: A.example.:80"))
    for_wanted(head, "a.example", 80)
    for_wanted(head_of(lines("GET / HTTP/1.1", HOST)), "a.example", 8080)
    for name, port in (("b.example", 80), ("a.example", 81), ("example", 80)):
        with pytest.raises(BadRequest, match=f"{name}:{port}"):
            for_wanted(head, name, port)


def test_what_neighbours_agree_on_is_not_passed_on() -> None:
    headers = [(b"Connection", b"close, X-Own"), (b"x-own", b"1"), (b"TE", b"trailers"), (b"Keep-Alive", b"1"),
               (b"A", b"b"), (b"Proxy-Authorization", b"secret")]  # fmt: skip
    assert end_to_end(headers) == [(b"A", b"b")]
    assert end_to_end([(b"Connection", b"content-length"), (b"Content-Length", b"1")]) == [(b"Content-Length", b"1")]


def test_upstream_gets_what_was_read_written_anew() -> None:
    reader, upstream = RequestReader(), UpstreamSide()
    reader.receive(lines("POST http://a.example/x HTTP/1.1", HOST, "X:   y  ", "transfer-encoding: CHUNKED"))
    reader.receive(b"2;ext=1\r\nab\r\n0\r\nTrailer: x\r\n\r\n")
    head, data, end = reader.next_event(), reader.next_event(), reader.next_event()
    assert isinstance(head, RequestHead) and isinstance(data, h11.Data) and isinstance(end, h11.EndOfMessage)
    sent = upstream.request(head, "a.example", end_to_end(head.headers)) + upstream.send(data) + upstream.send(end)
    assert sent == (b"POST /x HTTP/1.1\r\nHost: a.example\r\nX: y\r\ntransfer-encoding: chunked\r\n\r\n"
                    b"2\r\nab\r\n0\r\n\r\n")  # fmt: skip


def test_a_response_is_framed_as_the_guest_understands_it() -> None:
    reader, upstream = RequestReader(), UpstreamSide()
    reader.receive(lines("GET / HTTP/1.0", HOST))
    head = reader.next_event()
    assert isinstance(head, RequestHead) and isinstance(reader.next_event(), h11.EndOfMessage)
    upstream.request(head, "a.example", [])
    upstream.send(h11.EndOfMessage())
    upstream.receive(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nKeep-Alive: 5\r\n\r\n2\r\nab\r\n0\r\n\r\n")
    response, data, end = (upstream.next_event() for _ in range(3))
    assert isinstance(response, h11.Response) and isinstance(data, h11.Data) and isinstance(end, h11.EndOfMessage)
    sent = b"".join(reader.answer(part) for part in (response_of(response), data, end))
    assert sent == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nab"
    assert upstream.next_cycle() and not reader.goes_on


def test_a_server_that_speaks_no_http_or_out_of_turn_is_not_passed_on() -> None:
    upstream = UpstreamSide()
    upstream.request(head_of(lines("GET / HTTP/1.1", HOST)), "a.example", [])
    upstream.send(h11.EndOfMessage())
    upstream.receive(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n")
    assert isinstance(upstream.next_event(), h11.Response) and isinstance(upstream.next_event(), h11.EndOfMessage)
    assert not upstream.next_cycle()
    other = UpstreamSide()
    other.request(head_of(lines("GET / HTTP/1.1", HOST)), "a.example", [])
    other.receive(b"SSH-2.0-x\r\n\r\n")
    with pytest.raises(BadResponse):
        other.next_event()


def test_a_refusal_of_head_has_no_body_and_none_is_sent_into_a_response() -> None:
    reader = RequestReader()
    reader.receive(lines("HEAD / HTTP/1.1", HOST))
    reader.next_event()
    assert reader.refuse(403, "no").endswith(b"\r\n\r\n")
    reader = RequestReader()
    reader.receive(lines("GET / HTTP/1.1", HOST))
    reader.next_event()
    reader.answer(h11.Response(status_code=200, headers=[("Content-Length", "5")]))
    assert reader.refuse(403, "no") == b""
