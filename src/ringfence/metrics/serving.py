"""Serves the figures to Prometheus over HTTP, on loopback unless somebody says otherwise."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from wsgiref.simple_server import WSGIServer

from ringfence.errors import UsageError
from ringfence.metrics import known_series, recorder

HOST, PORT = "127.0.0.1", 8000


class Served:
    """A server in a thread of its own, until it is closed."""

    def __init__(self, server: WSGIServer, thread: threading.Thread) -> None:
        self._server, self._thread = server, thread
        self.port = int(server.server_port)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve(port: int = PORT, host: str = HOST, folder: str = "") -> Served:
    """Serve ``/metrics``. ``folder``: of all processes that count there, see ``recorder``."""
    recorder.enable(folder)
    known_series.show()
    from prometheus_client import start_http_server

    registry = recorder.registry()
    if folder:
        registry = _tidied(registry, folder)  # type: ignore[assignment]
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise UsageError(f"{host}:{port}: {error.strerror or error}", hint="choose another with --port") from error
    return Served(server, thread)


class _tidied:
    """The same figures, without the gauges of processes that are gone: they would count for ever."""

    def __init__(self, registry: object, folder: str) -> None:
        self._collect: Callable[[], object] = registry.collect  # type: ignore[attr-defined]
        self._folder = folder

    def collect(self) -> object:
        forget_dead(self._folder)
        return self._collect()


def forget_dead(folder: str) -> None:
    from prometheus_client import multiprocess

    for name in os.listdir(folder):
        pid = name.removesuffix(".db").rpartition("_")[2]
        if name.startswith("gauge_live") and pid.isdigit() and not _lives(int(pid)):
            with suppress(FileNotFoundError):  # somebody else who asks at this moment has removed it
                multiprocess.mark_process_dead(int(pid), folder)  # type: ignore[no-untyped-call]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
