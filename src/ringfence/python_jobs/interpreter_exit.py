"""The end of a Python job in a forked interpreter: what a user can notice of an interpreter's exit, in its order.

Threads are waited for, atexit functions run, streams are flushed, the job's modules are taken apart so that its
objects are finalized and its files written. The rest of the interpreter is not: the process ends at once.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # loads nothing, see ADR 0003
import atexit
import gc
import io
import os
import sys
import traceback
from _weakref import ref
from types import ModuleType

_FLUSH_FAILED = 120
_INTERRUPTED = 128 + 2
_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def status_of(ended: SystemExit) -> int:
    """The exit status that SystemExit asks for; anything but a number is printed, as Python does."""
    code = ended.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -(2**63) <= code < 2**63 else 0xFF
    try:
        sys.stderr.write(f"{code}\n")
    except Exception:
        pass  # closed or replaced by the job: there is nobody to tell
    return 1


def finish(status: int, known_modules: frozenset[str], before: tuple[str, int]) -> int:
    """Everything between the end of the program and the end of the process; return the status to end with.

    ``known_modules`` are not the job's; ``before``: the last module when it began, and how many there were.
    """
    threading = sys.modules.get("threading")
    if threading is not None:
        _unless_it_raises(threading._shutdown, threading)
    _unless_it_raises(atexit._run_exitfuncs, atexit)
    flushed = _flush_standard()
    if len(sys._current_frames()) == 1:
        _take_apart(known_modules, before)
    else:
        _flush_files()
    return status if flushed and _flush_standard() else _FLUSH_FAILED


def die_interrupted() -> int:
    """End by SIGINT, as shells expect; return the status if the kernel does not let us (as a namespace's pid 1)."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    return _INTERRUPTED


def _unless_it_raises(step: object, owner: object) -> None:
    try:
        step()  # type: ignore[operator]
    except BaseException as error:
        _ignored(f"in: {owner!r}", error)


def _ignored(where: str, error: BaseException) -> None:
    trace = error.__traceback__
    lines = traceback.format_exception(type(error), error, trace.tb_next if trace else None)
    try:
        sys.stderr.write(f"Exception ignored {where}\n" + "".join(lines))
        sys.stderr.flush()
    except Exception:
        pass  # nobody to tell


def _flush_standard() -> bool:
    """Flush stdout, then stderr; False, with a message, if printed output is lost."""
    whole = True
    for stream in dict.fromkeys((sys.stdout, sys.__stdout__)):
        whole &= _flushed(stream)
    try:
        sys.stderr.flush()
    except Exception:
        pass  # nobody to tell
    return whole


def _flushed(stream: object) -> bool:
    try:
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()  # type: ignore[attr-defined]
    except BaseException as error:
        if not isinstance(error, AttributeError):
            _ignored(f"in: {stream!r}" if sys.version_info < (3, 13) else "on flushing sys.stdout:", error)
            return False
    return True


def _take_apart(known: frozenset[str], before: tuple[str, int]) -> None:
    """Take apart the job's modules, the latest first: objects are finalized and files closed, as at an interpreter's
    exit.

    That would pull the ground from under a daemon thread that still runs; then files are only flushed.
    """
    sys.last_type = sys.last_value = sys.last_traceback = None
    alive = [ref(sys.modules.pop(name)) for name in _of_the_job(known, before)]
    gc.collect()
    left = [module for each in reversed(alive) if (module := each()) is not None]
    for module in left:
        _empty(module.__dict__)
    if left:
        gc.collect()


def _of_the_job(known: frozenset[str], before: tuple[str, int]) -> list[str]:
    """Their names, in order. Looking at all of them copies their pages, so we look only at those after the last known
    one, unless that one has moved."""
    last, count = before
    names: list[str] = []
    for name in reversed(sys.modules):
        if name == last and len(sys.modules) == count + len(names):
            break
        names.append(name)
    found = [name for name in reversed(names) if name not in known and name != "__main__"]
    return [name for name in ("__main__", *found) if type(sys.modules.get(name)) is ModuleType]


def _empty(space: dict[str, object]) -> None:
    """Private names first: what Python promises about the order at exit."""
    for private in (True, False):
        for name in list(space):
            if (name[:1] == "_" and name[:2] != "__") == private and name != "__builtins__":
                space[name] = None


def _flush_files() -> None:
    for thing in gc.get_objects():
        if type(thing) in _FILES:
            try:
                thing.flush()
            except Exception:
                pass  # closed, or its reader has gone


def rehearse() -> None:
    """Touch what an exit touches, and change nothing."""
    _flush_standard()
    gc.collect()
