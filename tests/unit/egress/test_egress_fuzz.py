"""Malformed messages of each protocol: only the declared errors, bounded buffers, and no decision for another name.

What allows a name is compared with a second reader that shares nothing with ours: OpenSSL for TLS, and readers as naive
as servers can be for HTTP.
"""

from __future__ import annotations

import gc
import re
import ssl
import tracemalloc
from collections.abc import Callable

import h11
import pytest
from tests.unit.egress.mutations import mutated, pieces
from tests.unit.egress.tls_hellos import extension, made_hello, real_hello, server_name

from ringfence.egress.authority import Authority
from ringfence.egress.client_hello import MAX_BYTES, NEED_MORE, NOT_TLS, Hello, Malformed, sni_of
from ringfence.egress.http_head import MAX_HEAD_BYTES, BadRequest, RequestHead, RequestReader, UpstreamSide, for_wanted
from ringfence.egress.request_rules import InspectedRule, Secret, admit
from ringfence.egress.socks import BadSocks, SocksReader

COUNTS = [3_000, pytest.param(100_000, marks=pytest.mark.soak)]
NAME, PORT = "api.example.com", 443
SEED = 15

HTTP = [
    b"GET /v1/messages HTTP/1.1\r\nHost: api.example.com\r\nAccept: */*\r\n\r\n",
    b"POST /v1/messages?x=y HTTP/1.1\r\nHost: API.example.com.:443\r\nContent-Length: 11\r\n\r\nhello world",
    b"POST /v1/messages HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nT: x\r\n\r\n",
    b"GET http://api.example.com:443/v1/files/x HTTP/1.1\r\nHost: api.example.com:443\r\nX-Api-Key: mine\r\n\r\n",
    b"HEAD /v1/files/../messages HTTP/1.0\r\nHost: api.example.com\r\nConnection: close, x-own\r\nX-Own: 1\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: api.example.com\r\nExpect: 100-continue\r\nUpgrade: h2c\r\n\r\n",
]
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: evil.example\r\n\r\n"
HTTP_WORDS = [
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b"\x0b", b"\r\n ", b":", b" :", b"Host: evil.example\r\n",
    b"evil.example",
    b"@evil.example", b"http://evil.example/", b"//evil.example", b"Transfer-Encoding: chunked\r\n", b"%2e%2e/", b"%2f",
    b"Transfer-Encoding:\x0bchunked\r\n", b"Content-Length: 0\r\n", b"Content-Length: 5\r\n", b"Content-Length: -1\r\n",
    b"Content-Length: 99999999999999999999\r\n", b"HTTP/1.0", b"HTTP/2.0", b"0\r\n\r\n", b"ffffffffffffffff\r\n",
    SMUGGLED,
    b"\r\n\r\n", b"\n\n", b"Connection: x-api-key\r\n", b"X_Api_Key: mine\r\n", b"\xff\xfe", b"A" * 70_000, b"0x5",
    b"..;/",
]  # fmt: skip
CONNECT = [
    b"CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n",
    b"CONNECT api.example.com:443 HTTP/1.0\r\n\r\n",
    b"CONNECT 192.0.2.1:443 HTTP/1.1\r\nHost: 192.0.2.1\r\nProxy-Connection: keep-alive\r\n\r\n\x16\x03\x01",
    b"CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: [2001:db8::1]:443\r\n\r\n",
]
SOCKS = [
    b"\x05\x01\x00\x05\x01\x00\x03\x0fapi.example.com\x01\xbb",
    b"\x05\x02\x00\x02\x05\x01\x00\x01\xc0\x00\x02\x01\x01\xbbGET",
    b"\x05\x01\x00\x05\x01\x00\x04" + bytes(10) + b"\xff\xff\xc0\x00\x02\x01\x01\xbb",
]
SOCKS_WORDS = [b"\x05", b"\x00", b"\x03", b"\xff", b"evil.example", b"api.example.com", b"\x01\xbb", b"127.1", b".",
b"\x10"]
TLS = [
    real_hello(NAME), real_hello(NAME, ("h2", "http/1.1")), real_hello(None),
    made_hello(server_name(b"api.example.com")),
    made_hello(server_name(b"api.example.com"), size=30), made_hello(server_name(b"evil.example")),
    made_hello(extension(0xFE0D, bytes(50)), server_name(b"api.example.com")),
]  # fmt: skip
TLS_WORDS = [
    b"\x16\x03\x01", b"\x16\x03\x01\x00\x00", b"\x15\x03\x01\x00\x02\x01\x00", b"\x14\x03\x03\x00\x01\x01", b"\x00\x00",
    server_name(b"evil.example"), server_name(b"api.example.com", b"evil.example"), b"evil.example", b"\xff\xff",
    b"\x80\x2e",
]  # fmt: skip


def read_requests(data: bytes, number: int, sent: list[bytes]) -> list[RequestHead]:
    """Return the heads that were read; ``sent`` gets what upstream is sent of those that may go there."""
    reader, heads = RequestReader(), list[RequestHead]()
    rule = InspectedRule(name=NAME, methods=("GET", "POST", "HEAD"), paths=("/v1/messages", "/v1/files/*"),
                         inject=Secret(header="x-api-key", value=b"s3cret"))  # fmt: skip
    upstream = UpstreamSide()
    allowed = False
    for piece in [*pieces(data, number), b""]:
        reader.receive(piece)
        assert len(reader.waiting) <= MAX_HEAD_BYTES + len(data)
        while True:
            event = reader.next_event()
            if event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed):
                break
            if isinstance(event, RequestHead):
                heads.append(event)
                if event.method == "CONNECT":
                    return heads
                for_wanted(event, NAME, PORT)
                upstream, allowed = UpstreamSide(), True
                admitted, headers = admit(event, rule)
                sent.append(upstream.request(admitted, rule.authority, headers))
            elif isinstance(event, (h11.Data, h11.EndOfMessage)) and allowed:
                sent[-1] += upstream.send(event)
    return heads


