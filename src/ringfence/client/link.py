"""One connection to a service: a request is one write, and an answer is read exactly to its end.

``http.client`` sends head and body separately, which wakes the service twice, and reads heads with the e-mail parser:
both take a good part of a short run's time. What it refuses is refused here too: no line break gets into a head.
"""

from __future__ import annotations

import http.client
import io
import re
import selectors
import socket
from collections.abc import Mapping
from typing import Any, BinaryIO

from ringfence.errors import UsageError

_LINE_BYTES = 64 << 10
_MOST_HEADERS = 200
_MOST_HEADS = 10
_STATUS = re.compile(rb"[1-5][0-9]{2}")
_TOGETHER_BYTES = 256 << 10
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)
_UNFIT = re.compile(r"[\x00-\x20\x7f-\U0010ffff]")
_UNFIT_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\u0100-\U0010ffff]")


class Link:
    """Used by one thread at a time. After an OSError or an HTTPException it can't be used any more."""

    def __init__(self, host: str, port: int | None, timeout_s: float, *, tls: bool) -> None:
        self._authority = f"[{host}]" if ":" in host else host
        if port is not None:
            self._authority += f":{port}"
        link = socket.create_connection((host, port or (443 if tls else 80)), timeout_s)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            import ssl

            link = ssl.create_default_context().wrap_socket(link, server_hostname=host)
        self._socket = link
        self._file: BinaryIO = link.makefile("rb")

    def exchange(
        self, method: str, target: str, data: bytes | None, headers: Mapping[str, str], most_bytes: int
    ) -> tuple[int, dict[str, str], bytes]:
        """(status, headers by small names, body)."""
        self._send(method, target, data, headers)
        status, told = self._last_head()
        body = b"" if status in (204, 304) else self._body(told, most_bytes)
        return status, told, body

    def stream(self, target: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str], BinaryIO]:
        """(status, headers by small names, the body as it comes). The connection has no other use after it."""
        self._send("GET", target, None, headers)
        status, told = self._last_head()
        return status, told, self._body_file(told)

    def _last_head(self) -> tuple[int, dict[str, str]]:
        """The head of the answer itself, behind a few that only say that there will be one."""
        for _ in range(_MOST_HEADS):
            status, told = self._head()
            if not 100 <= status < 200:
                return status, told
        raise http.client.HTTPException("an answer that does not come to its head")

    @property
    def is_over(self) -> bool:
        """Whether the other side has closed it while it was idle, or has said what nobody asked for."""
        with _Selector() as waiting:
            waiting.register(self._socket, selectors.EVENT_READ)
            return bool(waiting.select(0))

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def _send(self, method: str, target: str, data: bytes | None, headers: Mapping[str, str]) -> None:
        if _UNFIT.search(target):
            raise UsageError(f"{target!r:.80} is not an address in the service")
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._authority}"]
        for name, value in headers.items():
            if _UNFIT_VALUE.search(value):
                raise UsageError(f"the header {name} contains a control character, or one beyond Latin-1")
            lines.append(f"{name}: {value}")
        if data is not None or method != "GET":
            lines.append(f"content-length: {len(data or b'')}")
        head = "\r\n".join((*lines, "", "")).encode("latin-1")
        if data is None or len(data) <= _TOGETHER_BYTES:
            self._socket.sendall(head + (data or b""))
        else:
            self._socket.sendall(head)
            self._socket.sendall(data)

    def _head(self) -> tuple[int, dict[str, str]]:
        line = self._file.readline(_LINE_BYTES)
        if not line:
            raise http.client.RemoteDisconnected("the service closed the connection without an answer")
        words = line.split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not _STATUS.fullmatch(words[1]):
            raise http.client.BadStatusLine(repr(line[:80]))
        told: dict[str, str] = {"connection": "close"} if words[0] == b"HTTP/1.0" else {}
        for _ in range(_MOST_HEADERS):
            line = self._line()
            if not line:
                return int(words[1]), told
            name, _, value = line.partition(b":")
            told[name.decode("latin-1").lower()] = value.strip().decode("latin-1")
        raise http.client.HTTPException("an answer with too many headers")

    def _line(self) -> bytes:
        return _line(self._file)

    def _body(self, told: dict[str, str], most_bytes: int) -> bytes:
        if "chunked" in told.get("transfer-encoding", "").lower():
            return self._chunks(most_bytes)
        if "content-length" in told:
            return self._exactly(_number(told["content-length"], 10), most_bytes)
        told["connection"] = "close"
        return self._file.read(most_bytes)

    def _body_file(self, told: dict[str, str]) -> BinaryIO:
        """A body without an end that is known before."""
        if "chunked" in told.get("transfer-encoding", "").lower():
            return io.BufferedReader(_Chunks(self._file), _LINE_BYTES)
        if "content-length" in told:
            return io.BytesIO(self._exactly(_number(told["content-length"], 10), _LINE_BYTES))
        return self._file

    def _exactly(self, size: int, most_bytes: int) -> bytes:
        if not 0 <= size <= most_bytes:
            raise http.client.HTTPException(f"an answer of {size} bytes")
        data = self._file.read(size)
        if len(data) < size:
            raise http.client.IncompleteRead(data[:80], size - len(data))
        return data

    def _chunks(self, most_bytes: int) -> bytes:
        """Read chunks, which a proxy may send."""
        pieces: list[bytes] = []
        while size := _chunk_size(self._file):
            most_bytes -= size
            pieces.append(self._exactly(size, most_bytes + size))
            self._line()
        while self._line():
            pass
        return b"".join(pieces)


class _Chunks(io.RawIOBase):
    """Chunks as they come, as one file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = 0
        self._is_over = self._has_begun = False

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        if not self._left and not self._is_over:
            self._next()
        data = self._file.read1(min(self._left, len(room))) if self._left else b""  # type: ignore[attr-defined]
        if self._left and not data:
            raise http.client.IncompleteRead(b"", self._left)
        self._left -= len(data)
        room[: len(data)] = data
        return len(data)

    def _next(self) -> None:
        if self._has_begun:
            _line(self._file)  # the end of the last one
        self._left, self._has_begun = _chunk_size(self._file), True
        if self._left < 0:
            raise http.client.HTTPException(f"a chunk of {self._left} bytes")
        self._is_over = not self._left


def _line(file: BinaryIO) -> bytes:
    line = file.readline(_LINE_BYTES)
    if not line.endswith(b"\n"):
        raise http.client.IncompleteRead(line[:80])
    return line.rstrip(b"\r\n")


def _chunk_size(file: BinaryIO) -> int:
    return _number(_line(file).partition(b";")[0].decode("latin-1"), 16)


def _number(text: str, base: int) -> int:
    try:
        return int(text, base)
    except ValueError:
        raise http.client.HTTPException(f"{text[:40]!r} is not a size") from None
