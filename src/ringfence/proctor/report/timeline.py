"""The part of a report that tells what was tried, in the order of time: findings, and what the gateway decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ringfence.model.events import Event
from ringfence.model.host_text import with_port
from ringfence.model.limits import format_size
from ringfence.model.printed import clock
from ringfence.proctor.findings import Finding, decisions
from ringfence.proctor.report.markup import Child, Markup, element, inside
from ringfence.proctor.report.record import Panel, more_than, table, tag
from ringfence.proctor.severity import Severity

MOST_SHOWN = 500
"""Findings of one kind, and connections; all of them are in events.jsonl."""
_KINDS = {"masked_read": "read of a forbidden path", "masked_write": "write to a forbidden path",
          "blocked_connect": "blocked connection"}  # fmt: skip
_TONES = {"probe": "", "attempt": "warn", "breach": "bad", "allowed": "good", "refused": "bad", "ended": "warn"}
_WIDTH, _EDGE, _RAIL = 960, 12, 22
_WHERE = "events.jsonl has all of them"


def violations(findings: Sequence[Finding], began_s: float, ended_s: float, events: Sequence[Event]) -> Panel:
    """Return attempts and breaches one by one, and probes behind a fold."""
    grave = [finding for finding in findings if finding.severity is not Severity.PROBE]
    probes = [finding for finding in findings if finding.severity is Severity.PROBE]
    body = [_strip(findings, decisions(events), began_s, ended_s)]
    body += [_listed(grave, began_s)] if grave else [element("p", "Nothing forbidden was tried.", class_="good-note")]
    if probes:
        told = "looks and questions, as honest tools make them; they count for nothing"
        summary = element("summary", "Probes ", element("span", str(len(probes)), class_="count"),
                          element("span", told, class_="quiet"))  # fmt: skip
        body.append(element("details", summary, _listed(probes, began_s)))
    return Panel(place="violations", title="What was tried", body=inside(body), count=_counted(grave))


def connections(events: Sequence[Event], began_s: float) -> Panel | None:
    """Return what the gateway decided; None: it was never asked."""
    decided = decisions(events)
    if not decided:
        return None
    rows = [_connection(event, began_s) for event in decided[:MOST_SHOWN]]
    titles = ("Time", "Decision", "Host", "Sent", "Received", "By", "Rule or reason")
    body = inside(table(titles, rows), more_than(len(decided), MOST_SHOWN, _WHERE))
    return Panel(place="connections", title="Connections", body=body, count=str(len(decided)))


def _counted(grave: Sequence[Finding]) -> str:
    return f"{len(grave)} violations" if len(grave) != 1 else "1 violation"


def _listed(findings: Sequence[Finding], began_s: float) -> Markup:
    rows = [_finding(finding, began_s) for finding in findings[:MOST_SHOWN]]
    return inside(element("ol", rows, class_="timeline"), more_than(len(findings), MOST_SHOWN, _WHERE))


def _finding(finding: Finding, began_s: float) -> Markup:
    severity = str(finding.severity)
    who = f"{finding.process or 'process'} (pid {finding.pid})" if finding.pid else ""
    by = " · ".join(filter(None, (finding.syscall, finding.result, who, " ".join(finding.argv))))
    return element(
        "li",
        element("span", _moment(finding.time_s, began_s), class_="moment"),
        element("span", tag(severity, _TONES[severity]), _KINDS.get(finding.kind, finding.kind), class_="what"),
        element("code", finding.target, class_="target"),
        element("span", by, class_="quiet"),
        class_=f"{finding.kind} {severity}" if finding.kind in _KINDS else severity,
    )


def _connection(event: Event, began_s: float) -> tuple[Child, ...]:
    row = event.details
    decision = str(row.get("decision"))
    host, port = str(row.get("name") or row.get("address", "")), row.get("port")
    place = element("code", with_port(host, port) if isinstance(port, int) and port else host)
    return (_tight(_moment(event.time_s, began_s)), tag(decision, _TONES.get(decision, "")),
            [place, " ", element("span", str(row.get("protocol", "")), class_="quiet")],
            _size(row, "bytes_out"), _size(row, "bytes_in"),
            str(row.get("process", "")), str(row.get("reason") or row.get("rule") or ""))  # fmt: skip


def _size(row: Mapping[str, object], name: str) -> Markup:
    count = row.get(name)
    return _tight(format_size(count) if isinstance(count, int) and count else "")


def _tight(text: str) -> Markup:
    return element("span", text, class_="tight")


def _moment(time_s: float, began_s: float) -> str:
    passed = max(0.0, time_s - began_s)
    return f"{passed:.2f} s" if passed < 60 else clock(passed)


def _strip(findings: Sequence[Finding], decided: Sequence[Event], began_s: float, ended_s: float) -> Markup:
    """Return when all of it happened, on one line; nothing where nothing did."""
    marks = [(finding.time_s, str(finding.severity)) for finding in findings[:MOST_SHOWN]]
    marks += [(event.time_s, str(event.details.get("decision"))) for event in decided[:MOST_SHOWN]]
    whole_s = ended_s - began_s
    if not marks or whole_s <= 0:
        return Markup()
    dots = [_mark(min(max((time_s - began_s) / whole_s, 0.0), 1.0), name) for time_s, name in sorted(marks)]
    rail = Markup(f'<line class="rail" x1="{_EDGE}" x2="{_WIDTH - _EDGE}" y1="{_RAIL}" y2="{_RAIL}"/>')
    last = element("text", _moment(ended_s, began_s), x=str(_WIDTH - _EDGE), y="48", text_anchor="end")
    ends = inside(element("text", "0", x=str(_EDGE), y="48"), last)
    drawn = element("svg", rail, dots, ends, viewBox=f"0 0 {_WIDTH} 54", role="img", aria_label="When it happened")
    names = dict.fromkeys(name for _, name in sorted(marks))
    items = [element("li", name, class_=name if name in _TONES else "") for name in names]
    legend = element("ul", items, class_="legend")
    return element("div", drawn, legend, class_="strip")


def _mark(share: float, name: str) -> Markup:
    x = _EDGE + share * (_WIDTH - 2 * _EDGE)
    radius = 4 if name in (Severity.PROBE, "allowed") else 6
    return Markup(f'<circle class="{name if name in _TONES else "other"}" cx="{x:.1f}" cy="{_RAIL}" r="{radius}"/>')
