"""Which lines of the package a process runs, for processes that are too many and too short to load coverage.

Loading coverage takes longer than most of our processes live: 0.15 s of processor time, and a database for each. This
needs no module that is not there anyway, and adds a line of text to a file. ``measured`` makes a coverage file of all.
"""

from __future__ import annotations

import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Any

VARIABLE = "RINGFENCE_LINES"
"""The file of this process and its children; what a program in a sandbox has none of."""
ENOUGH_CALLS = 300
"""A function that ran so often without another line is watched no more: the figure stays a floor."""
MOST_UNWRITTEN = 50
"""So many a process loses that is killed."""


class Collector:
    """Collects lines that were not seen in this process or in those that it was forked from."""

    def __init__(self, file: str, package: str) -> None:
        self._file, self._package = file, package
        self._left: dict[CodeType, set[int]] = {}
        self._calls: dict[CodeType, int] = {}
        self._new: list[tuple[str, int]] = []

    def call(self, frame: FrameType, event: str, argument: object) -> Any:
        """Watch a call of a function of ours in which lines are left."""
        code = frame.f_code
        left = self._left.get(code)
        if left is None:
            ours = code.co_filename.startswith(self._package)
            left = self._left[code] = {line for _, _, line in code.co_lines() if line} if ours else set()
        if not left:
            return None
        calls = self._calls[code] = self._calls.get(code, 0) + 1
        return self.line if calls < ENOUGH_CALLS else None

    def line(self, frame: FrameType, event: str, argument: object) -> Any:
        """Note a line that is new."""
        left = self._left[frame.f_code]
        if event == "line" and frame.f_lineno in left:
            left.discard(frame.f_lineno)
            self._calls[frame.f_code] = 0
            self._new.append((frame.f_code.co_filename, frame.f_lineno))
            if len(self._new) >= MOST_UNWRITTEN:
                self.write()
        if not left:
            frame.f_trace_lines = False
        return self.line

    def write(self) -> None:
        """Add what is new to the file; where it can't be reached, as in a sandbox, nothing."""
        new, self._new = self._new, []
        try:
            file = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError:
            return
        told = "".join(f"{name}\t{line}\n" for name, line in new).encode()
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        # Whoever may write no file, as the gateway, or only a small one would end for what is not its own doing.
        if most == resource.RLIM_INFINITY or os.fstat(file).st_size + len(told) <= most:
            os.write(file, told)
        os.close(file)


def start(file: str, package: str) -> None:
    """Collect from now on, also in threads and in what is forked."""
    import atexit
    import threading

    collector = Collector(file, package)
    for name in ("_exit", "execv", "execve", "execvp", "execvpe"):
        setattr(os, name, _after(collector.write, getattr(os, name)))
    os.register_at_fork(before=collector.write)
    atexit.register(collector.write)
    threading.settrace(collector.call)
    sys.settrace(collector.call)


def _after(first: Any, then: Any) -> Any:
    def call(*arguments: object) -> object:
        first()
        return then(*arguments)

    return call
