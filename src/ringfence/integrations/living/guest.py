"""Inside the sandbox: an interpreter that executes one cell after the other and keeps its variables.

Started by ``python.py`` with the mark's length agreed on: a request on stdin is ``kind(1) length(4) interrupts(4)
mark(16) payload``; the interrupts are those sent before it. After each, both streams get the mark on a line of its own;
on stdout a reply of ``python_jobs.reply`` follows it, with its length. It protects nothing: the cell's code can write
all of this itself, and says then no more than another value.
"""

from __future__ import annotations

import ast
import os
import signal
import sys
import time
import traceback
from struct import Struct

from ringfence.python_jobs import load, reply

HEAD = Struct("!cII16s")
LENGTH = Struct("!I")
CELL, VARIABLES = b"C", b"V"
MARK_START = b"\n\x1e"
_running: list[bool] = []
"""Not empty while a cell runs: only then is an interrupt meant for a cell."""
_arrived = 0
"""How many interrupts have come."""
_LATE_S = 2.0
"""How long one for an earlier cell may be on its way; then it was lost, e.g. to a handler that the cell had set."""


def _interrupted(*_: object) -> None:
    global _arrived
    _arrived += 1
    if _running:
        raise KeyboardInterrupt


def _let_arrive(sent: int) -> None:
    """Wait for interrupts that were sent before this cell began: they are not meant for it."""
    global _arrived
    end = time.monotonic() + _LATE_S
    while _arrived < sent and time.monotonic() < end:
        time.sleep(0.001)
    _arrived = sent


def serve(max_bytes: int) -> None:
    """Until stdin ends."""
    requests = os.fdopen(os.dup(0), "rb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    space = _main_module()
    sys.path.insert(0, "")
    signal.signal(signal.SIGINT, _interrupted)
    while True:
        head = requests.read(HEAD.size)
        if len(head) < HEAD.size:
            return
        kind, length, sent, mark = HEAD.unpack(head)
        payload = requests.read(length)
        _let_arrive(sent)
        _answer(mark, _worked(kind, payload, space, max_bytes))


def _main_module() -> dict[str, object]:
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    return module.__dict__


def _worked(kind: bytes, payload: bytes, space: dict[str, object], max_bytes: int) -> bytes:
    try:
        try:
            _running.append(True)
            if kind == VARIABLES:
                space.update(load.load(payload)[1])
                return reply.pack_value(None, max_bytes)
            return _sent(run_cell(payload.decode("utf-8", "surrogatepass"), space), max_bytes)
        finally:
            _running.clear()
    except BaseException as error:
        _running.clear()
        return _raised(error)


def run_cell(source: str, space: dict[str, object]) -> object:
    """Execute it; the value of its last statement, where that is an expression."""
    tree = ast.parse(source, "<cell>", "exec")
    _remember(source)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "<cell>", "exec"), space)
        return None
    tree.body.pop()
    exec(compile(tree, "<cell>", "exec"), space)
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), space)


def _remember(source: str) -> None:
    """For the lines in a traceback."""
    import linecache

    linecache.cache["<cell>"] = (len(source), None, source.splitlines(keepends=True), "<cell>")


def _sent(value: object, max_bytes: int) -> bytes:
    """The value and its text: not every value can be sent."""
    shown = "" if value is None else reply.cut(repr(value))
    packed = reply.pack_value({"value": value, "shown": shown}, max_bytes)
    if reply.read_reply(packed, max_bytes=max_bytes).kind is reply.ReplyKind.VALUE:
        return packed
    return reply.pack_value({"shown": shown}, max_bytes)


def _raised(error: BaseException) -> bytes:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except Exception:
        message = "(its text can't be had)"
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != "<cell>":
        frames = frames.tb_next
    told = "".join(traceback.format_exception(kind, error, frames))
    return reply.pack_raised(name, message, told)


def _answer(mark: bytes, packed: bytes) -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # the cell has closed or replaced it
    _write(2, MARK_START + mark + b"\n")
    _write(1, MARK_START + mark + b"\n" + LENGTH.pack(len(packed)) + packed)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
