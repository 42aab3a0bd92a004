"""Requests to a service: each thread keeps a connection, and requests are retried where that is safe."""

from __future__ import annotations

import http.client
import ipaddress
import json
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from ringfence.client.link import Link
from ringfence.client.wire import read_error
from ringfence.errors import SandboxError, SupervisionError, UnavailableError, UsageError, is_of_a_call

_MOST_ANSWER_BYTES = 1 << 30
_LOST = (http.client.RemoteDisconnected, http.client.IncompleteRead, ConnectionResetError, BrokenPipeError)
_TRIES = 3
_LINE_BYTES = 64 << 20


class Connection:
    """The connection to one service, for any number of threads."""

    def __init__(
        self, address: str, token: str, patience_s: float, timeout_s: float, *, plain_http: bool = False
    ) -> None:
        """``patience_s``: how long a full service is asked again. ``timeout_s``: of silence on a connection."""
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
            raise UsageError(f"{address!r} is not the address of a service", hint="write http://127.0.0.1:8700")
        if token and parts.scheme == "http" and not plain_http and not _is_here(parts.hostname):
            raise UsageError(f"{parts.hostname} is another machine, and plain HTTP would show the token on the way",
                             hint="use https, or say plain_http=True where the way is safe by other means")  # fmt: skip
        self._parts, self._patience_s, self._timeout_s = parts, patience_s, timeout_s
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._own = threading.local()

    def _new(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        assert self._parts.hostname
        return kind(self._parts.hostname, self._parts.port, timeout=self._timeout_s)

    def json(
        self, method: str, path: str, body: object = None, *, key: str = "", query: Mapping[str, object] | None = None
    ) -> Any:
        """The answer to a request with or without JSON; a refusal is raised as the library would raise it."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"} if body is not None else {}
        answer = self.octets(method, path, data, headers | ({"idempotency-key": key} if key else {}), query)
        return json.loads(answer) if answer else None

    def octets(
        self, method: str, path: str, data: bytes | None = None, headers: Mapping[str, str] | None = None,
        query: Mapping[str, object] | None = None,
    ) -> bytes:  # fmt: skip
        """The same in bytes. A request that may have been received is sent again only if that is harmless."""
        target = f"{path}?{urlencode(query)}" if query else path
        given = {**self._headers, **(headers or {})}
        safe = method in ("GET", "PUT", "DELETE") or "idempotency-key" in given
        end = time.monotonic() + self._patience_s
        tries = 0
        while True:
            tries += 1
            try:
                status, told, answer = self._once(method, target, data, given)
            except _LOST as error:
                unheard = tries == 1 and self._was_idle and not isinstance(error, http.client.IncompleteRead)
                if (safe or unheard) and tries < _TRIES:
                    continue
                raise SupervisionError(f"the connection to the service was lost: {error}") from error
            except (OSError, http.client.HTTPException) as error:
                raise UnavailableError(f"{self._parts.geturl()}: {error}", missing=("the service",),
                                       hint="start it: ringfence serve") from error  # fmt: skip
            if status in (429, 503) and told.get("retry-after", "").isdigit():
                wait_s = float(told["retry-after"])
                if time.monotonic() + wait_s <= end:
                    time.sleep(wait_s)
                    continue
            if status >= 400:
                raise refused(status, answer)
            return answer

    def _once(
        self, method: str, target: str, data: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        link: Link | None = getattr(self._own, "link", None)
        self._own.idle = link is not None
        if link is None:
            assert self._parts.hostname
            tls = self._parts.scheme == "https"
            link = self._own.link = Link(self._parts.hostname, self._parts.port, self._timeout_s, tls=tls)
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

    @property
    def _was_idle(self) -> bool:
        """Whether the connection was idle before: the other side may just have closed it, and received nothing."""
        return bool(getattr(self._own, "idle", False))

    def events(self, path: str) -> Iterator[tuple[str, Any]]:
        """(name, data) of a stream, over as many connections as it takes; ends with the event ``end``."""
        last, tries = "0", 0
        while tries < _TRIES:
            link = self._new()
            try:
                link.request("GET", path, headers={**self._headers, "last-event-id": last})
                answer = link.getresponse()
                if answer.status != 200:
                    raise refused(answer.status, answer.read(_MOST_ANSWER_BYTES))
                for number, name, data in _read_events(answer):
                    last, tries = number or last, 0
                    yield name, data
                    if name == "end":
                        return
            except (OSError, http.client.HTTPException):
                pass
            finally:
                link.close()
            tries += 1
            time.sleep(0.2 * tries)
        raise SupervisionError("the stream of events was lost")

    def close(self) -> None:
        link = getattr(self._own, "link", None)
        if link is not None:
            self._own.link = None
            link.close()


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _read_events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, str, Any]]:
    number, name, data = "", "message", ""
    while line := answer.readline(_LINE_BYTES):
        field, _, value = line.decode("utf-8").rstrip("\r\n").partition(": ")
        if field == "id":
            number = value
        elif field == "event":
            name = value
        elif field == "data":
            data = value
        elif not field and data:
            yield number, name, json.loads(data)
            number, name, data = "", "message", ""


def refused(status: int, answer: bytes) -> SandboxError:
    """The error in an answer."""
    try:
        told = json.loads(answer)["error"]
    except (ValueError, KeyError, TypeError):
        told = {"message": f"the service answered with {status}"}
    if status in (429, 503) and told.get("type") in ("Full", "Draining", None):
        message, hint = str(told.get("message")), str(told.get("hint", ""))
        return UnavailableError(message, missing=("room in the service",), hint=hint)
    kind = {400: "UsageError", 404: "UsageError"}.get(status) if told.get("type") == "Refused" else None
    return read_error({**told, "type": kind} if kind else told)
