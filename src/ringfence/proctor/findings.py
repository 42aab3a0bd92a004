"""Turns the events of a run into findings with a severity, and picks the violations among them.

Owns the reading of VIOLATION and EGRESS events and the form of a violation (docs/reference/formats.md, section 3).
How grave a call is stands in ``severity``. What an event says was chosen by the guest: it is compared
and quoted, never followed.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from posixpath import basename, normpath
from typing import TYPE_CHECKING, Protocol

from ringfence.kernel.proc import first_files
from ringfence.kernel.recorder import HIDDEN, NOTED, OUTWARD, PROCESS, printable
from ringfence.model.events import Event, EventKind
from ringfence.model.host_text import with_port
from ringfence.model.outcome import Mechanism
from ringfence.model.paths import within
from ringfence.model.record import record, replace
from ringfence.proctor import severity
from ringfence.proctor.severity import ATTEMPT, BLOCKED_CONNECT, BREACH, MASKED_READ, MASKED_WRITE, PROBE, Severity

if TYPE_CHECKING:
    from ringfence.egress.rules import RuleSet
    from ringfence.model.network_rule import NetworkRule
    from ringfence.model.outcome import Outcome

UNNAMED = "unnamed"
"""Takes the place of a system call's name where more was tried than the recorder could name."""
_ADDRESSES = ("connect", "sendto", "sendmsg", "sendmmsg")
# Under tripwires one call may be seen twice: a look-up of the name, then its creation.
_FIRST_HALF = "lookup"
_Process = tuple[object, object]
"""Number and start: a process for good."""


class Rules(Protocol):
    """What of a task's policy matters here."""

    @property
    def network(self) -> tuple[NetworkRule, ...]: ...
    @property
    def mount_at(self) -> str: ...


@record
class Finding:
    """One thing that somebody in the sandbox tried, or did."""

    severity: Severity
    kind: str
    """``masked_read``, ``masked_write`` or ``blocked_connect``."""
    time_s: float
    """Seconds since the epoch."""
    pid: int = 0
    """As the sandbox knows it; 0: not known."""
    process: str = ""
    """Its name, which it chose itself."""
    argv: tuple[str, ...] = ()
    syscall: str = ""
    result: str = ""
    """What it got: the name of an errno, or why it was refused."""
    path: str = ""
    """As far as the kernel resolved it; the part below a forbidden path is only what the caller said."""
    host: str = ""

    @property
    def target(self) -> str:
        """What it was about, for people."""
        return self.path or self.host or self.syscall


def findings_of(
    events: Iterable[Event], policy: Rules, forbidden_written: Sequence[str] = ()
) -> tuple[Finding, ...]:
    """Return the findings of one phase's events, in order; what honest tools do leaves none.

    ``forbidden_written``: forbidden paths that the agent's layer has changes at.
    """
    all_of_them = list(events)
    decided = (event.details for event in decisions(all_of_them))
    reader = _Reader(policy, decided={(_text(row, "address"), _number(row, "port")) for row in decided},
                     walkers={_process(event.details) for event in all_of_them if _is_walk(event.details)})  # fmt: skip
    found = [finding for event in all_of_them if (finding := reader.read(event)) is not None]
    last_s = max((event.time_s for event in all_of_them), default=0.0)
    return (*found, *(_breach(path, last_s) for path in dict.fromkeys(forbidden_written)))


def gaps_of(outcome: Outcome) -> tuple[Finding, ...]:
    """Return an attempt for what the recorder could not name: flooding it does not make a run clean."""
    summary = outcome.recorder.get("summary")
    rows = [row for row in summary if isinstance(row, Mapping)] if isinstance(summary, list | tuple) else []
    unnamed = [row for row in rows if not row.get("named")]
    path = next((_text(row, "path") for row in unnamed if row.get("aim") == HIDDEN), "")
    outward = 0 if _has_gateway(outcome) else sum(_number(row, "count") for row in unnamed if row.get("aim") == OUTWARD)
    asked = [row for row in rows if row.get("named") and _may_be_grave(row)]
    summarised = ((MASKED_READ, _text(row, "path"), _number(row, "count")) for row in asked)
    found = ((MASKED_READ, path, outcome.unrecorded), (BLOCKED_CONNECT, "", outward), *summarised)
    last_s = outcome.events[-1].time_s if outcome.events else 0.0
    return tuple(Finding(severity=ATTEMPT, kind=kind, time_s=last_s, syscall=UNNAMED, path=path,
                         result=f"{count} more than the recorder could name")
                 for kind, path, count in found if count)  # fmt: skip


