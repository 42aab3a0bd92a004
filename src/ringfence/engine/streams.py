"""The job's streams: input fed, output read as it comes and cut at a bound that cannot be exceeded.

A flood costs the caller ``output_bytes`` of memory per stream; the rest is read, counted and thrown
away, so the job never blocks on a full pipe.
"""

from __future__ import annotations

import os

from ringfence.model.events import OnOutput
from ringfence.model.job import Job

_PIECE_BYTES = 256 * 1024
MESSAGE_BYTES = 8 * 2**20
"""The most that is taken from a job's channel."""


def marker(dropped: int) -> bytes:
    """What stands at the end of a stream that was cut."""
    return b"\n[TRUNCATED] %d bytes dropped\n" % dropped


class Capture:
    """One output stream: the first ``limit`` bytes, and a count of the rest."""

    def __init__(self, name: str, limit: int, on_output: OnOutput | None = None) -> None:
        self.name = name
        self.limit = limit
        self.dropped = 0
        self._kept = bytearray()
        self._on_output = on_output

    def add(self, piece: bytes) -> None:
        room = self.limit - len(self._kept)
        kept = piece[:room]
        if len(piece) > room and not self.dropped:
            kept = kept[: _whole_characters(kept)]
            self.limit = len(self._kept) + len(kept)
        self.dropped += len(piece) - len(kept)
        self._kept += kept
        if kept and self._on_output:
            self._on_output(self.name, bytes(kept))

    def result(self) -> bytes:
        return bytes(self._kept) + (marker(self.dropped) if self.dropped else b"")

    @property
    def tail(self) -> bytes:
        """The end of what was kept: where a failing program says why."""
        return bytes(self._kept[-4096:])


def _whole_characters(data: bytes) -> int:
    """How many of the bytes make whole UTF-8 characters, if only the last may be incomplete."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return len(data) if back >= needed else len(data) - back
    return len(data)


class Streams:
    """The descriptors of one job: ``theirs`` go to the job, ours are read and written here."""

    def __init__(self, job: Job, output_bytes: int, on_output: OnOutput | None) -> None:
        self.stdout = Capture("stdout", output_bytes, on_output)
        self.stderr = Capture("stderr", output_bytes, on_output)
        self.channel = Capture("channel", MESSAGE_BYTES) if job.channel else None
        self.readers: dict[int, Capture] = {}
        self.writer = -1
        self.keyboard = -1
        self._pending = memoryview(b"")
        self._theirs: list[int] = []
        self._job = job
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        if self._job.terminal:
            self._open_terminal()
        else:
            self._theirs.append(self._open_input(self._job.stdin))
            self._theirs += [self._open_output(self.stdout), self._open_output(self.stderr)]
        if self.channel is not None:
            self._theirs.append(self._open_output(self.channel))

    def _open_input(self, stdin: bytes | int | None) -> int:
        if stdin is None or stdin == b"":
            return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        if isinstance(stdin, int):
            return os.dup(stdin)
        reader, self.writer = os.pipe()
        os.set_blocking(self.writer, False)
        self._pending = memoryview(stdin)
        return reader

    def _open_output(self, capture: Capture) -> int:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        self.readers[reader] = capture
        return writer

    def _open_terminal(self) -> None:
        """One terminal for all three; what is typed on the caller's own is relayed to it."""
        import pty

        ours, theirs = pty.openpty()
        self.keyboard = self._job.stdin if isinstance(self._job.stdin, int) else -1
        os.set_blocking(ours, False)
        self.readers[ours] = self.stdout
        self._theirs += [theirs, os.dup(theirs), os.dup(theirs)]

    @property
    def theirs(self) -> tuple[int, ...]:
        return tuple(self._theirs)

    @property
    def terminal(self) -> int:
        """Our side of the job's terminal."""
        return next(iter(self.readers))

    def release_theirs(self) -> None:
        """Once the job has its copies, ours would keep the pipes open for ever."""
        while self._theirs:
            os.close(self._theirs.pop())

    def read(self, descriptor: int) -> bool:
        """Take what has arrived; false when this stream has ended."""
        try:
            piece = os.read(descriptor, _PIECE_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            piece = b""  # a terminal whose last user has gone says EIO
        if piece:
            self.readers[descriptor].add(piece)
        return bool(piece)

    def write(self) -> bool:
        """Feed what the pipe takes; false when all is fed or nobody reads."""
        try:
            self._pending = self._pending[os.write(self.writer, self._pending[:65536]) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        return bool(self._pending)

    def relay_keyboard(self) -> bool:
        """Pass on what was typed; false when the caller's terminal has ended."""
        typed = os.read(self.keyboard, 1024)
        try:
            os.write(self.terminal, typed)
        except OSError:
            return False  # the job does not read, or is gone
        return bool(typed)

    def stop_reading(self, descriptor: int) -> None:
        del self.readers[descriptor]
        os.close(descriptor)

    def stop_writing(self) -> None:
        os.close(self.writer)
        self.writer = -1

    def drain(self) -> None:
        """After the end: what is still in the pipes, without waiting for whoever may hold them open."""
        for descriptor in list(self.readers):
            while _ready(descriptor) and self.read(descriptor):
                pass

    def close(self) -> None:
        self.release_theirs()
        for descriptor in list(self.readers):
            self.stop_reading(descriptor)
        if self.writer >= 0:
            self.stop_writing()


def _ready(descriptor: int) -> bool:
    import select

    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(0))
