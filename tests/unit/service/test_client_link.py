"""The client's own HTTP: what it sends is one request and nothing else, and what it reads is one answer."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ringfence.client.connection import Connection
from ringfence.client.link import Link
from ringfence.errors import SandboxError, SupervisionError, UnavailableError, UsageError

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: b \r\n\r\n{}"


@contextmanager
def _server(*answers: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Each connection gets the next answer to its first bytes, and is then closed; (port, what was heard)."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for answer in answers:
                link, _ = listening.accept()
                with link:
                    for part in answer.split(b"<next>"):
                        heard.append(link.recv(1 << 20))
                        link.sendall(part)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1], heard
        thread.join(10)


def _link(port: int) -> Link:
    return Link("127.0.0.1", port, 30, tls=False)


def _exchanged(answer: bytes, data: bytes | None = None) -> tuple[int, dict[str, str], bytes]:
    with _server(answer) as (port, _):
        return _link(port).exchange("POST", "/x", data, {}, 1 << 20)


def test_head_and_body_are_one_write_and_the_connection_is_kept() -> None:
    with _server(OK + b"<next>" + OK) as (port, heard):
        link = _link(port)
        for _ in range(2):
            assert link.exchange("POST", "/x", b"body", {"a": "b"}, 100)[::2] == (200, b"{}")
        link.close()
    wanted = f"POST /x HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\na: b\r\ncontent-length: 4\r\n\r\nbody".encode()
    assert heard == [wanted, wanted]


def test_answers_are_read_in_every_form_that_a_proxy_may_give_them() -> None:
    assert _exchanged(OK) == (200, {"content-length": "2", "x-a": "b"}, b"{}")
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: x\r\n\r\n"
    assert _exchanged(chunked)[2] == b"abcde"
    assert _exchanged(b"HTTP/1.1 100 Continue\r\n\r\n" + OK)[2] == b"{}"
    assert _exchanged(b"HTTP/1.1 204 No Content\r\n\r\n")[::2] == (204, b"")
    status, told, body = _exchanged(b"HTTP/1.0 200 OK\r\n\r\nto the end")
    assert (status, told["connection"], body) == (200, "close", b"to the end")


@pytest.mark.parametrize("answer", [
    b"", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Le",
    b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 300 + b"\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
], ids=lambda answer: repr(answer[:50]))  # fmt: skip
def test_what_is_no_whole_answer_is_none(answer: bytes) -> None:
    with pytest.raises((OSError, http.client.HTTPException)):
        _exchanged(answer)


def test_no_line_of_a_head_is_anybody_elses() -> None:
    with _server(OK) as (port, heard):
        link = _link(port)
        for target in ("/x HTTP/1.1\r\nHost: evil", "/a b", "/\x00", "/\u00fc", "/a\n"):
            with pytest.raises(UsageError):
                link.exchange("GET", target, None, {}, 100)
        with pytest.raises(UsageError):
            link.exchange("GET", "/", None, {"authorization": "Bearer x\r\nHost: evil"}, 100)
        link.exchange("GET", "/%20", None, {}, 100)  # the control
        link.close()
    assert len(heard) == 1 and heard[0].startswith(b"GET /%20 ")


def test_a_request_that_was_heard_is_not_sent_again_unless_that_changes_nothing() -> None:
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"
    with _server(OK + b"<next>" + half) as (port, heard):
        connection = Connection(f"http://127.0.0.1:{port}", "", 0, 30)
        assert connection.json("POST", "/x", {}) == {}
        with pytest.raises(SupervisionError):
            connection.json("POST", "/x", {})
        assert len(heard) == 2
    with _server(half, OK) as (port, heard):
        assert Connection(f"http://127.0.0.1:{port}", "", 0, 30).json("POST", "/x", {}, key="once") == {}
    with _server(b"nonsense\r\n") as (port, _), pytest.raises(SandboxError):
        Connection(f"http://127.0.0.1:{port}", "", 0, 30).json("GET", "/x")


def test_a_service_that_says_nothing_is_not_said_to_be_missing() -> None:
    """A deadline of ours is an OSError too: nobody has to start what took a request and is at work."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asked = Connection(f"http://127.0.0.1:{silent.getsockname()[1]}", "", 0, 0.05)
        with pytest.raises(SupervisionError, match=r"said nothing for 0\.05 s, and may still do") as told:
            asked.json("POST", "/v1/runs", {})
    assert "timeout_s" in told.value.hint
    with pytest.raises(UnavailableError) as told:  # control: by now nobody listens there
        asked.json("POST", "/v1/runs", {})
    assert "ringfence serve" in told.value.hint
