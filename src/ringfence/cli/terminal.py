"""The caller's terminal while a job has one of its own: raw, and both of the same size."""

from __future__ import annotations

import signal
import sys

from ringfence.engine.streams import Streams


class TerminalRelay:
    """From here until ``close`` every key goes to the job's terminal, Ctrl-C among them."""

    def __init__(self, streams: Streams) -> None:
        import termios
        import tty

        self._streams = streams
        self._saved = termios.tcgetattr(sys.stdin.fileno())
        self._old_handler = signal.signal(signal.SIGWINCH, lambda *_: self._resize())
        tty.setraw(sys.stdin.fileno())
        self._resize()

    def _resize(self) -> None:
        import fcntl
        import termios

        size = fcntl.ioctl(sys.stdout.fileno(), termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(self._streams.terminal, termios.TIOCSWINSZ, size)

    def close(self) -> None:
        import termios

        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._saved)
        signal.signal(signal.SIGWINCH, self._old_handler)
