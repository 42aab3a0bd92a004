"""The caller's terminal while a job has one of its own: in raw mode, and both with the same size."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from ringfence.engine.streams import Streams


class TerminalRelay:
    """From here until ``close`` every key goes to the job's terminal, Ctrl-C among them."""

    def __init__(self, streams: Streams, suspend: Callable[[], None]) -> None:
        """``suspend``: called when Ctrl-Z was typed and the job leaves it to us."""
        import termios

        self._streams = streams
        self._suspend = suspend
        self._saved = termios.tcgetattr(sys.stdin.fileno())
        self._old_handler = signal.signal(signal.SIGWINCH, lambda *_: self._resize())
        streams.on_typed = self._typed
        self.resume()

    def resume(self) -> None:
        import tty

        tty.setraw(sys.stdin.fileno())
        self._resize()

    def pause(self) -> None:
        """Restore its mode, e.g. while the shell has it."""
        import termios

        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._saved)

    def _resize(self) -> None:
        import fcntl
        import termios

        size = fcntl.ioctl(sys.stdout.fileno(), termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(self._streams.terminal, termios.TIOCSWINSZ, size)

    def _typed(self, keys: bytes) -> None:
        try:
            if _suspends(self._streams.terminal, keys):
                self._suspend()
        except OSError:
            pass  # the job has gone, and its terminal with it

    def close(self) -> None:
        self.pause()
        signal.signal(signal.SIGWINCH, self._old_handler)


def _suspends(terminal: int, keys: bytes) -> bool:
    """Whether these keys would have stopped the job, had it been started by a shell. In a session of its own nobody
    could continue it, so the kernel does not stop it. A shell or an editor that handles the key itself keeps it."""
    import fcntl
    import termios

    try:
        mode = termios.tcgetattr(terminal)
        key = mode[6][termios.VSUSP]
        if key not in (keys[place : place + 1] for place in range(len(keys))) or not mode[3] & termios.ISIG:
            return False
        group, session = (int.from_bytes(fcntl.ioctl(terminal, call, bytes(4)), sys.byteorder)
                          for call in (termios.TIOCGPGRP, _TIOCGSID))  # fmt: skip
    except termios.error as error:
        raise OSError(*error.args) from error
    return group == session and not _handles(group, signal.SIGTSTP)


_TIOCGSID = 0x5429


def _handles(process: int, number: int) -> bool:
    """Whether it ignores or catches a signal; false if that can't be told."""
    try:
        with open(f"/proc/{process}/status", "rb") as file:
            masks = [int(line.split()[1], 16) for line in file if line.startswith((b"SigIgn:", b"SigCgt:"))]
    except OSError:
        return False
    return any(mask >> (number - 1) & 1 for mask in masks)
