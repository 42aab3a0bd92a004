"""Outside: listens on Jupyter's five ports and passes the data through the streams of the bridge in the sandbox.

The sandbox has no network, and no socket of it can be reached: its standard streams are the only way. What comes back
is the guest's word and reaches nobody but the clients that connected here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence

from ringfence.engine.handle import Handle
from ringfence.errors import UsageError
from ringfence.integrations.jupyter.frames import CLOSE, DATA, MAX_BYTES, OPEN, FrameError, Frames, frame

_SIGKILL = 9
_MOST_UNREAD_BYTES = 64 << 20
"""What a client may leave unread; beyond that its connection ends."""


class Relay:
    """Between clients of one kernel and its bridge."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._clients: dict[int, asyncio.StreamWriter] = {}
        self._count = 0
        threading.Thread(target=self._listen, name="ringfence-kernel", daemon=True).start()

    async def serve(self, host: str, ports: Sequence[int]) -> list[asyncio.Server]:
        """OSError if one of the ports is taken; then it listens on none."""
        servers: list[asyncio.Server] = []
        try:
            for place, port in enumerate(ports):
                servers.append(await asyncio.start_server(self._serving(place), host, port))
        except OSError:
            for server in servers:
                server.close()
            raise
        return servers

    def _serving(self, place: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._count += 1
            number = self._count
            self._clients[number] = writer
            try:
                await self._tell(frame(OPEN, number, place))
                while data := await reader.read(MAX_BYTES):
                    await self._tell(frame(DATA, number, data=data))
                await self._tell(frame(CLOSE, number))
            except (OSError, UsageError, asyncio.CancelledError):
                pass  # the client or the kernel has gone
            finally:
                self._clients.pop(number, None)
                writer.close()

        return connected

    async def _tell(self, data: bytes) -> None:
        """One after the other, and in a thread: the bridge may be slow to read."""
        async with self._turn:
            await asyncio.to_thread(self._handle.write, data)

    def _listen(self) -> None:
        """In a thread of its own: what the bridge says."""
        frames, position = Frames(), 0
        while True:
            heard = self._handle.read_stdout(position, timeout_s=None)
            position = heard.position
            try:
                if heard.dropped:
                    raise FrameError("it said more than could be read")
                for kind, number, _, data in frames.add(heard.data):  # one by one: a cell may send millions at once
                    self._loop.call_soon_threadsafe(self._hear, kind, number, data)
            except FrameError:
                self._handle.signal(_SIGKILL)
                return
            if heard.ended:
                return

    def _hear(self, kind: bytes, number: int, data: bytes) -> None:
        writer = self._clients.get(number)
        if writer is None:
            return
        if kind == DATA:
            writer.write(data)
        if kind == CLOSE or writer.transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
            writer.close()
