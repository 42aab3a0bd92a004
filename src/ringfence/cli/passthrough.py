"""Makes a sandboxed command feel like a plain one: live output, signals, Ctrl-C, Ctrl-Z, the terminal."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the C half: the other builds tables of names first
import os

from ringfence.engine.streams import Streams
from ringfence.errors import SandboxError
from ringfence.model.job import Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

    from ringfence.backends.contract import Visit
    from ringfence.cli.terminal import TerminalRelay

_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_SIGKILL = getattr(signal, "SIGKILL", signal.SIGTERM)
_SUSPEND = getattr(signal, "SIGTSTP", 0)
# A person who presses Ctrl-C a second and a third time means it.
_ESCALATION = (signal.SIGINT, signal.SIGTERM, _SIGKILL)
AT_ONCE = (signal.SIGINT, _SIGKILL)
"""For a job that prints its results so far on the first one."""


class Passthrough:
    """While entered, signals to us go to the job; at the end everything is as it was."""

    def __init__(self, job: Job | None = None, escalation: tuple[int, ...] = _ESCALATION) -> None:
        self.job = job
        self.escalation = escalation
        self.visit: Visit | None = None
        self.interrupts = 0
        self.reader_gone = False
        self._saved_handlers: dict[int, object] = {}
        self._terminal: TerminalRelay | None = None

    def __enter__(self) -> Passthrough:
        for name in _FORWARDED:
            number = getattr(signal, name, None)
            if number is not None:
                self._saved_handlers[number] = signal.signal(number, self._forward)
        if _SUSPEND and signal.getsignal(_SUSPEND) != signal.SIG_IGN:  # else the caller has no job control
            self._saved_handlers[_SUSPEND] = signal.signal(_SUSPEND, lambda *_: self.suspend(os.getpid()))
        return self

    def __exit__(self, *_: object) -> None:
        self.visit = None
        for number, handler in self._saved_handlers.items():
            signal.signal(number, handler)
        if self._terminal is not None:
            self._terminal.close()

    def attach(self, visit: Visit, streams: Streams) -> None:
        self.visit = visit
        if self.job and self.job.terminal:
            from ringfence.cli.terminal import TerminalRelay

            self._terminal = TerminalRelay(streams, lambda: self.suspend(0))

    def pass_on(self, stream: str, piece: bytes) -> None:
        """As ``write_through``; when nobody reads any more, end the job, and drop what it still prints."""
        if self.reader_gone:
            return
        try:
            write_through(stream, piece)
        except BrokenPipeError:
            if self.visit is None:
                raise
            self.reader_gone = True
            self.visit.signal(_SIGKILL)

    def suspend(self, whom: int) -> None:
        """Stop the job's tree, then us, or our whole group (0), until the shell continues us. Limits go on counting."""
        visit, terminal = self.visit, self._terminal
        if visit is not None:
            visit.signal(signal.SIGSTOP)
        if terminal is not None:
            terminal.pause()
        handler = signal.signal(_SUSPEND, signal.SIG_DFL)
        os.kill(whom, _SUSPEND)  # we are stopped here; if nobody could continue us, the kernel drops the signal
        signal.signal(_SUSPEND, handler)
        if terminal is not None:
            terminal.resume()
        if visit is not None:
            visit.signal(signal.SIGCONT)

    def _forward(self, number: int, _: FrameType | None) -> None:
        if self.visit is None:
            raise KeyboardInterrupt
        if number == signal.SIGINT:
            number = self.escalation[min(self.interrupts, len(self.escalation) - 1)]
            self.interrupts += 1
        self.visit.signal(number)


def write_through(stream: str, piece: bytes) -> None:
    """Put a piece of the job's output where ours goes, at once."""
    target = 1 if stream == "stdout" else 2
    view = memoryview(piece)
    while view:
        try:
            view = view[os.write(target, view) :]
        except BlockingIOError:  # a process that shares it with us has made it non-blocking
            _wait_for_room(target)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise SandboxError(f"{stream} can't be written: {error.strerror}") from error


def _wait_for_room(target: int) -> None:
    import select

    poller = select.poll()
    poller.register(target, select.POLLOUT)
    poller.poll()
