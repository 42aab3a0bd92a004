"""Attempts on forbidden things as violation records (docs/reference/formats.md, section 3).

Owns: which events of a run that nobody graded are violations: each attempt on a hidden path, each connection that the
gateway or the filter refused. It grades none of them. Look-ups of names are not violations, nor are calls that fail
because there is no network: nobody refuses them, and a flood of harmless ones could keep others out of the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ringfence.attest.plain import Plain
from ringfence.kernel.recorder import HIDDEN
from ringfence.model.events import Event, EventKind
from ringfence.model.outcome import Outcome

_CONNECTS = ("connect", "sendto")
_DNS = "dns"
Record = dict[str, object]


def violations(outcome: Outcome) -> list[Record]:
    """In the order of the events, numbered; without their chain, which make_bundle fills in."""
    found = [record for event in outcome.events for record in _of_event(event)]
    return [{"step": number, **record} for number, record in enumerate((*found, *unnamed(outcome)), start=1)]


def _of_event(event: Event) -> Iterator[Record]:
    details = event.details
    if event.kind is EventKind.VIOLATION and details.get("aim") == HIDDEN:
        kind = "masked_write" if details.get("writes") else "masked_read"
        yield _record(kind, details, path=str(details.get("path", "")))
    elif event.kind is EventKind.VIOLATION and details.get("operation") in _CONNECTS:
        yield _record("blocked_connect", details, host=str(details.get("path", "")))
    elif event.kind is EventKind.EGRESS and details.get("decision") == "refused" and details.get("protocol") != _DNS:
        where = f"{details.get('name') or details.get('address')}:{details.get('port')}"
        yield _record("blocked_connect", {"syscall": "connect"}, host=where)


def unnamed(outcome: Outcome) -> Iterator[Record]:
    """Attempts that there was no room to list, by the hidden path that they are at or below."""
    rows = outcome.recorder.get("summary", ())
    for row in rows if isinstance(rows, list | tuple) else ():
        if isinstance(row, Mapping) and row.get("aim") == HIDDEN and not row.get("named"):
            yield _record("masked_read", {"syscall": row.get("operation", "")}, path=str(row.get("path", "")))


def _record(kind: str, details: Mapping[str, object], **where: str) -> Record:
    pid = details.get("pid")
    plain = Plain()
    return {
        "kind": kind,
        "pid": pid if type(pid) is int and pid > 0 else 0,
        "syscall": plain.text(str(details.get("syscall") or details.get("operation") or "")),
        **{name: plain.text(text) for name, text in where.items()},
    }
