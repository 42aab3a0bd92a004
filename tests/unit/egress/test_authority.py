"""Certificates of one sandbox's own authority, as the clients of ``ssl`` judge them."""

from __future__ import annotations

import ssl

import pytest

from ringfence.egress.authority import Authority


def handshake(authority: Authority, served: str, asked: str, *alpn: str) -> ssl.SSLObject:
    """Return the client's end after a handshake without sockets; an SSLError is that of the client."""
    context = ssl.create_default_context(cadata=authority.pem())
    context.set_alpn_protocols(list(alpn or ("h2", "http/1.1")))
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(down, up, server_hostname=asked)
    server = authority.context_for(served).wrap_bio(up, down, server_side=True)
    for end in (client, server, client, server):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            pass
    return client


@pytest.mark.parametrize(("names", "name"), [
    ((), "api.example.com"), (("api.example.com",), "api.example.com"), (("*.example.com",), "a.b.example.com"),
    (("10.1.2.0/24",), "10.1.2.3"), (("2001:db8::1",), "2001:db8::1"), (("api.example.com", "10.1.2.3"), "10.1.2.3"),
])  # fmt: skip
def test_a_client_that_trusts_the_authority_takes_its_certificates(names: tuple[str, ...], name: str) -> None:
    client = handshake(Authority(names), name, name)
    assert client.getpeercert() and client.selected_alpn_protocol() == "http/1.1"


def test_no_other_protocol_than_http_1_is_agreed_on() -> None:
    assert handshake(Authority(), "a.example", "a.example", "h2").selected_alpn_protocol() is None


@pytest.mark.parametrize(("names", "name"), [
    (("api.example.com",), "other.example.com"), (("api.example.com",), "10.1.2.3"), (("10.1.2.0/24",), "a.example"),
    (("10.1.2.0/24",), "10.1.3.1"),
])  # fmt: skip
def test_certificates_for_names_that_are_not_listed_are_taken_by_nobody(names: tuple[str, ...], name: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="subtree"):
        handshake(Authority(names), name, name)


def test_a_certificate_is_for_its_name_alone_and_of_its_own_authority() -> None:
    authority = Authority()
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(authority, "a.example", "b.example")
    one, other = ssl.create_default_context(cadata=Authority().pem()), Authority()
    assert one.cert_store_stats()["x509_ca"] == 1
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(_Trusted(authority.pem(), other), "a.example", "a.example")


class _Trusted(Authority):
    """Shows the certificate of one authority and serves those of another."""

    def __init__(self, pem: str, other: Authority) -> None:
        self._pem = pem
        self.context_for = other.context_for  # type: ignore[method-assign]

    def pem(self) -> str:
        return self._pem


def test_a_name_has_one_context_and_what_is_public_has_no_key() -> None:
    authority = Authority(("a.example",))
    assert authority.context_for("a.example") is authority.context_for("a.example")
    assert "PRIVATE" not in authority.pem()


def test_the_number_of_names_of_a_wildcard_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfence.egress.authority._MAX_LEAVES", 3)
    authority = Authority()
    for number in range(10):
        authority.context_for(f"n{number}.example")
    assert list(authority._leaves) == ["n7.example", "n8.example", "n9.example"]