def _may_be_grave(row: Mapping[str, object]) -> bool:
    """Whether an event that was only counted may have been an attempt. A count of look-ups names no calls."""
    operation = _text(row, "operation")
    if row.get("aim") == PROCESS:
        grade = severity.of_pid_1(_text(row, "path"), writes=False, walks=operation == first_files.WALK)
        return grade.severity is not PROBE
    if row.get("aim") != HIDDEN:
        return False
    return operation == _FIRST_HALF or severity.on_forbidden(operation, writes=False).severity is not PROBE


def _has_gateway(outcome: Outcome) -> bool:
    """Whether the gateway reports every connection."""
    network = outcome.enforced.get("network")
    return network is not None and Mechanism.GATEWAY in network.by


def violations_of(findings: Iterable[Finding]) -> list[dict[str, object]]:
    """Return the attempts and breaches in the form of docs/reference/formats.md; ``make_bundle`` adds the chain."""
    grave = (finding for finding in findings if finding.severity is not PROBE)
    return [_violation(step, finding) for step, finding in enumerate(grave, start=1)]


def decisions(events: Iterable[Event]) -> list[Event]:
    """Return the events that tell what the gateway decided."""
    return [event for event in events if event.details.get("decision")]


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """Return how many there are of each severity.

    >>> counts([])
    {'probe': 0, 'attempt': 0, 'breach': 0}
    """
    counted = Counter(finding.severity for finding in findings)
    return {str(each): counted[each] for each in Severity}


def _violation(step: int, finding: Finding) -> dict[str, object]:
    named = {"path": finding.path, "host": finding.host}
    optional = {name: printable(text) for name, text in named.items() if text}
    return {"step": step, "kind": finding.kind, **optional, "pid": finding.pid, "syscall": finding.syscall}


def _breach(path: str, time_s: float) -> Finding:
    return Finding(severity=BREACH, kind=MASKED_WRITE, time_s=time_s, syscall="write", path=printable(path),
                   result="changed in the workspace's layer")  # fmt: skip


class Follower:
    """Findings one by one, while a phase goes on, for display. What counts in the end is ``findings_of``."""

    def __init__(self, policy: Rules) -> None:
        self._reader = _Reader(policy, decided=None if policy.network else frozenset())

    def take(self, event: Event) -> Finding | None:
        """Return the finding of one event; None: there is none, or none before the gateway has decided."""
        return self._reader.read(event)


class _Reader:
    """What is listed for a phase, and how far its events have been read."""

    def __init__(
        self, policy: Rules, decided: Collection[tuple[str, int]] | None, walkers: Collection[_Process] = ()
    ) -> None:
        """``decided``: addresses that the gateway has decided about. Its word counts, not the call's result; None: it
        will decide about everything. ``walkers``: processes that read whatever they find."""
        self._walkers = walkers
        self._workspace = policy.mount_at
        self._network = policy.network
        self._rules: RuleSet | None = None
        self._decided = decided
        self._before: tuple[object, ...] | None = None

    def read(self, event: Event) -> Finding | None:
        """Return at most one finding: the first row of the table that knows the event decides."""
        if event.kind not in (EventKind.VIOLATION, EventKind.EGRESS) or self._is_second_half(event.details):
            return None
        for knows, make in _SOURCES:
            if knows(event.details):
                return make(self, event)
        return None

    def _is_second_half(self, row: Mapping[str, object]) -> bool:
        """Whether the call of this record has a finding already: the look-up of the name, before its creation."""
        before, is_first = self._before, row.get("operation") == _FIRST_HALF
        call = tuple(row.get(name) for name in ("pid", "start_ticks", "syscall", "path", "asked"))
        self._before = call if is_first else None
        return before == call and not is_first and row.get("aim") == HIDDEN

    def of_gateway(self, event: Event) -> Finding | None:
        """Something that the gateway decided."""
        details = event.details
        host, port = _text(details, "name") or _text(details, "address"), _number(details, "port")
        if details.get("decision") != "refused":
            return None
        grave = PROBE if self._is_no_attempt(details, host, port) else ATTEMPT
        process, pid = _asker(_text(details, "process"))
        return Finding(severity=grave, kind=BLOCKED_CONNECT, time_s=event.time_s, pid=pid, process=process,
                       syscall="connect", host=with_port(host, port), result=_text(details, "reason"))  # fmt: skip

    def _is_no_attempt(self, details: Mapping[str, object], host: str, port: int) -> bool:
        """A question for a name, a service of the sandbox's own, or a listed host that a limit kept away."""
        if details.get("protocol") == "dns" or severity.outward(host, port) is not ATTEMPT:
            return True
        return not details.get("rule") and self._is_listed(host, port)

    def of_address(self, event: Event) -> Finding | None:
        """A call that names an address: it went on and can't have got anywhere, or was refused."""
        place = severity.endpoint(_text(event.details, "path"))
        if place is None or self._is_decided(place) or self._is_listed(*place):
            return None
        grave = severity.outward(*place)
        if grave is None:
            return None
        finding = _of_call(event, severity.Grade(severity=grave, kind=BLOCKED_CONNECT))
        result = finding.result or "nothing outside can be reached"
        return replace(finding, host=with_port(*place), result=result)

    def _is_listed(self, host: str, port: int) -> bool:
        """Loads what decides only for a phase that has a network."""
        if self._rules is None and self._network:
            from ringfence.egress.rules import RuleSet

            self._rules = RuleSet.of(self._network)
        return self._rules is not None and self._rules.decide(host, port).allowed

    def _is_decided(self, place: tuple[str, int]) -> bool:
        return self._decided is None or place in self._decided

    def of_forbidden(self, event: Event) -> Finding | None:
        """A call that named a forbidden path."""
        details = event.details
        path, asked, call = (_text(details, name) for name in ("path", "asked", "syscall"))
        writes = details.get("writes") is True
        grade = severity.on_forbidden(call, writes=writes)
        if within(path, self._workspace) and severity.is_question_of_git(call, basename(asked), writes=writes):
            grade = severity.PROBED
        return replace(_of_call(event, grade), path=_named(path, asked))

    def of_pid_1(self, event: Event) -> Finding | None:
        """A file of the sandbox's first process that somebody opened."""
        details = event.details
        walks = details.get("operation") == first_files.WALK or _process(details) in self._walkers
        path = _text(details, "path")
        grade = severity.of_pid_1(path, writes=details.get("writes") is True, walks=walks)
        return replace(_of_call(event, grade), path=path)

    def of_refusal(self, event: Event) -> Finding | None:
        """A call that no job may make."""
        call = _text(event.details, "syscall") or _text(event.details, "operation")
        return replace(_of_call(event, severity.refused(call)), syscall=call)


