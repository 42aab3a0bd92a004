"""What is read of a TLS ClientHello: the one name, hidden names, protocols; and what is refused."""

from __future__ import annotations

import pytest
from tests.unit.egress.tls_hellos import extension, made_hello, message, real_hello, records, server_name, vector

from ringfence.egress.client_hello import MAX_BYTES, MAX_RECORDS, NEED_MORE, NOT_TLS, Hello, Malformed, sni_of

NAME = server_name(b"api.example.com")


def test_the_name_and_protocols_of_a_real_client_are_read() -> None:
    assert sni_of(real_hello("API.example.com", ("h2", "http/1.1"))) == Hello(
        name="api.example.com", ech=False, alpn=(b"h2", b"http/1.1")
    )
    assert sni_of(real_hello(None)) == Hello(name=None, ech=False, alpn=())


def test_every_beginning_of_a_hello_asks_for_more() -> None:
    hello = real_hello("api.example.com")
    assert {sni_of(hello[:length]) for length in range(len(hello))} == {NEED_MORE}


@pytest.mark.parametrize("size", [40, 100, 1000])
def test_a_hello_cut_into_records_is_put_together(size: int) -> None:
    hello = made_hello(NAME, size=size)
    assert sni_of(hello) == Hello(name="api.example.com", ech=False, alpn=())
    assert {sni_of(hello[:length]) for length in range(len(hello))} == {NEED_MORE}


def test_what_follows_in_records_of_their_own_is_left_alone() -> None:
    assert sni_of(made_hello(NAME) + b"\x14\x03\x03\0\1\1" + b"\x17\x03\x03\0\x05early") == sni_of(made_hello(NAME))


@pytest.mark.parametrize("number", [0xFE0D, 0xFFCE])
def test_a_hidden_second_name_is_seen(number: int) -> None:
    assert sni_of(made_hello(NAME, extension(number, b"\0" * 40))) == Hello(
        name="api.example.com", ech=True, alpn=()
    )


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"SSH-2.0-x", b"\x05\x01\0", b"\0\0\0\x08\x04\xd2\x16/",
                                  b"\x16\0\0\0\0\0", b"\x14\0\0\0", b"\x15\0\0\0\2\3", b"\x80\x01\0\x01",
                                  b"\x80\x2e\x01\x00\x02", b"\x00\x2e\x01\x03\x01"])  # fmt: skip
def test_other_protocols_are_not_tls(data: bytes) -> None:
    assert sni_of(data) is NOT_TLS


def test_a_record_of_an_unknown_version_is_not_hidden_by_how_it_is_cut() -> None:
    for data in (b"\x16\x02\0" + made_hello(NAME)[3:], b"\x80\x2e\x01\x03\x01" + bytes(44)):
        found = [sni_of(data[:length]) for length in range(len(data) + 1)]
        assert NOT_TLS not in found and isinstance(found[-1], Malformed)


MALFORMED = {
    "a version that is none": b"\x16\x02\x00" + made_hello(NAME)[3:],
    "a version of later": b"\x16\x0f\xff" + made_hello(NAME)[3:],
    "an alert of no version first": b"\x15\0\0\0\2\1\x5a" + made_hello(NAME),
    "a hello of SSL 2": b"\x80\x2e\x01\x03\x03" + bytes(44),
    "two names": made_hello(server_name(b"a.example", b"b.example")),
    "two extensions of names": made_hello(NAME, server_name(b"b.example")),
    "a name of another kind": made_hello(server_name(b"a.example", kind=1)),
    "an empty name": made_hello(server_name(b"")),
    "a NUL in the name": made_hello(server_name(b"a.example\0.b.example")),
    "a space in the name": made_hello(server_name(b"a.example b.example")),
    "a name that is not ASCII": made_hello(server_name("bücher.example".encode())),
    "an empty label": made_hello(server_name(b"a..example")),
    "a long name": made_hello(server_name(b"a" * 254)),
    "something behind the name": made_hello(extension(0, vector(2, b"\0" + vector(2, b"a.example")) + b"x")),
    "something behind the extensions": records(b"\x01" + vector(3, message(b"")[4:] + b"x")),
    "an extension cut off": made_hello(b"\0\0\0\x20ab"),
    "an empty list of protocols": made_hello(extension(16, vector(2, b""))),
    "a protocol without a name": made_hello(extension(16, vector(2, b"\0"))),
    "another message first": records(b"\x02" + vector(3, b"x" * 40)),
    "another message in the same record": records(message(NAME) + b"\x01"),
    "an alert first": b"\x15\x03\x01\0\x02\x01\x00" + made_hello(NAME),
    "a change of ciphers first": b"\x14\x03\x01\0\x01\x01" + made_hello(NAME),
    "an alert in the middle": made_hello(NAME, size=40)[:45] + b"\x15\x03\x01\0\x02\x01\x00",
    "an empty record": b"\x16\x03\x01\0\0" + made_hello(NAME),
    "a record too long": b"\x16\x03\x01\x40\x01",
    "a hello too long": b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
    "too many records": made_hello(NAME, size=3),
    "an odd list of suites": records(b"\x01" + vector(3, b"\x03\x03" + bytes(33) + vector(2, b"123") + b"\1\0")),
    "another version in the middle": made_hello(NAME, size=40)[:45] + b"\x16\x02\x01\0\x02\x01\x00",
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_servers_could_read_differently_is_refused(data: bytes) -> None:
    assert isinstance(sni_of(data), Malformed)


def test_a_hello_without_extensions_names_nobody() -> None:
    assert sni_of(records(message(None))) == Hello(name=None, ech=False, alpn=())


def test_no_more_is_asked_for_than_the_bound() -> None:
    head = b"\x16\x03\x01\x40\x00\x01" + (65532).to_bytes(3, "big")
    data = (head + bytes(16384 - 4)) + (b"\x16\x03\x01\x40\x00" + bytes(16384)) * (MAX_RECORDS - 1)
    assert sni_of(data[:60000]) is NEED_MORE
    assert isinstance(sni_of(data[:MAX_BYTES]), Malformed)
    final = sni_of(made_hello(server_name(b"a.example."), extension(21, bytes(60000))))
    assert isinstance(final, Hello) and final.name == "a.example"
