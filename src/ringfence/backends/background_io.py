"""The streams of something that runs in the background: what it has printed, and its input while it takes some."""

from __future__ import annotations

import os
import threading

from ringfence.backends.newest import Heard, Newest
from ringfence.errors import UsageError
from ringfence.transport import wire


class BackgroundStreams:
    """For the side that holds the other end."""

    def __init__(self, output_bytes: int) -> None:
        """``output_bytes``: how much of each stream is kept."""
        self._output = {name: Newest(output_bytes) for name in ("stdout", "stderr")}
        self._input = -1
        self._input_lock = threading.RLock()

    @property
    def stdout(self) -> bytes:
        """What has come so far: the newest ``output_bytes`` of it, behind a text that says how much was dropped."""
        return self._output["stdout"].all()

    @property
    def stderr(self) -> bytes:
        return self._output["stderr"].all()

    def read_stdout(self, since: int = 0, *, timeout_s: float | None = 0) -> Heard:
        """What has come since a position: that of the last reading, or 0.

        If nothing has come, wait up to ``timeout_s`` for it; None: until something comes, or nothing more can.
        """
        return self._output["stdout"].read(since, timeout_s)

    def read_stderr(self, since: int = 0, *, timeout_s: float | None = 0) -> Heard:
        return self._output["stderr"].read(since, timeout_s)

    def _add(self, stream: str, piece: bytes) -> None:
        self._output[stream].add(piece)

    def _end_output(self) -> None:
        for newest in self._output.values():
            newest.end()

    def write(self, data: bytes) -> None:
        """Write to its standard input, if it was given no other; waits while it does not read."""
        with self._input_lock:
            if self._input < 0:
                raise UsageError("the input was given with the job, or is closed")
            # Another thread may close it meanwhile, and its number may then belong to another file.
            ours = os.dup(self._input)
        try:
            wire.write_all(ours, data)
        except BrokenPipeError:
            raise UsageError("the job no longer reads its input") from None
        finally:
            os.close(ours)

    def close_input(self) -> None:
        """It reads the end of its input."""
        with self._input_lock:
            ours, self._input = self._input, -1
        if ours >= 0:
            os.close(ours)

    def __del__(self) -> None:
        """Dropped by its owner with its input open."""
        if getattr(self, "_input", -1) >= 0:
            self.close_input()
