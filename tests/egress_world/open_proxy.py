"""For controls: a proxy without rules where a sandbox has the gateway's, and a service of the callers' own host."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from tests.egress_world import CALLERS_PORT

PROXY = ("127.64.0.2", 3128)
_heard: list[list[object]] = []


def take_heard() -> list[list[object]]:
    taken, _heard[:] = list(_heard), []
    return taken


def start() -> None:
    _serve(PROXY, _proxy)
    _serve(("0.0.0.0", CALLERS_PORT), _service)


def _serve(address: tuple[str, int], serve: Callable[[socket.socket], None]) -> None:
    server = socket.create_server(address, backlog=64)

    def loop() -> None:
        while True:
            peer, _ = server.accept()
            threading.Thread(target=_quietly, args=(serve, peer), daemon=True).start()

    threading.Thread(target=loop, daemon=True).start()


def _quietly(serve: Callable[[socket.socket], None], peer: socket.socket) -> None:
    with peer:
        try:
            serve(peer)
        except (OSError, ValueError, IndexError):
            pass


def _service(peer: socket.socket) -> None:
    _heard.append([*peer.getsockname(), ""])
    peer.sendall(b"raw server\n")


def _proxy(peer: socket.socket) -> None:
    """CONNECT, absolute-form, SOCKS4 and SOCKS5, wherever they lead."""
    first = peer.recv(65536)
    if first[0] == 5:
        peer.sendall(b"\x05\x00")
        _socks5(peer, peer.recv(65536))
    elif first[0] == 4:
        port, address = int.from_bytes(first[2:4], "big"), socket.inet_ntoa(first[4:8])
        name = first[9:-1].decode() if address.startswith("0.0.0.") else address
        _relay(peer, _connect(name, port), b"\x00\x5a" + bytes(6), b"")
    else:
        while b"\r\n\r\n" not in first:
            first += peer.recv(65536)
        _http(peer, first)


def _socks5(peer: socket.socket, request: bytes) -> None:
    kind = request[3]
    if kind == 3:
        name, rest = request[5 : 5 + request[4]].decode(), request[5 + request[4] :]
    else:
        size = 4 if kind == 1 else 16
        name = socket.inet_ntop(socket.AF_INET if kind == 1 else socket.AF_INET6, request[4 : 4 + size])
        rest = request[4 + size :]
    _relay(peer, _connect(name, int.from_bytes(rest[:2], "big")), b"\x05\x00\x00\x01" + bytes(6), b"")


def _http(peer: socket.socket, first: bytes) -> None:
    method, target, _ = first.split(b"\r\n")[0].split(b" ")
    if method == b"CONNECT":
        host, _, port = target.decode().rpartition(":")
        _relay(peer, _connect(host.strip("[]"), int(port)), b"HTTP/1.1 200 OK\r\n\r\n", first.partition(b"\r\n\r\n")[2])
        return
    place, _, path = target.decode().partition("://")[2].partition("/")
    host, _, port = place.partition(":")
    head = first.replace(target, b"/" + path.encode(), 1)
    _relay(peer, _connect(host, int(port or 80)), b"", head)


def _connect(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), 5)


def _relay(peer: socket.socket, other: socket.socket, reply: bytes, data: bytes) -> None:
    peer.sendall(reply)
    other.sendall(data)

    def back() -> None:
        try:
            while piece := other.recv(65536):
                peer.sendall(piece)
            peer.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    thread = threading.Thread(target=back, daemon=True)
    thread.start()
    with other:
        while piece := peer.recv(65536):
            other.sendall(piece)
        other.shutdown(socket.SHUT_WR)
        thread.join(5)
