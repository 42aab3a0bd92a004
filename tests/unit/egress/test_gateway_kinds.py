"""The gateway with wildcards, networks, IPv6, inspection, and programs that know nothing of it."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import shutil
import socket
import ssl
import tempfile
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.unit.egress.tls_hellos import real_hello
from tests.unit.egress.world import (
    METADATA,
    PRIVATE,
    PUBLIC,
    World,
    echo,
    http,
    in_world,
    needs_ip,
    read_all,
    response,
)

from ringfence.egress import client
from ringfence.errors import SetupError
from ringfence.model.network_rule import NetworkRule

pytestmark = [pytest.mark.system, pytest.mark.privileges, needs_ip]


def get(host: str) -> bytes:
    return f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()


@in_world
def test_a_wildcard_has_more_names_than_addresses(world: World) -> None:
    names = [f"n{number}.example.com" for number in range(12)]
    world.answers |= {name: [PUBLIC] for name in names}
    world.server(80, http, PUBLIC)
    world.server(443, echo, PUBLIC)
    guest = world.guest("*.example.com")
    addresses = [guest.resolve(name) for name in names]
    assert addresses[-1] == addresses[-2] and len(set(addresses)) == 8
    for name in names:
        with guest.to(name, 80) as link:
            link.sendall(get(name))
            assert f"Host: {name}".encode() in read_all(link)
        first = real_hello(name)
        with guest.to(name, 443) as link:
            link.sendall(first)
            assert link.recv(65536) == first
    for data in (get("evil.example.net"), real_hello("evil.example.net"), b"\0raw"):
        with guest.connect(addresses[-1] or "", 80) as link:
            link.sendall(data)
            assert b"200 OK" not in read_all(link)
    with guest.to(names[0], 80) as link:
        link.sendall(get(names[1]))
        assert read_all(link).startswith(b"HTTP/1.1 421")
    assert guest.resolve("example.com") is None
    decisions = [event["decision"] for event in guest.events(29)]
    assert decisions.count("allowed") == 24 and decisions.count("refused") == 5


@in_world
def test_a_network_listens_everywhere_and_lets_through_what_it_lists(world: World) -> None:
    accepted = world.server(9000, echo, PRIVATE)
    guest = world.guest("10.1.0.0/16:9000", "api.example.com:9000")
    with guest.connect(PRIVATE, 9000) as link:
        link.sendall(b"\0x")
        assert link.recv(2) == b"\0x"
    for address in ("10.2.0.1", METADATA, PUBLIC, "127.0.0.1", "127.64.9.9"):
        with guest.connect(address, 9000) as link:
            link.sendall(b"\0x")
            assert read_all(link) == b""
    assert [event["decision"] for event in guest.events(6)] == ["allowed"] + ["refused"] * 5
    assert len(accepted) == 1


@in_world
def test_addresses_of_the_host_itself_are_refused_unless_listed(world: World) -> None:
    own = socket.create_server(("93.184.216.1", 9000))
    for rule, reached in (("93.184.216.0/24:9000", False), ("93.184.216.1:9000", True)):
        guest = world.guest(rule)
        with guest.connect("93.184.216.1", 9000) as link:
            if reached:
                own.accept()[0].sendall(b"hello")
                assert link.recv(9) == b"hello"
            else:
                assert read_all(link) == b""
        assert ("allowed" if reached else "refused") == guest.events()[0]["decision"]
    own.close()


@in_world
def test_ipv6_is_reached_as_itself(world: World) -> None:
    from tests.unit.egress.world import ip

    with world.at(world.there):
        ip("-6", "addr", "add", "2606:2800::1/64", "dev", "far", "nodad")
    ip("-6", "addr", "add", "2606:2800::2/64", "dev", "near", "nodad")
    world.answers["six.example.com"] = ["2606:2800::1"]
    with world.at(world.there):
        listening = socket.create_server(("2606:2800::1", 80), family=socket.AF_INET6)
    import threading

    threading.Thread(target=lambda: [http(listening.accept()[0]) for _ in range(2)], daemon=True).start()
    guest = world.guest("[2606:2800::1]:80", "six.example.com")
    with guest.connect("2606:2800::1", 80) as link:
        link.sendall(get("x"))
        assert b"200 OK" in read_all(link)
    with guest.to("six.example.com", 80) as link:
        link.sendall(get("six.example.com"))
        assert b"200 OK" in read_all(link)
    assert [event["address"] for event in guest.events(2)] == ["2606:2800::1"] * 2


# ---- inspection


def certificate(name: str) -> tuple[str, ssl.SSLContext]:
    """A certificate for a server that signs itself, and what serves it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName(name), x509.IPAddress(ipaddress.ip_address(PRIVATE))])
    made = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - datetime.timedelta(1)).not_valid_after(now + datetime.timedelta(1))
        .add_extension(names, critical=False).sign(key, hashes.SHA256())
    )  # fmt: skip
    pem = made.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile() as file:
        file.write(pem + secret)
        file.flush()
        context.load_cert_chain(file.name)
    return pem.decode(), context


