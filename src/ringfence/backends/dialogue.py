"""The streams of something that runs in the background: what it has printed, and its input while it takes some."""

from __future__ import annotations

import os
import threading

from ringfence.errors import UsageError
from ringfence.posix import wire


class Dialogue:
    """For one who holds the other end."""

    def __init__(self) -> None:
        self._output = {"stdout": bytearray(), "stderr": bytearray()}
        self._input = -1
        self._input_lock = threading.RLock()

    @property
    def stdout(self) -> bytes:
        """What has come so far."""
        return bytes(self._output["stdout"])

    @property
    def stderr(self) -> bytes:
        return bytes(self._output["stderr"])

    def write(self, data: bytes) -> None:
        """To its standard input, if no other was given; waits while it does not read."""
        with self._input_lock:
            if self._input < 0:
                raise UsageError("its input was given with the job, or is closed")
            # Another thread may close it meanwhile, and its number then be somebody else's.
            ours = os.dup(self._input)
        try:
            wire.write_all(ours, data)
        except BrokenPipeError:
            raise UsageError("it does not read its input any more") from None
        finally:
            os.close(ours)

    def close_input(self) -> None:
        with self._input_lock:
            ours, self._input = self._input, -1
        if ours >= 0:
            os.close(ours)

    def __del__(self) -> None:
        """Forgotten, with its input open."""
        if getattr(self, "_input", -1) >= 0:
            self.close_input()
