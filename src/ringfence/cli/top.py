"""Watch the sandboxes that run now: time, processor, memory, processes and bytes written of each."""

from __future__ import annotations

import os
import select
import sys
import time

from ringfence.cli.top_view import Overview, lines
from ringfence.errors import UnavailableError, UsageError
from ringfence.model.printed import levels

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

EXAMPLES = """\
examples:
  ringfence top                     a table that refreshes; q quits
  ringfence top --once              print it once (also when the output is not a terminal)
  ringfence top --json | jq '.[].memory_bytes'

ID is the sandbox's leading process; COMMAND is its caller's command. A figure with a question mark may be too small: a
process in the sandbox hides its counters from others.
"""

_FIRST_LOOK_S = 0.25
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="print the table once and exit")
    parser.add_argument("--json", action="store_true", help="print everything as JSON, once")
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS",
                        help="refresh interval in seconds (default: 1)")  # fmt: skip


def execute(arguments: argparse.Namespace) -> int:
    if sys.platform != "linux":
        raise UnavailableError("running sandboxes can't be found on this system", hint="run on Linux")
    if not 0.05 <= arguments.interval <= 3600:
        raise UsageError("--interval must be from 0.05 to 3600 seconds")
    overview = Overview()
    try:
        if arguments.once or arguments.json or not (os.isatty(0) and os.isatty(1)):
            return _print_once(overview, arguments)
        return _refresh(overview, arguments.interval)
    finally:
        overview.close()


def _print_once(overview: Overview, arguments: argparse.Namespace) -> int:
    overview.look()
    time.sleep(min(arguments.interval, _FIRST_LOOK_S))  # a processor share needs a time span
    rows = overview.look()
    if arguments.json:
        from ringfence.cli.json_text import print_json

        print_json([row.to_dict() for row in rows])
    else:
        print("\n".join(lines(rows, _size()[0], levels())))
    return 0


def _size() -> tuple[int, int]:
    try:
        columns, rows = os.get_terminal_size(1)
    except OSError:
        return 200, 1000
    return (columns, rows) if columns and rows else (80, 24)


def _refresh(overview: Overview, interval_s: float) -> int:
    """Until q."""
    with _Screen() as screen:
        while True:
            columns, rows = _size()
            screen.show(fitted(lines(overview.look(), columns, levels()), rows - 1))
            if screen.pressed("q", interval_s):
                return 0


def fitted(shown: list[str], most: int) -> list[str]:
    """The table and how to leave it, in this many lines."""
    room = max(1, most - 2)
    cut = len(shown) - room
    return [*shown[:room], "", f"q quits; {cut} more below" if cut > 0 else "q quits"]


class _Screen:
    """The terminal while the table is on it; left as it was found, whatever happens."""

    def __enter__(self) -> _Screen:
        import signal
        import termios
        import tty

        self._saved = termios.tcgetattr(0)
        # A terminal must not be left half changed by a stop, nor by a plain kill or another key.
        wanted: dict[int, Any] = {signal.SIGTSTP: signal.SIG_IGN}
        wanted |= dict.fromkeys((signal.SIGTERM, signal.SIGQUIT), _interrupt)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            wanted[signal.SIGHUP] = _interrupt
        self._handlers = {number: signal.signal(number, handler) for number, handler in wanted.items()}
        try:
            tty.setcbreak(0)
            self._write(_ENTER)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        import signal
        import termios

        try:
            termios.tcsetattr(0, termios.TCSADRAIN, self._saved)
            self._write(_LEAVE)
        except (termios.error, OSError):
            pass  # the terminal is gone
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def show(self, shown: list[str]) -> None:
        self._write(_HOME + "".join(f"{line}{_CLEAR_LINE}\r\n" for line in shown) + _CLEAR_REST)

    def pressed(self, key: str, within_s: float) -> bool:
        end = time.monotonic() + within_s
        while (left := end - time.monotonic()) > 0:
            if select.select([0], [], [], left)[0]:
                typed = os.read(0, 64)
                if not typed or key.encode() in typed:
                    return True
        return False

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
