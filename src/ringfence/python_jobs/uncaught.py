"""How a Python job's uncaught exception is shown and told: as ``python FILE`` shows it, without our frames.

Before Python 3.13 the interpreter's own display reads source lines from files only. Where a source came as text
and is in no file, ``traceback`` prints it, which asks ``linecache``.
"""

from __future__ import annotations

import _thread
import io
import linecache
import os
import sys
import traceback
from types import TracebackType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SUGGESTED = ". Did you mean: '"
_sources: set[str] = set()
_thread_hook = _thread._excepthook


def remember_source(name: str, source: str | bytes) -> None:
    """Let tracebacks show the lines of a source that is in no file, or not in this form."""
    text = source if isinstance(source, str) else _decoded(source)
    # Without a time of change linecache never looks for the file again.
    linecache.cache[name] = (len(text), None, [line + "\n" for line in text.splitlines()], name)
    _sources.add(name)


def _decoded(source: bytes) -> str:
    if source.isascii():
        return source.decode("ascii")
    from tokenize import detect_encoding

    try:
        encoding, _ = detect_encoding(io.BytesIO(source).readline)
        return source.decode(encoding, "replace")
    except SyntaxError:
        return source.decode("utf-8", "replace")


def guests_part(trace: TracebackType | None, ours: tuple[dict[str, Any], ...]) -> TracebackType | None:
    """The traceback from the first frame that is not ours."""
    while trace is not None and any(trace.tb_frame.f_globals is space for space in ours):
        trace = trace.tb_next
    return trace


def text_of(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:
        return _bare_text_of(error)
    if sys.version_info >= (3, 12) or not isinstance(error, NameError | AttributeError | ImportError):
        return text
    return _with_suggestion(text, error)


def _bare_text_of(error: BaseException) -> str:
    """The fallback if it can't be printed well: that loads modules, and a job may have no descriptor or memory left."""
    frames = ((frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__))
    places = [f'  File "{code.co_filename}", line {line}, in {code.co_name}\n' for code, line in frames]
    return "".join(("Traceback (most recent call last):\n", *places, *traceback.format_exception_only(error)))


def _with_suggestion(text: str, error: BaseException) -> str:
    """Python 3.11 suggests similar names only in its own display: take them from there."""
    kept, sys.stderr = sys.stderr, io.StringIO()
    try:
        sys.__excepthook__(type(error), error, error.__traceback__)
        shown = sys.stderr.getvalue().rstrip("\n").rpartition("\n")[2]
    finally:
        sys.stderr = kept
    bare = shown.partition(_SUGGESTED)[0]
    return text[: -len(bare) - 1] + shown + "\n" if _SUGGESTED in shown and text.endswith(bare + "\n") else text


def show(error: BaseException) -> None:
    """Call ``sys.excepthook``, whatever it is by now."""
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    hook = getattr(sys, "excepthook", sys.__excepthook__)
    if hook is sys.__excepthook__:
        return _display(error)
    try:
        hook(type(error), error, error.__traceback__)
    except SystemExit:
        raise
    except BaseException as second:
        trace = second.__traceback__
        second.with_traceback(trace.tb_next if trace else None)
        second.__context__ = None
        _say("Error in sys.excepthook:\n" + text_of(second) + "\nOriginal exception was:\n" + text_of(error))


def _display(error: BaseException) -> None:
    if _has_lines(error):
        sys.__excepthook__(type(error), error, error.__traceback__)
    else:
        _say(text_of(error))


def _has_lines(error: BaseException) -> bool:
    """Whether Python's own display finds the lines: it looks into files, and into nothing for a syntax error."""
    no_frames = error.__traceback__ is None and error.__context__ is None
    return sys.version_info >= (3, 13) or no_frames or all(map(os.path.isfile, _sources))


def _say(text: str) -> None:
    stream = sys.stderr
    try:
        stream.write(text)
        stream.flush()
    except Exception:
        pass  # the job has closed or replaced it: there is nobody to tell


def show_threads_too() -> None:
    """``threading`` takes its hook from ``_thread`` when it is loaded. It is not loaded here: what it does after a
    fork makes every fork copy a hundred pages more."""
    if sys.version_info >= (3, 13):
        return
    _thread._excepthook = _in_thread
    if "threading" in sys.modules:  # preloaded, or by what is
        sys.modules["threading"].excepthook = _in_thread  # type: ignore[attr-defined]


def _in_thread(told: Any) -> None:
    if told.exc_type is SystemExit or sys.stderr is None or _has_lines(told.exc_value):
        _thread_hook(told)
        return
    name = told.thread.name if told.thread is not None else "unknown"
    _say(f"Exception in thread {name}:\n{text_of(told.exc_value)}")


def forget_source(name: str) -> None:
    _sources.discard(name)
    linecache.cache.pop(name, None)
