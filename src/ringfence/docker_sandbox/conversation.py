"""The host's side of one strategy: what goes in, what comes out, within a time and a number of bytes.

All output is untrusted: the code inside wrote it. Too much of it ends the conversation instead of blocking it.
"""

from __future__ import annotations

import json
import select
import time
from collections.abc import Callable

from ringfence.container.frames import STDOUT, Frames
from ringfence.docker_sandbox.client import Channel
from ringfence.docker_sandbox.strategy_runner import READY
from ringfence.errors import EvidenceError, SetupError, UsageError
from ringfence.evidence import strictjson
from ringfence.model.record import record

HEAD_BYTES, LOG_BYTES = 64 << 10, 64 << 10
_LENGTH = 8
_PIECE = 1 << 16
_LAST_WORDS = 16
INPUT, OUTPUT = "/input", "/output"


class Ended(Exception):
    """The streams ended before all was said."""


class Overflow(Exception):
    """More output than allowed."""


@record
class Data:
    """What a strategy is called with: JSON, or a file by its name."""

    payload: bytes
    name: str = "data.json"
    is_file: bool = False


@record
class Reply:
    """What the inside says: a result as bytes that nobody has read yet, or what went wrong."""

    ok: bool
    payload: bytes = b""
    error: str = ""
    traceback: str = ""


def request(
    code: str, data: Data, *, cpu_s: int, input: str = INPUT, output: str = OUTPUT, watch: bool = True
) -> bytes:
    """Return the bytes that ``strategy_runner`` takes."""
    head = {"code": code, "name": data.name, "is_file": data.is_file, "bytes": len(data.payload), "cpu_s": cpu_s,
            "input": input, "output": output, "watch": watch}  # fmt: skip
    words = json.dumps(head).encode()
    return len(words).to_bytes(_LENGTH, "big") + words + data.payload


class ReplyReader:
    """Reads one reply from output that grows: its head once, when all of it is there."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._head: dict[str, object] | None = None
        self._begins = self._count = 0

    def read(self, said: bytes | bytearray) -> Reply | None:
        """Return the reply in the output so far; None: more has to come. Overflow or UsageError: it is not a reply."""
        if self._head is None:
            self._head = self._read_head(said)
        if self._head is None or len(said) < self._begins + self._count:
            return None
        payload = bytes(said[self._begins : self._begins + self._count])
        return Reply(ok=self._head.get("ok") is True, payload=payload, error=_words(self._head, "error"),
                     traceback=_words(self._head, "traceback"))  # fmt: skip

    def _read_head(self, said: bytes | bytearray) -> dict[str, object] | None:
        length = int.from_bytes(said[:_LENGTH], "big")
        if len(said) < _LENGTH:
            return None
        if length > HEAD_BYTES:
            raise Overflow("the head of the result is too long")
        if len(said) < _LENGTH + length:
            return None
        head = _head(bytes(said[_LENGTH : _LENGTH + length]))
        count = head.get("bytes")
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise UsageError("the head of the result is not valid")
        if count > self._most:
            raise Overflow(f"the result has {count:,} bytes; at most {self._most:,} are read")
        self._begins, self._count = _LENGTH + length, count
        return head


def read_reply(said: bytes, most_bytes: int) -> Reply | None:
    """The same for output that has ended."""
    return ReplyReader(most_bytes).read(said)


def _head(data: bytes) -> dict[str, object]:
    try:
        found = strictjson.parse(data)
    except EvidenceError as error:
        raise UsageError(f"the head of the result can't be read: {error}") from None
    return found if isinstance(found, dict) else {}


def _words(head: dict[str, object], key: str) -> str:
    return str(head.get(key) or "")[:HEAD_BYTES]


def read_result(payload: bytes) -> dict[str, object]:
    """Return the result; UsageError if it is not one unambiguous JSON object."""
    try:
        found = strictjson.parse(payload)
    except EvidenceError as error:
        raise UsageError(f"the result is not JSON that can be read: {error}") from None
    if not isinstance(found, dict):
        raise UsageError("the result is not an object")
    return found


def _require_time(until: float) -> None:
    """Also while there is always something to read: endless output has a deadline too."""
    if time.monotonic() >= until:
        raise TimeoutError


class Conversation:
    """With one container. ``said`` and ``log`` are what its two streams brought."""

    def __init__(self, channel: Channel, most_bytes: int) -> None:
        self._channel = channel
        self._frames = Frames()
        self._most = most_bytes
        self._said = bytearray()
        self._ended = False
        self.log = bytearray()
        self.is_ready = False

    def wait_ready(self, until: float) -> None:
        """Wait until the inside is ready; TimeoutError, Ended, Overflow otherwise."""
        while not self.is_ready and not self._take_ready():
            self._listen(until)

    def _take_ready(self) -> bool:
        if not self._said.startswith(READY):
            return False
        del self._said[: len(READY)]
        self.is_ready = True
        return True

    def hand_over(self, data: bytes, until: float) -> None:
        """Send everything, and read meanwhile: else both sides could wait for each other."""
        rest = memoryview(data)
        while rest:
            _require_time(until)
            events = self._poll(until, select.POLLIN | select.POLLOUT)
            if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                self._receive()
            if self._ended:
                raise Ended
            try:
                rest = rest[self._channel.send(rest[:_PIECE]) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise Ended from error

    def reply(self, until: float, every_s: float, tick: Callable[[], object]) -> Reply:
        """Wait for the reply. ``tick`` is called now and then, also during endless output."""
        next_tick = time.monotonic() + every_s
        reader = ReplyReader(self._most)
        while True:
            found = reader.read(self._said)
            if found is not None:
                return found
            try:
                self._listen(min(until, next_tick))
            except TimeoutError:
                if time.monotonic() >= until:
                    raise
                tick()
                next_tick = time.monotonic() + every_s

    def is_open(self) -> bool:
        """Whether the other side is still there, without waiting."""
        try:
            for _ in range(_LAST_WORDS):
                if self._ended:
                    return False
                self._poll(time.monotonic(), select.POLLIN)
                self._receive()
        except TimeoutError:
            return not self._ended
        except (Ended, Overflow):
            return False
        return False  # one that was told nothing yet has nothing to say

    def _listen(self, until: float) -> None:
        if self._ended:
            raise Ended
        _require_time(until)
        self._poll(until, select.POLLIN)
        self._receive()

    def _poll(self, until: float, events: int) -> int:
        poller = select.poll()
        poller.register(self._channel.fileno(), events)
        found = poller.poll(max(0.0, until - time.monotonic()) * 1000)
        if not found:
            raise TimeoutError
        return found[0][1]

    def _receive(self) -> None:
        data = self._channel.receive(_PIECE)
        self._ended = not data
        try:
            for stream, piece in self._frames.feed(data):
                (self._said if stream == STDOUT else self.log).extend(piece)
        except SetupError as error:
            raise Ended from error
        del self.log[:-LOG_BYTES]
        if len(self._said) > self._most + HEAD_BYTES + _LENGTH + len(READY):
            raise Overflow(f"more than {self._most:,} bytes came out")

    def close(self) -> None:
        self._channel.close()
