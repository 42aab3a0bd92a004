"""The job's streams: input fed, output read as it comes and cut at a bound that cannot be exceeded.

A flood costs the caller ``output_bytes`` of memory per stream; the rest is read, counted and thrown
away, so the job never blocks on a full pipe.
"""

from __future__ import annotations

import os
import stat
from _collections_abc import Callable

from ringfence.errors import SetupError, is_of_a_call
from ringfence.model.events import OnOutput
from ringfence.model.job import Job
from ringfence.model.limits import UNLIMITED_OUTPUT
from ringfence.model.outcome import dropped_text

# What a pipe holds. A much larger buffer would be requested from the kernel and given back for every piece.
_PIECE_BYTES = 64 * 1024
# More than any pipe holds. A process outside the job's tree may have its write end and never stop writing.
_DRAIN_READS = 512
_END_BYTES = 256 * 1024
MESSAGE_BYTES = 16 * 2**20 + 8192
"""The most that is taken from a job's channel: the largest value of a call (``python_jobs.reply.channel_bytes``)."""


def marker(dropped: int) -> bytes:
    """The text at the end of a stream that was cut."""
    return b"\n" + dropped_text(dropped)


class Capture:
    """One output stream: the first ``limit`` bytes, and a count of the rest."""

    def __init__(
        self, name: str, limit: int, on_output: OnOutput | None = None, on_all: OnOutput | None = None
    ) -> None:
        """``on_output`` is told of what is kept, ``on_all`` of everything."""
        self.name = name
        self.limit = limit
        self.dropped = 0
        self._kept = bytearray()
        self._on_output = on_output
        self._on_all = on_all
        self._only_end = on_output is not None and limit >= UNLIMITED_OUTPUT
        """A listener without a bound gets everything as it comes: only the end is kept here."""

    def add(self, piece: bytes) -> None:
        if self._on_all:
            self._on_all(self.name, piece)
        room = 0 if self.dropped else self.limit - len(self._kept)
        kept = piece[:room]
        self._kept += kept
        if self._only_end and len(self._kept) > 2 * _END_BYTES:
            del self._kept[:-_END_BYTES]
        if len(piece) > room:
            self._drop(len(piece) - len(kept))
        if kept and self._on_output:
            self._on_output(self.name, bytes(kept))

    def _drop(self, count: int) -> None:
        """At the first drop, half a character at the end goes too, in whatever pieces it came."""
        if not self.dropped:
            tail = bytes(self._kept[-4:])
            half = len(tail) - _whole_characters(tail)
            del self._kept[len(self._kept) - half :]
            count += half
        self.dropped += count

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

    def __init__(
        self,
        job: Job,
        output_bytes: int,
        on_output: OnOutput | None,
        on_all: OnOutput | None = None,
        *,
        files_apart: bool = False,
    ) -> None:
        """``files_apart``: the content of a file is fed to the job, which does not get the file itself."""
        self.stdout = Capture("stdout", output_bytes, on_output, on_all)
        self.stderr = Capture("stderr", output_bytes, on_output, on_all)
        self.channel = Capture("channel", MESSAGE_BYTES) if job.channel else None
        self.readers: dict[int, Capture] = {}
        self.writer = -1
        self.keyboard = -1
        self.on_typed: Callable[[bytes], object] = bool
        """Told of each key that was passed on to the job's terminal."""
        self._pending = memoryview(b"")
        self._source = -1
        self._files_apart = files_apart
        self._theirs: list[int] = []
        self._job = job
        try:
            self._open()
        except BaseException as error:
            self.close()
            if is_of_a_call(error):
                raise SetupError("open the streams", str(error)) from error
            raise

    def _open(self) -> None:
        if self._job.terminal:
            self._open_terminal()
        else:
            self._theirs.append(self._open_input(self._job.stdin))
            self._theirs.append(self._open_output(self.stdout))
            self._theirs.append(self._open_output(self.stderr))
        if self.channel is not None:
            self._theirs.append(self._open_output(self.channel))

    def _open_input(self, stdin: bytes | int | None) -> int:
        if stdin is None or stdin == b"":
            return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        if isinstance(stdin, int) and not (self._files_apart and _is_of_the_file_system(stdin)):
            return os.dup(stdin)
        reader, self.writer = os.pipe()
        os.set_blocking(self.writer, False)
        if isinstance(stdin, int):
            self._source = os.dup(stdin)
        else:
            self._pending = memoryview(stdin)
        return reader

    def _open_output(self, capture: Capture) -> int:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        self.readers[reader] = capture
        return writer

    def _open_terminal(self) -> None:
        """One terminal for all three, or all but stderr; what is typed on the caller's terminal is relayed to it."""
        import pty

        ours, theirs = pty.openpty()
        self.readers[ours] = self.stdout
        self._theirs.append(theirs)
        self._theirs.append(os.dup(theirs))
        self._theirs.append(self._open_output(self.stderr) if self._job.stderr_apart else os.dup(theirs))
        os.set_blocking(ours, False)
        if isinstance(self._job.stdin, int):
            # A copy of ours: its owner may close it while the job runs, and the number may then be another file's.
            self.keyboard = os.dup(self._job.stdin)

    @property
    def theirs(self) -> tuple[int, ...]:
        return tuple(self._theirs)

    @property
    def terminal(self) -> int:
        """Our side of the job's terminal; -1 once nobody has it open any more."""
        return next((place for place, capture in self.readers.items() if capture is self.stdout), -1)

    def release_theirs(self) -> None:
        """Once the job has its copies, ours would keep the pipes open for ever."""
        while self._theirs:
            os.close(self._theirs.pop())

    def read(self, descriptor: int) -> bool:
        """Take what has arrived; False if this stream has ended."""
        piece = self._taken(descriptor)
        return piece is None or bool(piece)

    def _taken(self, descriptor: int) -> bytes | None:
        """What was there; empty at the end of the stream, None when there is nothing now."""
        try:
            piece = os.read(descriptor, _PIECE_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            if not is_of_a_call(error):
                raise
            piece = b""  # a terminal whose last user has gone says EIO
        if piece:
            self.readers[descriptor].add(piece)
        return piece

    def message(self) -> bytes | None:
        """What the job said on its channel."""
        return None if self.channel is None or self.channel.dropped else self.channel.result()

    def is_flooded(self) -> bool:
        """Whether the job floods its channel. Its message is lost already, so the job may be ended."""
        return self.channel is not None and self.channel.dropped > MESSAGE_BYTES

    def write(self) -> bool:
        """Feed what the pipe takes; False if everything is fed or nobody reads."""
        if not self._pending and self._source >= 0:
            self._pending = memoryview(self._next_piece())
        try:
            self._pending = self._pending[os.write(self.writer, self._pending[:65536]) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        return bool(self._pending) or self._source >= 0

    def _next_piece(self) -> bytes:
        try:
            piece = os.read(self._source, _PIECE_BYTES)
        except OSError as error:
            if not is_of_a_call(error):
                raise
            piece = b""  # a directory, or a disk that can't be read
        if not piece:
            self._close_source()
        return piece

    def relay_keyboard(self) -> bool:
        """Pass on what was typed; False if the caller's terminal has ended."""
        try:
            typed = os.read(self.keyboard, 1024)
            os.write(self.terminal, typed)
            self.on_typed(typed)
        except BlockingIOError:
            return True  # a terminal whose job does not read drops what is typed
        except OSError as error:
            if not is_of_a_call(error):
                raise
            return False  # one of the two terminals is gone
        return bool(typed)

    def stop_reading(self, descriptor: int) -> None:
        del self.readers[descriptor]
        os.close(descriptor)

    def stop_writing(self) -> None:
        os.close(self.writer)
        self.writer = -1
        self._close_source()

    def _close_source(self) -> None:
        if self._source >= 0:
            os.close(self._source)
            self._source = -1

    def drain(self) -> None:
        """After the end: take what is still in the pipes, without waiting for processes that may hold them open."""
        for descriptor in list(self.readers):
            for _ in range(_DRAIN_READS):
                if not self._taken(descriptor):
                    break

    def close(self) -> None:
        self.release_theirs()
        for descriptor in list(self.readers):
            self.stop_reading(descriptor)
        if self.writer >= 0:
            self.stop_writing()
        if self.keyboard >= 0:
            os.close(self.keyboard)
            self.keyboard = -1


def _is_of_the_file_system(descriptor: int) -> bool:
    """A process with such a descriptor can change the mode and times of the file, and may reopen it for writing."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISBLK(mode)
