"""The server: uvicorn, with additions against slow clients, and a shutdown that waits for runs.

One process: the sandboxes are processes of their own, and the pool is this process'.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn

from ringfence.errors import UsageError
from ringfence.service.app import application
from ringfence.service.protocol import HEAD_BYTES, patient
from ringfence.service.service import Service, tell
from ringfence.service.settings import Settings, changed

_KEEP_ALIVE_S = 75
_BACKLOG = 256
"""Connections that wait to be taken: all are taken at once, and only then some are closed if there are too many."""
_SPARE_DESCRIPTORS = 1024
_DESCRIPTORS_EACH = 64
"""For a sandbox."""
_SWITCH_S = 0.0005


class Server(uvicorn.Server):
    """When told to end, it first lets the service drain; when told twice, it ends at once."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self.tell_ready: Callable[[], object] = bool
        """Called once clients can connect."""
        self._ending: asyncio.Task[None] | None = None

    def is_full(self) -> bool:
        """Requests go on where their connections are gone, so they are counted too."""
        most = self._service.settings.connections
        return len(self.server_state.connections) > most or len(self.server_state.tasks) > most

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """An error of the application's own start would be logged with its traceback; this one is for the operator."""
        await self._service.start()
        try:
            await super().startup(sockets=sockets)
        except OSError as error:  # another process listens there since the socket was bound
            await self.lifespan.shutdown()
            raise _unusable(self._service.settings, error) from error
        self.tell_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._ending is None:
            asyncio.get_running_loop().call_soon_threadsafe(self._begin_end)
        else:
            self.force_exit = self.should_exit = True

    def _begin_end(self) -> None:
        self._ending = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        try:
            await self._service.drain()
        finally:
            self._service.runs.feed.end()
            self.should_exit = True


def bound(settings: Settings) -> tuple[socket.socket, Settings]:
    """The socket that it listens on, and the settings with the port that it has got."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    link = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # else asyncio waits to fill packets
    link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        link.bind((settings.host, settings.port))
    except OSError as error:
        link.close()
        raise _unusable(settings, error) from error
    return link, changed(settings, port=link.getsockname()[1])


def _unusable(settings: Settings, error: OSError) -> UsageError:
    return UsageError(f"{settings.host}:{settings.port}: {error.strerror}", hint="choose another with --port")


def server_of(service: Service) -> Server:
    settings = service.settings
    app = application(service)
    config = uvicorn.Config(
        app, host=settings.host, port=settings.port, log_config=None, access_log=False,
        http=patient(settings.request_s, settings.connections), ws="none", lifespan="on", backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S, h11_max_incomplete_event_size=HEAD_BYTES, proxy_headers=False,
        server_header=False, timeout_graceful_shutdown=5, loop="asyncio",
    )  # fmt: skip
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    server = Server(config, service)
    app.is_full = server.is_full
    return server


def with_descriptors(settings: Settings) -> Settings:
    """Raise the limit of descriptors to what these settings need, as far as it may be; connections get half of them at
    most, because sandboxes can't start without any."""
    import resource

    needed = 2 * settings.connections + _DESCRIPTORS_EACH * settings.sandboxes + _SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return settings
    found = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (found, hard))
    fitting = min(settings.connections, max(1, found // 2))
    if fitting < settings.connections:
        tell("fewer_connections", logging.WARNING, connections=fitting, descriptors=found,
             hint=f"raise the limit on descriptors to {needed} (LimitNOFILE=, ulimit -Hn)")  # fmt: skip
    return changed(settings, connections=fitting)


def serve(settings: Settings) -> None:
    """Until a signal ends it. Prints its address once clients can connect."""
    settings.checked()
    link, settings = bound(with_descriptors(settings))
    service = Service(settings)
    server = server_of(service)
    where = f"[{settings.host}]" if ":" in settings.host else settings.host
    server.tell_ready = lambda: print(f"http://{where}:{settings.port}/", flush=True)
    # By default a thread that leads a sandbox may hold the interpreter for 5 ms: too long for the loop to wait.
    sys.setswitchinterval(_SWITCH_S)
    server.run(sockets=[link])
    if not server.started:
        raise UsageError("the service could not be started", hint="see its log")


