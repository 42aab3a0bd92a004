"""What the caller and the leader of a visit say to each other, over one pipe each way.

Towards the leader (trusted): one marshalled request, then single-byte commands. Back (not trusted, since the job may
have tampered with the leader): small frames of fixed layout, never anything that is evaluated or unpickled.
"""

from __future__ import annotations

import errno
import marshal
import os
import select
from _collections_abc import Mapping
from struct import Struct
from struct import error as StructError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Never

    from ringfence.transport.report import EndedFrame, HealthFrame, Note
    from ringfence.transport.request import (
        ClearRequest,
        DraftFile,
        DumpRequest,
        JobOrder,
        RestoreRequest,
        StandbyRequest,
        VisitRequest,
        ZygoteRequest,
    )  # fmt: skip

    Request = VisitRequest | StandbyRequest | ZygoteRequest | ClearRequest

MAX_FRAME_BYTES = 64 * 1024
MOST_DRAFTS = 2
"""How many drafts a zygote keeps: those of two pools that share a template. Its caller keeps the same count."""
_HEAD = Struct("!cI")
_MOST_DIGITS, _MOST_LEVELS = 20, 8
"""Of a number, and of an object in a frame."""

STARTED, READY, FAILED, ENDED, NOTED, HEALTH, LEFT, SAID = b"S", b"R", b"F", b"E", b"N", b"H", b"L", b"A"
"""Frames from the leader: it is here (its pid), it waits for a job (whose pipes belong to this id on the host, where
root is the caller), the set-up failed (step, problem), the end,
an attempt on something forbidden, and how sure the recorder is that it saw them all (both JSON); for a visit to a box
also that nothing is left and everything is said; and that everything recorded at the time of the question is said
(``SAY_ON``)."""

NOTHING_SEEN: HealthFrame = {
    "total": 0, "kept": 0, "summarised": 0, "uncategorised": 0, "unnamed": 0, "lost": 0, "late": 0, "unwritten": 0,
    "forbidden": "", "problems": [], "caveat": "", "complete": True, "totals": {}, "summary": [],
}  # fmt: skip
"""What the recorder says of most jobs, sent as an empty body: reading JSON takes as long as a small job."""

_KINDS = frozenset((STARTED, READY, FAILED, ENDED, NOTED, HEALTH, LEFT, SAID))

# Why the leader killed the tree, by position in the frame.
CAUSES = ("", "wall_time", "cpu_time", "memory", "pids", "disk", "asked", "owner_gone", "reaper_gone", "operations")

TELL, SAY_ON = 0, 255
"""To the leader, among signals: send everything recorded up to now, and how sure that is (``HEALTH``); or only confirm
that it was sent (``SAID``), in which case the record stays part of the visit."""

ENTER = "enter the box"
"""The step of a visit to a living box that fails when the box has ended."""

NOT_STARTED = getattr(errno, "ELIBACC", 79)
"""The errno for a program that the kernel does not find although its file exists."""

REPORT_FIELDS = (
    "wait_status", "cause", "measured", "wall_ns", "cpu_user_us", "cpu_system_us", "peak_memory_bytes",
    "processes", "written_bytes", "voluntary_switches", "involuntary_switches", "oom_kills", "survivors",
    "largest_bytes", "written_chars", "refused_bytes", "exit_memory_bytes", "exit_address_bytes", "exit_descriptors",
    "exit_slots", "operations",
)  # fmt: skip
_REPORT = Struct("!" + "q" * len(REPORT_FIELDS))
_STARTED = Struct("!q")


class Garbled(Exception):
    """Bytes that no honest leader sends."""


def encode_request(request: Request) -> bytes:
    body = packed(request)
    return _HEAD.pack(b"R", len(body)) + body


def packed(message: Request | DraftFile | JobOrder | DumpRequest | RestoreRequest) -> bytes:
    """In the form sent to another process of ours, which runs the same interpreter."""
    return marshal.dumps(message)  # type: ignore[arg-type]  # a TypedDict is a dict, which mypy has no word for


def read_visit(descriptor: int) -> VisitRequest | StandbyRequest:
    """Block until the whole request is here; EOFError if the caller is gone. So do the next two."""
    request: VisitRequest | StandbyRequest = marshal.loads(_body(descriptor))
    return request


def read_zygote(descriptor: int) -> ZygoteRequest:
    request: ZygoteRequest = marshal.loads(_body(descriptor))
    return request


def read_clear(descriptor: int) -> ClearRequest:
    request: ClearRequest = marshal.loads(_body(descriptor))
    return request


def read_draft(file: int) -> DraftFile:
    """From a file that was written before it was sent."""
    draft: DraftFile = marshal.loads(os.pread(file, os.fstat(file).st_size, 0))
    return draft


def _body(descriptor: int) -> bytes:
    _, length = _HEAD.unpack(_read_exactly(descriptor, _HEAD.size))
    return _read_exactly(descriptor, length)


