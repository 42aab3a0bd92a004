"""The server that the egress question asks: static bytes over HTTP and TLS, and a port that says back a byte.

A process of its own, ``python -m bench.egress_server BYTES``. It prints where it listens and by whom it is certified as
one line of JSON, and ends when its input does.
"""

from __future__ import annotations

import contextlib
import json
import resource
import selectors
import socket
import ssl
import sys
import threading
from collections.abc import Callable

from ringfence.egress.authority import Authority

ADDRESS = "127.0.0.1"
_BLOCK = bytes(range(256)) * 4096


def main(size: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    authority = Authority([ADDRESS])
    context = authority.context_for(ADDRESS)
    made = {name: socket.create_server((ADDRESS, 0), backlog=2048) for name in ("http", "https", "inspected", "echo")}
    _in_background(_accept, made["http"], lambda link: _serve(link, size))
    for name in ("https", "inspected"):
        _in_background(_accept, made[name], lambda link: _serve_tls(link, context, size))
    _in_background(_echo, made["echo"])
    told = {name: each.getsockname()[1] for name, each in made.items()}
    print(json.dumps(told | {"ca": authority.pem()}), flush=True)
    sys.stdin.read()


def _in_background(work: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()


def _accept(door: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    while True:
        link = door.accept()[0]
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _in_background(serve, link)


def _serve_tls(link: socket.socket, context: ssl.SSLContext, size: int) -> None:
    with contextlib.suppress(OSError):
        _serve(context.wrap_socket(link, server_side=True), size)
    link.close()


def _serve(link: socket.socket, size: int) -> None:
    """Requests of one connection; ``/big`` is answered with all the bytes."""
    with contextlib.suppress(OSError), link:
        while head := _head(link):
            left = size if head.startswith(b"GET /big ") else 2
            link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % left)
            while left > 0:
                link.sendall(_BLOCK[:left])
                left -= len(_BLOCK)


def _head(link: socket.socket) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        data = link.recv(65536)
        if not data:
            return b""
        head += data
    return head


def _echo(door: socket.socket) -> None:
    """Says back what it is told, over as many connections as there are, in one thread."""
    watched = selectors.DefaultSelector()
    watched.register(door, selectors.EVENT_READ)
    while True:
        for key, _ in watched.select():
            link = key.fileobj
            assert isinstance(link, socket.socket)
            if link is door:
                watched.register(door.accept()[0], selectors.EVENT_READ)
                continue
            try:
                data = link.recv(4096)
                link.sendall(data)
            except OSError:
                data = b""
            if not data:
                watched.unregister(link)
                link.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
