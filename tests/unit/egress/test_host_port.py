"""Hosts as guests write them: one spelling, or none."""

from __future__ import annotations

import pytest

from ringfence.egress.host_port import BadHost, HostPort, canonical_address, host_port


@pytest.mark.parametrize(("text", "found"), [
    ("api.example.com", HostPort(host="api.example.com")),
    ("API.Example.COM.:443", HostPort(host="api.example.com", port=443)),
    ("192.0.2.1:80", HostPort(host="192.0.2.1", port=80, is_address=True)),
    ("[2001:DB8:0::1]:8080", HostPort(host="2001:db8::1", port=8080, is_address=True)),
    ("xn--bcher-kva.example", HostPort(host="xn--bcher-kva.example")),
])  # fmt: skip
def test_a_host_has_one_spelling(text: str, found: HostPort) -> None:
    assert host_port(text) == found


@pytest.mark.parametrize("text", [
    "", ".", "a..b", ":80", "a:", "a:0", "a:65536", "a:+1", "a:8 0", "a:080808", "a:080", "a b", "a@b", "user@a:1",
    "a/b",
    "2130706433", "0177.0.0.1", "0x7f.1", "127.1", "1.2.3.4.5", "1.2.3.256", "01.2.3.4", "a.0x7f", "[::1", "[::1]x",
    "[fe80::1%lo]", "[127.0.0.1]", "[::ffff:10.0.0.1]", "::1", "a" * 254, "a" * 64 + ".b", "bücher.example", "a:٣",
    "*.example", "a\\b", "a%00",
])  # fmt: skip
def test_what_programs_read_differently_is_no_host(text: str) -> None:
    with pytest.raises(BadHost):
        host_port(text)


def test_an_address_of_bytes_has_the_same_spelling() -> None:
    assert canonical_address(bytes([10, 0, 0, 1])) == "10.0.0.1"
    assert canonical_address(bytes(10) + b"\xff\xff\x0a\0\0\1") == "10.0.0.1"
    assert canonical_address(bytes(15) + b"\1") == "::1"