def _read_exactly(descriptor: int, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        piece = os.read(descriptor, count - len(parts))
        if not piece:
            raise EOFError
        parts += piece
    return bytes(parts)


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def file_with(name: str, content: bytes) -> int:
    """Return a file in memory, to be sent: for what is longer than a message, or than a pipe takes before a read."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create(name)
    else:
        import tempfile

        with tempfile.TemporaryFile() as unnamed:
            file = os.dup(unnamed.fileno())
    try:
        write_all(file, content)
        os.lseek(file, 0, os.SEEK_SET)
    except BaseException:
        os.close(file)
        raise
    return file


def say(descriptor: int, data: bytes) -> None:
    """Write to a caller that may be gone: then nobody listens, and everything is ended all the same."""
    try:
        write_all(descriptor, data)
    except OSError:
        pass


class Outbox:
    """Small frames for a caller that may read slowly: they wait here in order, and none is dropped. The sender bounds
    their number."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._waiting: list[bytes] = []

    def put(self, data: bytes) -> None:
        """A frame of at most PIPE_BUF bytes, which the kernel takes whole or not at all."""
        if len(data) > select.PIPE_BUF:
            raise ValueError(f"a frame of {len(data)} bytes")
        self._waiting.append(data)
        self.flush()

    def put_long(self, data: bytes) -> None:
        """A frame of any size, in pieces that the kernel takes whole."""
        self._waiting += (data[start : start + select.PIPE_BUF] for start in range(0, len(data), select.PIPE_BUF))
        self.flush()

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def flush(self) -> None:
        """What the pipe has room for now."""
        sent = 0
        while sent < len(self._waiting) and has_room(self._pipe):
            say(self._pipe, self._waiting[sent])
            sent += 1
        del self._waiting[:sent]

    def end(self, last: bytes) -> None:
        """Send everything that waits, and the last word; this waits for the caller."""
        say(self._pipe, b"".join(self._waiting) + last)
        self._waiting.clear()


def has_room(pipe: int) -> bool:
    """Whether a small frame can be written at once, and whole."""
    return _is_ready(pipe, select.POLLOUT)


def is_readable(descriptor: int, within_s: float = 0) -> bool:
    """Whether something can be read, if only the end; for a pidfd: whether the process has ended."""
    return _is_ready(descriptor, select.POLLIN, within_s)


def _is_ready(descriptor: int, event: int, within_s: float = 0) -> bool:
    poller = select.poll()
    poller.register(descriptor, event)
    return bool(poller.poll(within_s * 1000))


def frame(kind: bytes, body: bytes) -> bytes:
    return _HEAD.pack(kind, len(body)) + body


def started_frame(leader: int) -> bytes:
    return frame(STARTED, _STARTED.pack(leader))


def ready_frame(identity: int) -> bytes:
    return frame(READY, _STARTED.pack(identity))


def decode_ready(body: bytes) -> int:
    try:
        (identity,) = _STARTED.unpack(body)
    except StructError as error:
        raise Garbled(str(error)) from error
    if not 0 <= identity < 2**32:
        raise Garbled(f"id {identity}")
    return int(identity)


def failure(step: str, number: int, problem: str) -> bytes:
    return f"{step}\0{number}\0{problem}".encode("utf-8", "replace")[:4096]


def failed_frame(step: str, number: int, problem: str) -> bytes:
    return frame(FAILED, failure(step, number, problem))


def ended_frame(report: EndedFrame) -> bytes:
    fields: Mapping[str, object] = report
    return frame(ENDED, _REPORT.pack(*(fields[name] for name in REPORT_FIELDS)))


def decode_started(body: bytes) -> int:
    try:
        (leader,) = _STARTED.unpack(body)
    except StructError as error:
        raise Garbled(str(error)) from error
    if not 1 < leader < 2**31:
        raise Garbled(f"pid {leader}")
    return int(leader)


def decode_failed(body: bytes) -> tuple[str, int, str]:
    parts = body.decode("utf-8", "replace").split("\0", 2)
    if len(parts) != 3 or not (parts[1].isascii() and parts[1].isdigit() and len(parts[1]) < 10):
        raise Garbled("a set-up failure without its three parts")
    return parts[0], int(parts[1]), parts[2]


def decode_ended(body: bytes) -> EndedFrame:
    """Garbled if no leader can have written this."""
    try:
        report: dict[str, int] = dict(zip(REPORT_FIELDS, _REPORT.unpack(body), strict=True))
    except StructError as error:
        raise Garbled(str(error)) from error
    if min(report.values()) < -1 or not -1 <= report["wait_status"] <= 0xFFFF:
        raise Garbled("a report with numbers that nothing can measure")
    if not 0 <= report["cause"] < len(CAUSES):
        raise Garbled(f"cause {report['cause']}")
    return report  # type: ignore[return-value]  # a test compares the fields with its keys


class Frames:
    """Cuts the bytes that arrive into frames; keeps at most one unfinished frame."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        self._held += data
        frames = []
        while len(self._held) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._held)
            if length > MAX_FRAME_BYTES or kind not in _KINDS:
                raise Garbled(f"a frame {kind!r} of {length} bytes")
            if len(self._held) < _HEAD.size + length:
                break
            frames.append((kind, bytes(self._held[_HEAD.size : _HEAD.size + length])))
            del self._held[: _HEAD.size + length]
        return frames


def decode_json(body: bytes) -> Note:
    """A small object of plain values; Garbled for anything else."""
    import json

    try:
        value = json.loads(body, parse_constant=_no_number, parse_float=_finite, parse_int=_whole)
    except (ValueError, RecursionError) as error:
        raise Garbled("not JSON") from error
    if not isinstance(value, dict):
        raise Garbled("not an object")
    if not _is_shallow(value, _MOST_LEVELS):
        raise Garbled("an object of too many levels")
    return value


def wall_s(value: object) -> float | None:
    """The time that a recorder tells, which is a text of nanoseconds; None: it tells none."""
    is_told = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS
    return int(value) / 1e9 if is_told else None  # type: ignore[call-overload]


def _no_number(word: str) -> Never:
    raise ValueError(f"{word} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if value - value:  # not 0 of infinity
        raise ValueError("a number is too large")
    return value


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError("a number is too long")
    return int(text)


def _is_shallow(value: object, levels: int) -> bool:
    within = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_is_shallow(each, levels - 1) for each in within)
