"""Requests to a service: each thread keeps a connection, and requests are retried where that is safe."""

from __future__ import annotations

import http.client
import ipaddress
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO
from urllib.parse import SplitResult, urlencode, urlsplit

from ringfence.client.link import Link
from ringfence.client.wire import ToldObject, read_error, understood
from ringfence.errors import SandboxError, SupervisionError, UnavailableError, UsageError, is_of_a_call

_MOST_ANSWER_BYTES = 1 << 30
_LOST = (http.client.RemoteDisconnected, http.client.IncompleteRead, ConnectionResetError, BrokenPipeError)
_TRIES = 3
_LINE_BYTES = 64 << 20
_LEAST_WAIT_S = 0.1
_SECONDS = re.compile("[0-9]{1,9}")
_NUMBER = re.compile("[0-9]{1,18}")


class Connection:
    """The connection to one service, for any number of threads."""

    def __init__(
        self, address: str, token: str, patience_s: float, timeout_s: float, *, plain_http: bool = False
    ) -> None:
        """``patience_s``: how long a full service is asked again. ``timeout_s``: of silence on a connection."""
        parts = _address(address)
        assert parts.hostname
        if token and parts.scheme == "http" and not plain_http and not _is_here(parts.hostname):
            raise UsageError(f"{parts.hostname} is another machine, and plain HTTP would expose the token",
                             hint="use https, or pass plain_http=True if something else protects the way")  # fmt: skip
        self._parts, self._patience_s, self._timeout_s = parts, patience_s, timeout_s
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._own = threading.local()

    def _link(self) -> Link:
        assert self._parts.hostname
        tls = self._parts.scheme == "https"
        return Link(self._parts.hostname, self._parts.port, self._timeout_s, tls=tls)

    def json(
        self, method: str, path: str, body: object = None, *, key: str = "", query: Mapping[str, object] | None = None
    ) -> ToldObject:
        """The answer to a request with or without JSON; a refusal is raised as the library would raise it."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"} if body is not None else {}
        answer = self.octets(method, path, data, headers | ({"idempotency-key": key} if key else {}), query)
        return understood(_object, answer)

    def octets(
        self, method: str, path: str, data: bytes | None = None, headers: Mapping[str, str] | None = None,
        query: Mapping[str, object] | None = None,
    ) -> bytes:  # fmt: skip
        """The same in bytes. A request that may have been received is sent again only if that is harmless."""
        target = f"{path}?{urlencode(query)}" if query else path
        given = {**self._headers, **(headers or {})}
        safe = method in ("GET", "PUT", "DELETE") or "idempotency-key" in given
        end = time.monotonic() + self._patience_s
        lost = 0  # connections in a row
        while True:
            try:
                status, told, answer = self._once(method, target, data, given)
            except _LOST as error:
                lost += 1
                if safe and lost < _TRIES:
                    continue
                raise SupervisionError(f"the connection to the service was lost: {error}") from error
            except (OSError, http.client.HTTPException) as error:
                raise UnavailableError(f"{self._parts.geturl()}: {error}", missing=("the service",),
                                       hint="start it: ringfence serve") from error  # fmt: skip
            lost = 0
            if _has_waited(status, told, end):
                continue
            if status >= 400:
                raise refused(status, answer)
            return answer

    def _once(
        self, method: str, target: str, data: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        link: Link | None = getattr(self._own, "link", None)
        if link is not None and link.is_over:
            self._own.link = None
            link.close()
            link = None
        if link is None:
            link = self._own.link = self._link()
        try:
            status, told, body = link.exchange(method, target, data, headers, _MOST_ANSWER_BYTES)
        except BaseException as error:
            self._own.link = None
            link.close()
            if isinstance(error, TimeoutError) and not is_of_a_call(error):
                raise self._silence() from error
            raise
        if "close" in told.get("connection", "").lower():
            self._own.link = None
            link.close()
        return status, told, body

    def _silence(self) -> SupervisionError:
        """The service runs and has received the request: nobody has to start it, and nothing is sent again."""
        problem = f"the service has said nothing for {self._timeout_s:g} s, and may still do what it was asked"
        return SupervisionError(problem, hint="give it more time with timeout_s, or ask for the run by its id")

    def events(self, path: str) -> Iterator[tuple[str, Any]]:
        """(name, data) of a stream, over as many connections as it takes; ends with the event ``end``."""
        last, tries, end = 0, 0, time.monotonic() + self._patience_s
        while tries < _TRIES:
            link = None
            try:
                link = self._link()
                status, told, body = link.stream(path, {**self._headers, "last-event-id": str(last)})
                if _has_waited(status, told, end):
                    continue
                if status != 200:
                    raise refused(status, body.read(_MOST_ANSWER_BYTES))
                end = time.monotonic() + self._patience_s
                for number, name, data in _read_events(body):
                    if number > last:  # a stream that only repeats itself comes to nothing
                        tries = 0
                    last = number or last
                    yield name, data
                    if name == "end":
                        return
            except (OSError, http.client.HTTPException):
                pass
            finally:
                if link is not None:
                    link.close()
            tries += 1
            time.sleep(0.2 * tries)
        raise SupervisionError("the stream of events was lost")

    def close(self) -> None:
        link = getattr(self._own, "link", None)
        if link is not None:
            self._own.link = None
            link.close()


def _object(answer: bytes) -> ToldObject:
    """Nothing is an empty one."""
    found = json.loads(answer) if answer else {}
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return ToldObject(found)


def _address(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        is_one = parts.scheme in ("http", "https") and parts.path in ("", "/") and parts.port != 0
        is_one &= bool(parts.hostname and parts.hostname.encode("idna"))
    except ValueError:
        is_one = False
    if not is_one or parts.query or parts.fragment:
        raise UsageError(f"{text!r} is not the address of a service", hint="write http://127.0.0.1:8700")
    return parts


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _has_waited(status: int, told: Mapping[str, str], end: float) -> bool:
    """Wait as long as a full service says; False where it does not say so, or would be waited for beyond this time."""
    after = told.get("retry-after", "")
    if status not in (429, 503) or not _SECONDS.fullmatch(after):
        return False
    wait_s = max(_LEAST_WAIT_S, float(after))
    if time.monotonic() + wait_s > end:
        return False
    time.sleep(wait_s)
    return True


def _read_events(lines: BinaryIO) -> Iterator[tuple[int, str, Any]]:
    number, name, data = 0, "message", ""
    while line := lines.readline(_LINE_BYTES):
        field, _, value = understood(line.decode, "utf-8").rstrip("\r\n").partition(": ")
        if field == "id":
            number = understood(_event_number, value)
        elif field == "event":
            name = value
        elif field == "data":
            data = value
        elif not field and data:
            yield number, name, understood(json.loads, data)
            number, name, data = 0, "message", ""


def _event_number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError("an event without a number")
    return int(text)


def refused(status: int, answer: bytes) -> SandboxError:
    """The error in an answer, which may be that of a proxy."""
    told = _error_in(answer) or {"message": f"the service answered with {status}"}
    if status in (429, 503) and told.get("type") in ("Full", "Draining", None):
        message, hint = str(told.get("message")), str(told.get("hint", ""))
        return UnavailableError(message, missing=("room in the service",), hint=hint)
    kind = {400: "UsageError", 404: "UsageError"}.get(status) if told.get("type") == "Refused" else None
    return read_error({**told, "type": kind} if kind else told)


def _error_in(answer: bytes) -> Mapping[str, Any]:
    try:
        told = understood(json.loads, answer)
    except SupervisionError:
        return {}
    error = told.get("error") if isinstance(told, dict) else None
    return error if isinstance(error, dict) else {}
