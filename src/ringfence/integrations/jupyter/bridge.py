"""Inside the sandbox: starts ipykernel on the sandbox's own loopback and connects there for the relay outside.

It protects nothing: whatever it sends is the guest's word.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile

from ringfence.integrations.jupyter.frames import (
    CLOSE,
    CONNECTION,
    DATA,
    MAX_BYTES,
    OPEN,
    PORTS,
    FrameError,
    Frames,
    frame,
)

_LOOK_S = 0.05


def main() -> int:
    """Until the kernel ends. The first frame says what Jupyter asks for: no argument may have its key."""
    connection = _asked()
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        json.dump(connection, file)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", file.name]
    # What it prints itself goes to stderr: stdout is the relay's.
    kernel = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)
    signal.signal(signal.SIGINT, lambda *_: kernel.send_signal(signal.SIGINT))
    return Bridge(kernel, [int(str(connection[name])) for name in PORTS]).run()


def _asked() -> dict[str, object]:
    frames = Frames()
    while data := os.read(0, 1):  # no more than the frame: what follows is the bridge's
        for kind, _, _, payload in frames.add(data):
            if kind == CONNECTION:
                asked: dict[str, object] = json.loads(payload)
                return asked
    raise FrameError("nothing said what Jupyter asks for")


class Bridge:
    """One loop over stdin and all connections."""

    def __init__(self, kernel: subprocess.Popen[bytes], ports: list[int]) -> None:
        self._kernel = kernel
        self._ports = ports
        self._frames = Frames()
        self._sockets: dict[int, socket.socket] = {}
        self._waiting: dict[int, tuple[int, list[bytes]]] = {}
        """Connections whose socket the kernel has not opened yet, with the data to send then."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ, None)

    def run(self) -> int:
        while True:
            for key, _ in self._selector.select(_LOOK_S if self._waiting else 1.0):
                if key.data is None:
                    if not self._hear():
                        self._kernel.kill()
                else:
                    self._pass_on(key.data)
            self._connect_waiting()
            status = self._kernel.poll()
            if status is not None:
                return status if status >= 0 else 128 - status

    def _hear(self) -> bool:
        data = os.read(0, MAX_BYTES)
        for kind, number, place, payload in self._frames.add(data):
            if kind == OPEN:
                self._waiting[number] = (self._ports[place], [])
            elif kind == CLOSE:
                self._close(number)
            elif number in self._waiting:
                self._waiting[number][1].append(payload)
            elif number in self._sockets:
                self._send(number, payload)
        return bool(data)

    def _connect_waiting(self) -> None:
        for number, (port, held) in list(self._waiting.items()):
            try:
                made = socket.create_connection(("127.0.0.1", port))
            except OSError:
                continue
            del self._waiting[number]
            self._sockets[number] = made
            self._selector.register(made, selectors.EVENT_READ, number)
            for payload in held:
                self._send(number, payload)

    def _send(self, number: int, payload: bytes) -> None:
        try:
            self._sockets[number].sendall(payload)
        except OSError:
            self._close(number)

    def _pass_on(self, number: int) -> None:
        try:
            data = self._sockets[number].recv(MAX_BYTES)
        except (OSError, KeyError):
            data = b""
        if data:
            _say(frame(DATA, number, data=data))
        else:
            self._close(number)
            _say(frame(CLOSE, number))

    def _close(self, number: int) -> None:
        self._waiting.pop(number, None)
        found = self._sockets.pop(number, None)
        if found is not None:
            self._selector.unregister(found)
            found.close()


def _say(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
