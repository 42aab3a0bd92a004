"""An engine that says what a test wants it to say: HTTP over a Unix socket, in a thread."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Answer = bytes | tuple[int, object] | Callable[[socket.socket], None]
"""Raw bytes, a status with what becomes JSON, or whoever goes on with the connection."""


class FakeEngine:
    """``answers``: ``METHOD /path`` without the version → what is said; ``asked``: what was."""

    def __init__(self, path: Path) -> None:
        self.url = f"unix://{path}"
        self.answers: dict[str, Answer] = {"GET /version": (200, {"ApiVersion": "1.41", "Version": "20.10"}),
                                           "GET /_ping": (200, "OK")}  # fmt: skip
        self.asked: list[tuple[str, bytes]] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen(16)

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _talk(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            while line := lines.readline():
                headers = {}
                while (header := lines.readline().strip()):
                    name, _, value = header.partition(b":")
                    headers[name.strip().lower()] = value.strip()
                body = lines.read(int(headers.get(b"content-length", b"0")))
                if not self._reply(connection, _plain(line), body):
                    return

    def _reply(self, connection: socket.socket, what: str, body: bytes) -> bool:
        self.asked.append((what, body))
        answer = self.answers.get(what, (404, {"message": f"no such thing: {what}"}))
        if callable(answer):
            answer(connection)
            return False
        if isinstance(answer, bytes):
            connection.sendall(answer)
            return False
        status, content = answer
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        kind = "application/x-tar" if isinstance(content, bytes) else "application/json"
        stat = "X-Docker-Container-Path-Stat: e30=\r\n"
        head = f"HTTP/1.1 {status} Said\r\nContent-Type: {kind}\r\n{stat}Content-Length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        return True


def _plain(line: bytes) -> str:
    """``POST /v1.41/containers/create?name=x`` without version and question."""
    method, path, _ = line.decode().split(" ", 2)
    path = path.partition("?")[0]
    parts = path.split("/")
    return f"{method} /{'/'.join(parts[2:] if parts[1].startswith('v1') else parts[1:])}"


@contextmanager
def engine(folder: Path) -> Iterator[FakeEngine]:
    made = FakeEngine(folder / "engine.sock")
    threading.Thread(target=made.serve, daemon=True).start()
    try:
        yield made
    finally:
        made.close()