_Knows = Callable[[Mapping[str, object]], bool]
_Make = Callable[[_Reader, Event], Finding | None]
_SOURCES: tuple[tuple[_Knows, _Make], ...] = (
    (lambda row: bool(row.get("decision")), _Reader.of_gateway),
    (lambda row: row.get("aim") == HIDDEN, _Reader.of_forbidden),
    (lambda row: row.get("aim") == PROCESS, _Reader.of_pid_1),
    (lambda row: row.get("operation") in _ADDRESSES and bool(row.get("path")), _Reader.of_address),
    (lambda row: row.get("aim") not in (NOTED, OUTWARD) and "operation" in row, _Reader.of_refusal),
)


def _is_walk(row: Mapping[str, object]) -> bool:
    """Whether its process just walks: it asks for a file that nobody asks for on purpose. For an unknown process that
    says nothing."""
    return row.get("aim") == PROCESS and row.get("path") == first_files.AREAS and _number(row, "pid") > 0


def _process(row: Mapping[str, object]) -> _Process:
    return row.get("pid"), row.get("start_ticks")


def _of_call(event: Event, grade: severity.Grade) -> Finding:
    details = event.details
    argv = details.get("argv")
    return Finding(severity=grade.severity, kind=grade.kind, time_s=event.time_s, pid=_number(details, "pid"),
                   process=_text(details, "comm"), argv=tuple(map(str, argv)) if isinstance(argv, list | tuple) else (),
                   syscall=_text(details, "syscall"), result=_errno(details))  # fmt: skip


def _named(path: str, asked: str) -> str:
    """Return what was asked for below a forbidden path; the path itself where that can't be told.

    >>> _named("/oracle", "/proc/self/root/oracle/./x"), _named("/oracle", "link")
    ('/oracle/x', '/oracle')
    """
    parts = asked.split("/")
    name = basename(path)
    if name not in parts:
        return path
    below = parts[parts.index(name) + 1 :]
    return path if ".." in below else normpath("/".join((path, *below)))


def _asker(text: str) -> tuple[str, int]:
    """Name and number of a process as the gateway's events have them: ``curl (pid 12)``."""
    name, _, rest = text.rpartition(" (pid ")
    number = rest.removesuffix(")")
    return (name, int(number)) if number.isascii() and number.isdigit() else (text, 0)


def _errno(details: Mapping[str, object]) -> str:
    """Its name; empty: it is not known what the call got."""
    code = _number(details, "errno")
    return errno.errorcode.get(code, os.strerror(code)) if code > 0 else ""


def _text(details: Mapping[str, object], name: str) -> str:
    value = details.get(name)
    return value if isinstance(value, str) else ""


def _number(details: Mapping[str, object], name: str) -> int:
    value = details.get(name)
    return value if isinstance(value, int) else 0
