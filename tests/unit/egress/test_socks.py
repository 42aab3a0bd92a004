"""SOCKS5 as the gateway reads it."""

from __future__ import annotations

import pytest

from ringfence.egress.host_port import HostPort
from ringfence.egress.socks import Asked, BadSocks, SocksReader, SocksReply, reply

GREETING, GREETED = b"\x05\x01\x00", b"\x05\x00"


def asked(data: bytes) -> Asked | None:
    return SocksReader().receive(GREETING + data)[1]


def test_a_name_and_addresses_are_read() -> None:
    name = b"\x05\x01\0\x03\x0fAPI.example.com\x01\xbb"
    assert asked(name) == Asked(target=HostPort(host="api.example.com", port=443))
    four, six = b"\x05\x01\0\x01\x0a\x01\x02\x03\x15\x38", b"\x05\x01\0\x04" + bytes(15) + b"\x01\0\x50"
    assert asked(four) == Asked(target=HostPort(host="10.1.2.3", port=5432, is_address=True))
    assert asked(six) == Asked(target=HostPort(host="::1", port=80, is_address=True))
    mapped = b"\x05\x01\0\x04" + bytes(10) + b"\xff\xff\x0a\x01\x02\x03\0\x50"
    assert asked(mapped) == Asked(target=HostPort(host="10.1.2.3", port=80, is_address=True))
    assert asked(b"\x05\x01\0\x03\x0810.1.2.3\0\x50") == asked(b"\x05\x01\0\x01\x0a\x01\x02\x03\0\x50")


def test_it_is_read_as_it_arrives_and_what_follows_is_kept() -> None:
    reader, request = SocksReader(), b"\x05\x01\0\x03\x09a.example\0\x50"
    answers = [reader.receive(bytes([byte])) for byte in GREETING + request]
    assert [answer for answer, _ in answers if answer] == [GREETED]
    assert [event for _, event in answers if event] == [Asked(target=HostPort(host="a.example", port=80))]
    assert reader.receive(b"GET") == (b"", None) and reader.waiting == b"GET"


REFUSED = {
    "SOCKS4": (b"\x04\x01\0\x50\x0a\0\0\1\0", b""),
    "only with a password": (b"\x05\x01\x02", b"\x05\xff"),
    "no method": (b"\x05\x00", b"\x05\xff"),
    "BIND": (GREETING + b"\x05\x02\0\x01\x0a\0\0\1\0\x50", reply(SocksReply.COMMAND_NOT_SUPPORTED)),
    "UDP": (GREETING + b"\x05\x03\0\x01\x0a\0\0\1\0\x50", reply(SocksReply.COMMAND_NOT_SUPPORTED)),
    "an unknown kind": (GREETING + b"\x05\x01\0\x02\x0a", reply(SocksReply.ADDRESS_NOT_SUPPORTED)),
    "port 0": (GREETING + b"\x05\x01\0\x01\x0a\0\0\1\0\0", reply(SocksReply.FAILED)),
    "an empty name": (GREETING + b"\x05\x01\0\x03\0\0\x50", reply(SocksReply.FAILED)),
    "a NUL in the name": (GREETING + b"\x05\x01\0\x03\x03a\0b\0\x50", reply(SocksReply.FAILED)),
    "a name with a port": (GREETING + b"\x05\x01\0\x03\x04a:80\0\x50", reply(SocksReply.FAILED)),
    "a number": (GREETING + b"\x05\x01\0\x03\x0a2130706433\0\x50", reply(SocksReply.FAILED)),
    "another version": (GREETING + b"\x04\x01\0\x01", reply(SocksReply.FAILED)),
    "a reserved byte": (GREETING + b"\x05\x01\x01", reply(SocksReply.FAILED)),
}


@pytest.mark.parametrize(("data", "answer"), REFUSED.values(), ids=REFUSED.keys())
def test_everything_else_is_refused_with_its_reply(data: bytes, answer: bytes) -> None:
    with pytest.raises(BadSocks) as caught:
        SocksReader().receive(data)
    assert caught.value.answer == answer and str(caught.value)