def naive_hosts(data: bytes) -> list[bytes]:
    """Return the hosts of all requests that a most lenient server would find at the start of lines."""
    return re.findall(rb"(?im)^[ \t]*host[ \t]*:[ \t]*([^\r\n]*)", data)


def http_case(number: int, data: bytes) -> None:
    sent: list[bytes] = []
    cut = 0
    try:
        read_requests(data, number, sent)
    except BadRequest as error:
        assert 400 <= error.status < 600 and "s3cret" not in str(error)
        cut = len(sent)
    for turn, request in enumerate(sent, 1):
        head = request.partition(b"\r\n\r\n")[0]
        assert naive_hosts(head) == [NAME.encode()]
        assert re.findall(rb"(?im)^[ \t]*x[-_]api[-_]key[ \t]*:(.*)", head) == [b" s3cret"]
        assert re.match(rb"(GET|POST|HEAD) /v1/(messages|files/)", head) and b"/../" not in head.split(b"\r\n")[0]
        server = h11.Connection(h11.SERVER, max_incomplete_event_size=2 * MAX_HEAD_BYTES)
        server.receive_data(request)
        while not isinstance(event := server.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                assert turn == cut, "a request that a server waits for the rest of"
                break
        assert server.trailing_data == (b"", False)


def connect_case(number: int, data: bytes) -> None:
    try:
        heads = read_requests(data, number, [])
    except BadRequest:
        return
    tunnels = [head for head in heads if head.method == "CONNECT"]
    if tunnels and tunnels[0].host.host == NAME:
        assert re.match(rb"CONNECT api\.example\.com\.?:%d HTTP/1\.[01]\r\n" % (tunnels[0].host.port or 0), data, re.I)


def socks_case(number: int, data: bytes) -> None:
    reader, asked = SocksReader(), None
    try:
        for piece in pieces(data, number):
            asked = reader.receive(piece)[1] or asked
    except BadSocks as error:
        assert len(error.answer) <= 10
        return
    assert len(reader._data) <= len(data)
    if asked is None:
        return
    request = data[2 + data[1] :]
    port = (asked.target.port or 0).to_bytes(2, "big")
    if asked.target.host == NAME:
        name = request[5 : 5 + request[4]]
        assert request[:4] == b"\x05\x01\0\x03" and name.lower() in (NAME.encode(), NAME.encode() + b".")
        assert request[5 + request[4] :].startswith(port)
    assert not asked.target.is_address or request[3] in (1, 4) or b"." in request[5:20]


SERVER = Authority().context_for(NAME)


def names_that_openssl_sees(data: bytes) -> list[str | None]:
    seen: list[str | None] = []
    SERVER.sni_callback = lambda _, name, __: seen.append(name)
    incoming = ssl.MemoryBIO()
    server = SERVER.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
    incoming.write(data)
    try:
        server.do_handshake()
    except (ssl.SSLError, UnicodeError):
        pass
    return [name for name in seen if name]


def tls_case(number: int, data: bytes) -> None:
    found = sni_of(data)
    assert found in (NEED_MORE, NOT_TLS) or isinstance(found, (Hello, Malformed))
    for length in range(0, min(len(data), 100), 7):
        sni_of(data[:length])
    assert found is not NEED_MORE or len(data) < MAX_BYTES
    if isinstance(found, Malformed) or found is NEED_MORE:
        return
    name = found.name if isinstance(found, Hello) else None
    for seen in names_that_openssl_sees(data):
        assert seen is not None and seen.lower().removesuffix(".") == name


CASES: dict[str, tuple[list[bytes], list[bytes], Callable[[int, bytes], None]]] = {
    "http": (HTTP, HTTP_WORDS, http_case),
    "connect": (CONNECT, HTTP_WORDS, connect_case),
    "socks5": (SOCKS, SOCKS_WORDS, socks_case),
    "tls": (TLS, TLS_WORDS, tls_case),
}


@pytest.mark.slow
@pytest.mark.unmeasured
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("protocol", CASES)
def test_malformed_messages_lead_to_no_other_error_and_no_other_name(protocol: str, count: int) -> None:
    samples, words, case = CASES[protocol]
    for number, data in mutated(samples, words, seed=SEED, count=count):
        try:
            case(number, data)
        except Exception as error:
            error.add_note(f"case {number} of {protocol}: {data[:2000]!r}")
            raise


@pytest.mark.slow
@pytest.mark.unmeasured
@pytest.mark.parametrize("protocol", CASES)
def test_nothing_grows_with_the_number_of_malformed_messages(protocol: str) -> None:
    samples, words, case = CASES[protocol]
    sizes = []
    tracemalloc.start()
    try:
        for _ in range(3):
            for number, data in mutated(samples, words, seed=SEED, count=150):
                case(number, data)
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[2] - sizes[1] < 64 * 1024


def test_the_samples_themselves_are_valid() -> None:
    """Else mutations of them would say nothing."""
    sent: list[bytes] = []
    assert [len(read_requests(sample, 0, sent)) for sample in [*HTTP[:5], *CONNECT]] == [1] * 9
    assert len(sent) == 5
    assert all(SocksReader().receive(sample)[1] for sample in SOCKS)
    assert all(isinstance(sni_of(sample), Hello) for sample in TLS)
    assert names_that_openssl_sees(TLS[0]) == [NAME]
