"""Sockets of an empty network namespace: every address leads to them or nowhere, and who holds them accepts outside."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from struct import unpack_from

import pytest
from tests.unit.kernel.forked import Child, in_child

from ringfence.kernel import listening
from ringfence.kernel.mount import namespaces

pytestmark = [pytest.mark.system, pytest.mark.privileges]

RESOLVER = "127.64.0.1"
DNS = [(RESOLVER, 53, "udp"), (RESOLVER, 53, "tcp")]
ROWS = [*DNS, ("127.64.1.0", 80, "tcp"), ("203.0.113.7", 443, "tcp"), ("0.0.0.0", 5432, "tcp")]
ROWS6 = [("2001:db8::7", 443, "tcp"), ("::", 8443, "tcp")]
needs_ipv6 = pytest.mark.skipif(not listening.has_ipv6(), reason="this kernel has no IPv6")


def _enter() -> None:
    """An empty network of our own, as pid 1 of a sandbox has it."""
    uid, gid = os.geteuid(), os.getegid()
    namespaces.unshare(["user", "net"])
    namespaces.map_ids("self", (uid, gid), (0, 0))
    namespaces.loopback_up()


def _connected(address: str, port: int, kind: int = socket.SOCK_STREAM) -> int:
    """0, or the number of the error."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind) as link:
        link.settimeout(5)
        return link.connect_ex((address, port))


def _inside(rows: list[tuple[str, int, str]], ask: Callable[[], object], ipv6: bool = False) -> object:
    def work() -> object:
        _enter()
        listening.lead_everywhere_here(ipv6=ipv6)
        held = [each for group in listening.sockets(rows) for each in group]
        assert len(held) == len(rows)
        return ask()

    return in_child(work)


def test_every_address_leads_to_a_socket_of_ours_or_nowhere() -> None:
    def ask() -> list[int]:
        asked = [("127.64.1.0", 80), ("203.0.113.7", 443), ("198.51.100.9", 5432), ("127.0.0.1", 5432),
                 ("127.64.1.1", 80), ("203.0.113.7", 80), ("169.254.169.254", 80)]  # fmt: skip
        return [_connected(*each) for each in asked]

    assert _inside(ROWS, ask) == [0, 0, 0, 0, *[errno.ECONNREFUSED] * 3]


@needs_ipv6
def test_the_same_with_ipv6_which_keeps_out_of_ipv4() -> None:
    def ask() -> list[int]:
        asked = [("2001:db8::7", 443), ("2001:db8::8", 8443), ("2001:db8::7", 80), ("127.0.0.1", 8443)]
        return [_connected(*each) for each in asked]

    assert _inside(ROWS6, ask, ipv6=True) == [0, 0, errno.ECONNREFUSED, errno.ECONNREFUSED]


def test_names_are_asked_by_udp_and_by_tcp() -> None:
    assert _inside(DNS, lambda: [_connected(RESOLVER, 53), _connected(RESOLVER, 53, socket.SOCK_DGRAM)]) == [0, 0]


def test_they_accept_outside_of_the_namespace_and_tell_which_address_was_asked_for() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def work() -> str:
        _enter()
        listening.lead_everywhere_here(ipv6=False)
        (group,) = listening.sockets([*DNS, ("0.0.0.0", 80, "tcp")])
        socket.send_fds(theirs, [b"s"], group)
        for each in group:
            os.close(each)
        with socket.create_connection(("198.51.100.9", 80), 5) as link:
            return link.recv(10).decode()

    child = Child(work)
    _, descriptors, _, _ = socket.recv_fds(ours, 1, 8)
    udp, tcp, wildcard = (socket.socket(fileno=each) for each in descriptors)
    with ours, theirs, udp, tcp, wildcard:
        assert (udp.type, tcp.type) == (socket.SOCK_DGRAM, socket.SOCK_STREAM)
        wildcard.settimeout(10)
        accepted, _ = wildcard.accept()
        with accepted:
            assert accepted.getsockname() == ("198.51.100.9", 80)
            accepted.sendall(b"hello")
        assert child.result() == "hello"


def test_the_guest_can_take_none_of_their_ports() -> None:
    def ask() -> list[int]:
        found = []
        for address, kind in (("127.64.1.0", socket.SOCK_STREAM), ("0.0.0.0", socket.SOCK_STREAM)):
            for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
                with socket.socket(socket.AF_INET, kind) as link:
                    link.setsockopt(socket.SOL_SOCKET, option, 1)
                    try:
                        link.bind((address, 80))
                        link.listen()
                    except OSError as error:
                        found.append(error.errno)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            try:
                link.bind((RESOLVER, 53))
            except OSError as error:
                found.append(error.errno)
        return found

    assert _inside(ROWS, ask) == [errno.EADDRINUSE] * 5


def test_many_are_sent_in_groups_that_fit_into_a_message() -> None:
    def work() -> list[int]:
        _enter()
        listening.lead_everywhere_here(ipv6=False)
        rows = [("127.64.1.0", port, "tcp") for port in range(1, 20)]
        return [len(group) for group in listening.sockets(rows)]

    assert in_child(work) == [8, 8, 3]


def test_a_socket_that_can_not_be_made_names_its_address() -> None:
    def work() -> str:
        _enter()
        listening.lead_everywhere_here(ipv6=False)
        try:
            list(listening.sockets([("127.64.1.0", 80, "tcp")] * 2))
        except OSError as error:
            return str(error)
        return ""

    assert "127.64.1.0 port 80" in in_child(work)


def test_a_route_that_is_there_already_is_no_failure_and_no_permission_is_one() -> None:
    def twice() -> bool:
        _enter()
        listening.lead_everywhere_here(ipv6=False)
        listening.lead_everywhere_here(ipv6=False)
        return True

    assert in_child(twice)


def test_the_message_is_the_one_that_the_kernel_documents() -> None:
    message = listening.route_message(socket.AF_INET, 1)
    length, kind, flags = unpack_from("=IHH", message)
    assert (length, kind, flags) == (len(message), 24, 0x605)
    assert message[16:24] == bytes((socket.AF_INET, 0, 0, 0, 255, 4, 254, 2))
    assert message[28:] == b"\x08\0\x04\0\x01\0\0\0"
