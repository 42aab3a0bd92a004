"""``AuditLog``: what an agent did, as a hash chain of JSON lines, and ``verify_audit``.

Owns the records and their format; the chain itself belongs to the evidence package. The file is locked only while a
line is written, so several agents, threads and processes can share one; a line is on disk before ``append`` returns. A
chain shows that something was changed, but not that its end was cut off: keep the head elsewhere to notice that.
"""

from __future__ import annotations

import os
import stat
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, BinaryIO

from ringfence.errors import EvidenceError
from ringfence.evidence import chain
from ringfence.evidence.chainfile import START, ChainWriter
from ringfence.evidence.strictjson import decode
from ringfence.integrations.deep_agent.redaction import Redactor
from ringfence.model.own_files import make_private
from ringfence.model.record import record
from ringfence.model.ways.walk import absolute

FORMAT = "ringfence.audit/1"
_WAIT_S = 30.0


@record
class AuditSummary:
    """A log that holds together."""

    head: str
    count: int
    events: Mapping[str, int]
    """How often each kind of event is in it."""


class AuditLog:
    """Writes one file. ``redact``: what may be written of parameters and messages."""

    def __init__(self, path: str | os.PathLike[str], *, redact: Redactor | None = None) -> None:
        self.path = absolute(os.fspath(path))
        self.redact = redact or Redactor()
        self.head = chain.GENESIS
        """After the last record that was written here; keep it elsewhere to prove the log's length."""
        self._known = START
        self._lock = threading.Lock()

    def append(self, session: str, event: str, **members: Any) -> str:
        """Write one record; returns when it is on disk. EvidenceError where it can't be, or the file was changed."""
        entry = {"format": FORMAT, "time": _now(), "session": session, "event": event, "pid": os.getpid(), **members}
        _make_folder(os.path.dirname(self.path))
        with self._lock, ChainWriter(self.path, wait_s=_WAIT_S, known=self._known) as writer:
            self.head = writer.append(entry)
            self._known = writer.position
        return self.head


def _make_folder(path: str) -> None:
    try:
        make_private(path)
    except OSError as error:
        raise EvidenceError(f"cannot make the log's directory {path!r}: {error.strerror}") from error


def verify_audit(path: str | os.PathLike[str], *, head: str = "") -> AuditSummary:
    """Recompute the whole chain; EvidenceError names the first line that was changed, removed or inserted.

    ``head``: one that was noted elsewhere, at any time: it must still be there. Without it a log whose end was cut off
    looks whole.
    """
    events: Counter[str] = Counter()
    heads = {chain.GENESIS}
    try:
        with open(path, "rb", opener=_without_waiting) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise EvidenceError(f"the log {os.fspath(path)!r} is not a regular file")
            found = chain.check(_records(stream, events, heads))
    except OSError as error:
        raise EvidenceError(f"cannot read the log {os.fspath(path)!r}: {error.strerror}") from error
    if head and head not in heads:
        raise EvidenceError(f"the record with the noted head {head} is gone", hint="the end of the log was cut off")
    return AuditSummary(head=found.head, count=found.count, events=dict(events))


def _without_waiting(path: str, flags: int) -> int:
    """Open without blocking: a pipe in its place would block for ever."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _records(stream: BinaryIO, events: Counter[str], heads: set[str]) -> Iterator[object]:
    for number, line in enumerate(chain.complete_lines(stream), start=1):
        try:
            entry = decode(line)
        except EvidenceError as error:
            raise EvidenceError(f"record {number}: {error}") from error
        if not isinstance(entry, dict) or entry.get("format") != FORMAT:
            raise EvidenceError(f"record {number} is not an audit record")
        yield entry
        events[str(entry.get("event"))] += 1
        heads.add(str(entry["chain"]))  # the caller of this generator has already checked it


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
