"""events.jsonl: every event of a run as one line of a chain (docs/reference/formats.md, section 4).

Owns: what a line says, the same for what the recorder saw, what the gateway decided and what the engine did. A line
that can't be written is an EvidenceError: there is no evidence without its log.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from ringfence.attest.plain import Plain
from ringfence.errors import EvidenceError
from ringfence.evidence.chainfile import ChainWriter
from ringfence.evidence.schema import format_time
from ringfence.model.events import Event, EventKind
from ringfence.model.own_files import NEW_FLAGS

_OWN_MEMBERS = ("argv", "pid", "comm", "process")
"""Of the details: they have a place of their own in each line."""


def write_events(path: str, events: Iterable[Event]) -> tuple[int, str]:
    """Write a new chain of all events and return how many there are, and its head. It is on the disk when this
    returns."""
    try:
        os.close(os.open(path, NEW_FLAGS, 0o600))
    except OSError as error:
        raise EvidenceError(f"cannot write the events to {path!r}: {error.strerror}") from error
    with ChainWriter(path, fsync_every_records=0) as chain:
        for event in events:
            chain.append(as_record(event))
        return chain.count, chain.head


def as_record(event: Event) -> dict[str, object]:
    """One line, without its chain. Texts in it may be of the guest's choice: bounded, and printable."""
    plain = Plain()
    details = event.details
    argv = details.get("argv")
    pid = details.get("pid")
    return {
        "kind": str(event.kind),
        "run_id": plain.text(event.run_id),
        "time": _time(event.time_s),
        "pid": pid if type(pid) is int and pid > 0 else 0,
        "process": plain.text(str(details.get("comm") or details.get("process") or "")),
        "argv": plain.of(argv) if isinstance(argv, list | tuple) else [],
        "result": plain.text(_RESULTS[event.kind](details)),
        "details": plain.of({name: value for name, value in details.items() if name not in _OWN_MEMBERS}),
    }


def moment(time_s: float) -> datetime:
    """The time of an event; an invalid one is an EvidenceError, since nobody can tell when it happened."""
    try:
        return datetime.fromtimestamp(time_s, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise EvidenceError(f"{time_s!r} is not an event time") from error


def _time(time_s: float) -> str:
    return format_time(moment(time_s))


def _refusal(details: Mapping[str, object]) -> str:
    """The errno that the caller got, by name; for calls that went on the recorder does not know it."""
    number = details.get("errno")
    if isinstance(number, int) and number > 0:
        return errno.errorcode.get(number, f"errno {number}")
    return "not known"


def _decision(details: Mapping[str, object]) -> str:
    """The gateway's decision; a call that the recorder only noted went on."""
    return str(details.get("decision") or "went on")


_RESULTS: dict[EventKind, Callable[[Mapping[str, object]], str]] = {
    EventKind.START: lambda details: "started",
    EventKind.VIOLATION: _refusal,
    EventKind.EGRESS: _decision,
    EventKind.LIMIT: lambda details: str(details.get("capability", "")),
    EventKind.EXIT: lambda details: str(details.get("status", "")),
}
