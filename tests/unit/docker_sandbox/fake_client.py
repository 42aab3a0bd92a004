"""An engine that is none: containers are threads that play the runner over a pair of sockets."""

from __future__ import annotations

import itertools
import json
import socket
import threading
from collections.abc import Callable

from ringfence.container import orphans
from ringfence.container.api import IMAGE_STEP, Listed
from ringfence.container.hardening import ContainerSpec
from ringfence.docker_sandbox.strategy_runner import READY
from ringfence.errors import SetupError, UnavailableError

Play = Callable[["FakeContainer", dict[str, object], bytes], None]


def frame(data: bytes, stream: int = 1) -> bytes:
    return bytes((stream, 0, 0, 0)) + len(data).to_bytes(4, "big") + data


def reply(result: object, **head: object) -> bytes:
    payload = json.dumps(result).encode() if not isinstance(result, bytes) else result
    words = json.dumps({"ok": True, "bytes": len(payload), **head}).encode()
    return len(words).to_bytes(8, "big") + words + payload


def answers(result: object, **head: object) -> Play:
    return lambda container, _head, _data: container.say(frame(reply(result, **head)))


def echo(container: FakeContainer, head: dict[str, object], data: bytes) -> None:
    container.say(frame(b"printed\n", 2) + frame(reply({"code": head["code"], "data": data.decode()})))


class FakeChannel:
    def __init__(self, ours: socket.socket) -> None:
        self._ours = ours

    def fileno(self) -> int:
        return self._ours.fileno()

    def receive(self, at_most: int = 1 << 16) -> bytes:
        try:
            return self._ours.recv(at_most)
        except ConnectionError:
            return b""

    def send(self, data: bytes | memoryview) -> int:
        return self._ours.send(data, socket.MSG_DONTWAIT)

    def close(self) -> None:
        self._ours.close()


class FakeContainer:
    def __init__(self, name: str, spec: ContainerSpec, play: Play) -> None:
        self.name, self.spec, self._play = name, spec, play
        self.ours, self.theirs = socket.socketpair()
        self.state: dict[str, object] = {"OOMKilled": False}
        self.exit_code = 137
        self.ready = READY

    def say(self, data: bytes) -> None:
        self.theirs.sendall(data)

    def end(self) -> None:
        try:
            self.theirs.shutdown(socket.SHUT_RDWR)  # a thread may be reading
        except OSError:
            pass
        self.theirs.close()

    def start(self) -> None:
        threading.Thread(target=self._live, daemon=True).start()

    def _live(self) -> None:
        try:
            self.say(frame(self.ready)) if self.ready else self.end()
            length = int.from_bytes(self._take(8), "big")
            head = json.loads(self._take(length))
            self._play(self, head, self._take(head["bytes"]))
        except OSError:
            return

    def _take(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.theirs.recv(count - len(data))
            if not piece:
                raise OSError
            data += piece
        return data


class FakeClient:
    """Counts what it is asked; ``fails`` has what a call raises, once for each entry."""

    def __init__(self, play: Play = echo) -> None:
        self.kind, self.url, self.play = "docker", "fake:", play
        self.guarded: set[str] = set()
        self.images = {"python:3.10-slim"}
        self.registry: set[str] = set()
        self.containers: dict[str, FakeContainer] = {}
        self.calls: list[str] = []
        self.fails: dict[str, list[BaseException]] = {}
        self.gone = self.stuck = False
        self.strangers: list[Listed] = []
        self._numbers = itertools.count(1)
        self.ready = READY

    def _asked(self, call: str) -> None:
        self.calls.append(call)
        if self.gone:
            raise UnavailableError("the container engine does not answer", missing=("engine",))
        if self.fails.get(call):
            raise self.fails[call].pop(0)

    def create(self, spec: ContainerSpec, name: str = "") -> str:
        self._asked("create")
        assert orphans.is_name(name)
        if spec.image not in self.images:
            raise SetupError(IMAGE_STEP, f"no such image: {spec.image}")
        assert name in self.guarded, "it is guarded before it is there"
        name = f"c{next(self._numbers)}"
        self.containers[name] = FakeContainer(name, spec, self.play)
        self.containers[name].ready = self.ready
        self._asked("created")
        return name

    def attach(self, container: str) -> FakeChannel:
        self._asked("attach")
        return FakeChannel(self.containers[container].ours)

    def start(self, container: str) -> None:
        self._asked("start")
        self.containers[container].start()

    def wait(self, container: str, timeout_s: float | None = None) -> int | None:
        self._asked("wait")
        return self.containers[container].exit_code

    def kill(self, container: str) -> bool:
        self._asked("kill")
        return True

    def remove(self, container: str, force: bool = True) -> None:
        self._asked("remove")
        if self.stuck:
            raise SetupError("remove the container", "busy")
        self.containers.pop(container, None)
        self.strangers = [each for each in self.strangers if each.id != container]

    def inspect(self, container: str) -> dict[str, object]:
        self._asked("inspect")
        return {"State": self.containers[container].state}

    def stats(self, container: str) -> dict[str, object]:
        self._asked("stats")
        usage = {"usage": 50 << 20, "stats": {"inactive_file": 10 << 20}}
        return {"memory_stats": usage, "cpu_stats": {"cpu_usage": {"total_usage": 10**12}}}

    def logs(self, container: str, tail: int = 100) -> bytes:
        self._asked("logs")
        return b"python3: not \x1b found"

    def list(self, label: str) -> list[Listed]:
        self._asked("list")
        name, _, value = label.partition("=")
        own = [Listed(id=each.name, name="", labels=each.spec.labels, state="running")
               for each in self.containers.values()]  # fmt: skip
        return [each for each in (*own, *self.strangers) if each.labels.get(name) == value or not value]

    def pull(self, ref: str) -> None:
        self._asked("pull")
        if ref not in self.registry:
            raise SetupError("pull the image", f"no such image: {ref}")
        self.images.add(ref)

    def info(self) -> dict[str, object]:
        self._asked("info")
        return {"ServerVersion": "fake", "Architecture": "arm64"}

    def close(self) -> None:
        self.calls.append("close")

    # ---- its guardian

    def add(self, name: str, deadline_s: float = 0.0) -> None:
        self.guarded.add(name)

    def done(self, name: str) -> None:
        self.guarded.discard(name)
