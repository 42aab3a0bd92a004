"""The client's own HTTP: what it sends is one request and nothing else, what it reads is one answer, and no
answer is believed further than it can be read."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.patience import eventually

from ringfence.client.box import RemoteBox
from ringfence.client.client import Client
from ringfence.client.connection import Connection
from ringfence.client.link import Link
from ringfence.errors import SandboxError, SupervisionError, UnavailableError, UsageError
from ringfence.model.events import OnOutput
from ringfence.model.outcome import Outcome

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
    b"HTTP/1.1 " + b"2" * 5000 + b" x\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 20 + OK,
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


def test_what_has_no_key_is_sent_once_also_after_a_pause() -> None:
    """The service has heard it, and its answer is lost on the way: nobody knows whether it was carried out."""
    with _server(OK + b"<next>", OK) as (port, heard):
        connection = Connection(f"http://127.0.0.1:{port}", "", 0, 30)
        assert connection.json("POST", "/v1/boxes/b/commit", {}) == {}
        with pytest.raises(SupervisionError, match="was lost"):
            connection.json("POST", "/v1/boxes/b/commit", {})
        assert len(heard) == 2
        assert connection.json("POST", "/v1/boxes/b/commit", {}) == {}  # the next one has a new connection
    with _server(OK + b"<next>", OK) as (port, heard):  # the control: with a key it is sent again
        connection = Connection(f"http://127.0.0.1:{port}", "", 0, 30)
        for _ in range(2):
            assert connection.json("POST", "/v1/boxes/b/runs", {}, key="once") == {}
        assert len(heard) == 3


def test_a_connection_that_ended_in_a_pause_costs_no_request() -> None:
    with _server(OK, OK) as (port, heard):
        connection = Connection(f"http://127.0.0.1:{port}", "", 0, 30)
        assert connection.json("POST", "/v1/boxes", {}) == {}
        eventually(lambda: connection._own.link.is_over)
        assert connection.json("POST", "/v1/boxes", {}) == {}
        assert len(heard) == 2
    with _server(OK + b"<next>" + OK) as (port, _):  # the control
        link = _link(port)
        assert not link.is_over
        link.exchange("POST", "/x", b"body", {}, 100)
        assert not link.is_over
        link.exchange("POST", "/x", b"body", {}, 100)
        link.close()


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


# ---- what an answer says


def _answer(status: int, body: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n%s\r\n" % (status, len(body), more) + body


def _run(port: int, on_output: OnOutput | None = None, patience_s: float = 0.0) -> Outcome:
    return Client(f"http://127.0.0.1:{port}", token="", patience_s=patience_s).run(["true"], on_output=on_output)


_DOCUMENT = b'{"id": "x", "outcome": {"status": "OK", "rc": 0, "reason": "", "stdout": "one"}}'


@pytest.mark.parametrize(("answer", "kind", "words"), [
    (_answer(200, b"<html>"), SupervisionError, "can't be read"),
    (_answer(200, b"[1]"), SupervisionError, "not a JSON object"),
    (_answer(200, b"[" * 200_000), SupervisionError, "can't be read"),
    (_answer(200, b""), SandboxError, "the run is None"),
    (_answer(200, b'{"id": "x", "outcome": {"status": "NEW"}}'), SupervisionError, "can't be read"),
    (_answer(200, b'{"id": "x", "outcome": [1]}'), SupervisionError, "can't be read"),
    (_answer(200, b'{"id": "x", "error": "text"}'), SupervisionError, "can't be read"),
    (_answer(200, b'{"outcome": {"status": "OK"}}'), SupervisionError, "has no id"),
    (_answer(502, b'{"error": "bad gateway"}'), SandboxError, "answered with 502"),
    (_answer(502, b"[" * 200_000), SandboxError, "answered with 502"),
    (_answer(422, b'{"error": {"type": "UnavailableError", "message": "m", "missing": 5}}'), UnavailableError, "m"),
    (_answer(429, b"{}", b"Retry-After: \xb2\r\n"), UnavailableError, "answered with 429"),
], ids=lambda value: repr(value)[:60])  # fmt: skip
def test_an_answer_of_any_kind_is_an_error_of_ours(answer: bytes, kind: type[SandboxError], words: str) -> None:
    with _server(answer) as (port, _), pytest.raises(kind, match=words):
        _run(port)


def test_an_answer_as_it_should_be_is_an_outcome() -> None:
    with _server(_answer(200, _DOCUMENT)) as (port, _):
        assert _run(port).stdout == b"one"


def test_what_a_method_takes_out_of_an_answer_must_be_there() -> None:
    for call in (RemoteBox.files, RemoteBox.changes, RemoteBox.discard, RemoteBox.create_checkpoint):
        with _server(_answer(200, b'{"files_restored": []}')) as (port, _), pytest.raises(SupervisionError):
            call(RemoteBox(Connection(f"http://127.0.0.1:{port}", "", 0, 30), "b"))
    with _server(_answer(200, b'{"files_restored": 3}')) as (port, _):  # the control
        assert RemoteBox(Connection(f"http://127.0.0.1:{port}", "", 0, 30), "b").discard() == 3


@pytest.mark.parametrize("address", [
    "http://127.0.0.1:99999", "http://127.0.0.1:x", "http://[::1", "http://127.0.0.1:8700?x=1", "http://a..b:1",
    f"http://{'a' * 70}:1", "http://127.0.0.1:0", "http://127.0.0.1:8700/#x",
])  # fmt: skip
def test_what_is_no_address_is_said_at_once(address: str) -> None:
    with pytest.raises(UsageError, match="not the address of a service"):
        Client(address)
    Client("http://[::1]:8700/")  # the control


def test_a_service_that_says_come_again_at_once_is_not_asked_without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("ringfence.client.connection.time.sleep", waits.append)
    full = _answer(429, b'{"error": {"type": "Full", "message": "m"}}', b"Retry-After: 0\r\nConnection: close\r\n")
    with _server(full, full, _answer(200, _DOCUMENT)) as (port, _):
        assert _run(port, patience_s=60).ok
    assert waits == [0.1, 0.1]
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"
    with _server(full, full, half, half, full, half, _answer(200, _DOCUMENT)) as (port, asked):  # nor given up
        assert _run(port, patience_s=60).ok
    assert len(asked) == 7


# ---- streams of events

_BEGUN = _answer(202, b'{"id": "x"}', b"Connection: close\r\n")
_STREAM = b"HTTP/1.1 200 OK\r\n\r\n"
_ONE = b'id: 1\nevent: output\ndata: {"stream": "stdout", "data": "one"}\n\n'
_END = b"id: 2\nevent: end\ndata: " + _DOCUMENT + b"\n\n"


def _heard(*answers: bytes, patience_s: float = 0.0) -> tuple[list[bytes], bytes, list[bytes]]:
    """What a listener heard, what the outcome has, and what was asked."""
    told: list[bytes] = []
    with _server(_BEGUN, *answers) as (port, asked):
        outcome = _run(port, lambda stream, piece: told.append(piece), patience_s)
    return told, outcome.stdout, asked


def test_a_stream_is_followed_over_connections_and_in_chunks() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    pieces = (_END[:30], _END[30:31], _END[31:])
    rest = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    told, stdout, asked = _heard(_STREAM + _ONE, chunked + rest + b"0\r\n\r\n")
    assert told == [b"one"] and stdout == b"one" and b"last-event-id: 1\r\n" in asked[2]


@pytest.mark.parametrize("event", [
    b"id: 1\nevent: output\ndata: {\n\n", b'id: 1\nevent: output\ndata: "\xff"\n\n',
    b"id: 1\r2\nevent: state\ndata: {}\n\n", b"id: 1\nevent: output\ndata: {}\n\n",
    b'id: 1\nevent: output\ndata: {"stream": "other", "data": ""}\n\n', b"id: 1\nevent: end\ndata: 5\n\n",
    b'id: 1\nevent: output\ndata: {"stream": "stdout", "data": 5}\n\n',
])  # fmt: skip
def test_an_event_of_any_kind_is_an_error_of_ours(event: bytes) -> None:
    with pytest.raises(SupervisionError, match="can't be read"):
        _heard(_STREAM + event)


def test_a_stream_that_only_repeats_itself_comes_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfence.client.connection.time.sleep", lambda _: None)
    again = _STREAM + b"id: 1\nevent: state\ndata: {}\n\n"
    with _server(_BEGUN, *[again] * 3) as (port, asked):
        with pytest.raises(SupervisionError, match="was lost"):
            _run(port, lambda stream, piece: None)
        assert len(asked) == 4
    on = [_STREAM + b"id: %d\nevent: state\ndata: {}\n\n" % number for number in range(1, 9)]
    assert len(_heard(*on, _STREAM + _END.replace(b"id: 2", b"id: 9"))[2]) == 10  # the control: it goes on


def test_a_full_service_is_asked_again_for_events(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("ringfence.client.connection.time.sleep", waits.append)
    full = _answer(429, b'{"error": {"type": "Refused", "message": "m"}}', b"Retry-After: 7\r\n")
    assert _heard(*[full] * 5, _STREAM + _ONE + _END, patience_s=60)[0] == [b"one"] and waits == [7.0] * 5
    with pytest.raises(SandboxError, match="m"):  # the control: without patience
        _heard(full)


# ---- output that is not told any more


def _outcome(stdout: bytes, dropped: int = 0) -> bytes:
    told = {"status": "OK", "rc": 0, "reason": "", "stdout": stdout.decode(), "stdout_dropped": dropped}
    document = json.dumps({"id": "x", "outcome": told}).encode()
    return b"id: 9\nevent: end\ndata: " + document + b"\n\n"


_GAP = b'id: 5\nevent: dropped\ndata: {"events": 4}\n\n'
_LATE = _ONE.replace(b"id: 1", b"id: 6").replace(b"one", b"four")


@pytest.mark.parametrize(("events", "told"), [
    (_ONE + _outcome(b"one"), [b"one"]),
    (_ONE + _GAP + _LATE + _outcome(b"onetwothreefour"), [b"one", b"twothreefour"]),
    (_GAP + _outcome(b"onetwo"), [b"onetwo"]),
    (_ONE + _GAP + _outcome(b"one"), [b"one"]),
    (_ONE + _GAP + _outcome(b"onetwo\n[TRUNCATED] 12 bytes dropped\n", 12), [b"one", b"two"]),
    (_ONE + _GAP + _outcome(b"o\n[TRUNCATED] 12 bytes dropped\n", 12), [b"one"]),
])  # fmt: skip
def test_output_that_the_service_has_dropped_comes_from_the_outcome(events: bytes, told: list[bytes]) -> None:
    assert _heard(_STREAM + events)[0] == told


@pytest.mark.parametrize("events", [
    _ONE + _GAP + _outcome(b"the end alone"), _ONE + _GAP + _outcome(b"on"), _GAP + _LATE + _outcome(b"our"),
])  # fmt: skip
def test_output_that_is_nowhere_any_more_is_missed_aloud(events: bytes) -> None:
    with pytest.raises(SupervisionError, match="lost on the way"):
        _heard(_STREAM + events)
