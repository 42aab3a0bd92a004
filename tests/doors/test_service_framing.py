"""Where a request ends: what a client sends as one request is one to the service too. A proxy that reuses a connection
for several clients depends on that."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.patience import PATIENCE_S
from tests.service_server import QUICK, Here, running, settings, token_file

from ringfence.service.settings import NamedPolicy

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]
OFFERS = ["Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
          "Connection: Upgrade\r\nUpgrade: websocket\r\n"]  # fmt: skip
_RUN = json.dumps({"argv": ["echo", "ran"]}).encode()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    folder = tmp_path_factory.mktemp("framed")
    tokens, known = token_file(folder, {"name": "owner"})
    policies = {"default": NamedPolicy(name="default", policy=QUICK)}
    with running(settings(folder, tokens=tokens, policies=policies)) as found:
        found.token = known["owner"]  # type: ignore[attr-defined]
        yield found


def _head(here: Here, begin: str, more: str, size: int, token: str = "") -> bytes:
    who = f"Authorization: Bearer {token}\r\n" if token else ""
    lines = f"{begin} HTTP/1.1\r\nHost: 127.0.0.1:{here.port}\r\n{who}{more}Content-Type: application/json\r\n"
    return f"{lines}Content-Length: {size}\r\n\r\n".encode()


def _hidden(here: Here) -> bytes:
    """A request that is the body of another one."""
    return f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{here.port}\r\nConnection: close\r\n\r\n".encode()


def _until(link: socket.socket, end: bytes) -> bytes:
    heard = b""
    while end not in heard and (piece := link.recv(1 << 16)):
        heard += piece
    return heard


def _to_the_end(link: socket.socket) -> bytes:
    heard = b""
    with suppress(ConnectionError):
        while piece := link.recv(1 << 16):
            heard += piece
    return heard


@pytest.mark.parametrize("begin", ["POST /v1/runs", "CONNECT /v1/runs"])
@pytest.mark.parametrize("offer", ["", *OFFERS], ids=["no offer", "h2c", "websocket"])
def test_a_body_behind_an_offer_of_another_protocol_is_no_request(here: Here, begin: str, offer: str) -> None:
    body = _hidden(here)
    with socket.create_connection(("127.0.0.1", here.port), timeout=PATIENCE_S) as link:
        link.sendall(_head(here, begin, offer, len(body)))
        heard = _until(link, b'"}}')  # it is refused before its body comes
        with suppress(ConnectionError):
            link.sendall(body)
            if not offer and begin.startswith("POST"):  # the control: the next one on this connection is heard
                link.sendall(body)
        heard += _to_the_end(link)
    is_control = not offer and begin.startswith("POST")
    assert heard.count(b"HTTP/1.1 ") == 1 + is_control and (b'"status":"ok"' in heard) is is_control


@pytest.mark.parametrize("offer", ["", *OFFERS], ids=["no offer", "h2c", "websocket"])
@pytest.mark.parametrize("pieces", [0, 1, 2])
def test_a_client_that_offers_another_protocol_is_served_as_without(here: Here, offer: str, pieces: int) -> None:
    """Java's client offers h2c with each first request. ``pieces`` of the body come after its head was read."""
    more = offer + ("Expect: 100-continue\r\n" if pieces else "")
    head = _head(here, "POST /v1/runs", more, len(_RUN), here.token)  # type: ignore[attr-defined]
    with socket.create_connection(("127.0.0.1", here.port), timeout=PATIENCE_S) as link:
        if pieces:
            link.sendall(head)
            assert _until(link, b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
        begin = len(_RUN) // 2 if pieces == 2 else len(_RUN)
        link.sendall(_RUN[:begin] if pieces else head + _RUN)
        link.sendall(_RUN[begin:] + _hidden(here) if offer else _RUN[begin:])
        heard = _to_the_end(link) if offer else _until(link, b'"error":null}')
    assert heard.startswith(b"HTTP/1.1 200 ") and b'"stdout":"ran\\n"' in heard
    assert heard.count(b"HTTP/1.1 ") == 1 and (b"connection: close" in heard) is bool(offer)


def test_http_2_without_an_offer_is_refused(here: Here) -> None:
    with socket.create_connection(("127.0.0.1", here.port), timeout=PATIENCE_S) as link:
        link.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _hidden(here))
        heard = _to_the_end(link)
    assert heard.startswith(b"HTTP/1.1 400 ") and heard.count(b"HTTP/1.1 ") == 1