@in_world
def test_an_inspected_rule_holds_methods_and_injects(world: World) -> None:
    pem, context = certificate("api.example.com")
    world.answers["api.example.com"] = [PUBLIC]
    world.server(443, lambda link: http(context.wrap_socket(link, server_side=True)), PUBLIC)
    rule = {"host": "api.example.com", "methods": ["GET"], "inject": {"header": "x-api-key", "from_env": "KEY"}}
    guest = world.guest(rule, secrets={"KEY": "s3cret-value"}, authorities=pem)
    trust = ssl.create_default_context(cadata=guest.registration.ca)

    def tls() -> ssl.SSLSocket:
        return trust.wrap_socket(guest.to("api.example.com", 443), server_hostname="api.example.com")

    with tls() as link:
        link.sendall(get("api.example.com").replace(b"Connection", b"X-Api-Key: mine\r\nConnection"))
        told = response(link)
        assert b"200 OK" in told and b"x-api-key: s3cret-value" in told.lower() and b"mine" not in told
    with tls() as link:
        link.sendall(b"DELETE / HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
        assert response(link).startswith(b"HTTP/1.1 403")
    with guest.to("api.example.com", 80) as link:  # a program that knows http:// only
        link.sendall(get("api.example.com"))
        assert b"200 OK" in response(link)
    with guest.proxy() as link:
        link.sendall(b"CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n")
        assert link.recv(999).startswith(b"HTTP/1.1 200")
        with trust.wrap_socket(link, server_hostname="api.example.com") as inner:
            inner.sendall(get("api.example.com"))
            assert b"200 OK" in response(inner)
    events = guest.events(4)
    assert [event["decision"] for event in events] == ["allowed", "refused", "allowed", "allowed"]
    assert "DELETE" in events[1]["reason"] and "s3cret" not in json.dumps(events)
    assert all(event["bytes_in"] for event in events if event["decision"] == "allowed")


@in_world
def test_a_plain_request_is_held_to_the_rule_of_the_port_that_it_reaches(world: World) -> None:
    pem, context = certificate("api.example.com")
    world.answers["api.example.com"] = [PUBLIC]
    world.server(443, lambda link: http(context.wrap_socket(link, server_side=True)), PUBLIC)
    rules = ({"host": "api.example.com", "ports": [80], "methods": ["GET"]},
             {"host": "api.example.com", "ports": [443], "paths": ["/v1/*"]})  # fmt: skip
    guest = world.guest(*rules, authorities=pem)
    for path, status in (("/v1/x", b"HTTP/1.1 200"), ("/admin", b"HTTP/1.1 403")):
        with guest.to("api.example.com", 80) as link:
            link.sendall(get("api.example.com").replace(b"/ ", f"{path} ".encode(), 1))
            assert response(link).startswith(status)


@in_world
def test_connections_that_one_of_the_guest_takes_to_the_server_are_counted(world: World) -> None:
    """The server closes after each response; the guest keeps its connection and asks again."""
    pem, context = certificate("api.example.com")

    def once(link: socket.socket) -> None:
        with context.wrap_socket(link, server_side=True) as tls:
            tls.recv(4096)
            tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            tls.unwrap()

    world.answers["api.example.com"] = [PUBLIC]
    accepted = world.server(443, once, PUBLIC)
    guest = world.guest({"host": "api.example.com", "methods": ["GET"]}, authorities=pem,
                        limits={"connections_per_second": 0.01})  # fmt: skip
    with guest.to("api.example.com", 80) as link:
        for _ in range(5):
            link.sendall(b"GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
            told = response(link)
            if not told.startswith(b"HTTP/1.1 200"):
                break
    assert len(accepted) == 1 and b"in a second" in told


@in_world
def test_a_server_that_can_not_be_verified_gets_no_request(world: World) -> None:
    _, context = certificate("api.example.com")
    got: list[bytes] = []
    world.answers["api.example.com"] = [PUBLIC]
    world.server(443, lambda link: got.append(context.wrap_socket(link, server_side=True).recv(99)), PUBLIC)
    guest = world.guest({"host": "api.example.com", "methods": ["GET"]})
    with guest.to("api.example.com", 80) as link:
        link.sendall(get("api.example.com"))
        told = read_all(link)
    assert told.startswith(b"HTTP/1.1 502") and b"certificate" in told
    assert guest.events()[0]["decision"] != "allowed" and got == []


def test_a_secret_without_a_value_is_refused_beforehand() -> None:
    rule = NetworkRule.of({"host": "a.example.com", "inject": {"header": "x-api-key", "from_env": "NO_SUCH_KEY"}})
    with pytest.raises(SetupError, match="NO_SUCH_KEY"):
        client.register([rule])
    client.shutdown()


# ---- programs


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@in_world
def test_curl_knows_nothing_of_it(world: World) -> None:
    pem, context = certificate("api.example.com")
    world.answers["api.example.com"] = [PUBLIC]
    world.server(80, http, PUBLIC)
    world.server(443, lambda link: http(context.wrap_socket(link, server_side=True)), PUBLIC)
    guest = world.guest("api.example.com")
    bundle = Path(tempfile.mkdtemp()) / "ca.pem"
    bundle.write_text(pem)
    curl = ["curl", "-sS", "--cacert", str(bundle)]
    assert b"GET /a" in guest.run(*curl, "http://api.example.com/a").stdout
    assert b"GET /b" in guest.run(*curl, "https://api.example.com/b").stdout
    for proxy in ("http://127.64.0.2:3128", "socks5h://127.64.0.2:3128", "socks5://127.64.0.2:3128"):
        done = guest.run(*curl, "-x", proxy, "https://api.example.com/c")
        # socks5:// has curl resolve the name itself, and what it then asks for is an address of the sandbox alone
        assert (b"GET /c" in done.stdout) == (not proxy.startswith("socks5:")), (proxy, done)
    assert guest.run(*curl, "https://evil.example.net/").returncode == 6
    assert guest.run(*curl, f"http://{METADATA}/", "--connect-timeout", "5").returncode == 7
    done = guest.run(*curl, "-x", "http://127.64.0.2:3128", f"http://{METADATA}/latest")
    assert b"metadata" in done.stdout and b"network" in done.stdout
    os.unlink(bundle)
