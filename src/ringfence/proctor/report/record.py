"""The part of a report that shows the signed facts: the verdict, what was enforced and by what, what phases used.

Owns ``Facts`` (the bundle as the page reads it) and ``Panel`` (one part of the page). It reads a bundle of our own
making. A missing member is left out: a report must not fail where a verdict exists.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from ringfence.kernel.recorder import printable
from ringfence.model.limits import format_size
from ringfence.model.printed import clock, counted, harmless
from ringfence.model.record import record
from ringfence.monitor import usage_svg
from ringfence.monitor.usage_curves import clock_of
from ringfence.monitor.usage_log import RecordedRun
from ringfence.proctor.findings import Finding, counts
from ringfence.proctor.report.markup import Child, Markup, element, inside

_LONGEST_COMMAND = 100
_SHAPES = {
    "ok": "M20 34 L29 43 L46 22",
    "plain": "M22 22 L42 42 M42 22 L22 42",
    "failed": "M32 16 v22 M32 46 v1",
}


@record
class Panel:
    """One part of the page, which its head links to."""

    place: str
    title: str
    body: Markup
    count: str = ""

    def markup(self) -> Markup:
        """Return it as a section."""
        count = element("span", self.count, class_="count") if self.count else ""
        return element("section", element("h2", self.title, count), self.body, class_="panel", id=self.place)


@record
class Facts:
    """What a bundle says, as far as the page shows it."""

    verdict: Mapping[str, object]
    run: Mapping[str, object]
    environment: Mapping[str, object]
    reason: str = ""
    forged: str = ""

    @classmethod
    def of(cls, bundle: Mapping[str, object], *, reason: str, forged: str) -> Facts:
        """Read a bundle of our own making."""
        text = mapping(bundle.get("contents")).get("run.json")
        run = json.loads(text) if isinstance(text, str) else {}
        return cls(verdict=mapping(bundle.get("verdict")), run=mapping(run), reason=reason, forged=forged,
                   environment=mapping(bundle.get("environment")))  # fmt: skip

    @property
    def task_id(self) -> str:
        return str(self.verdict.get("task_id", ""))

    @property
    def clean(self) -> bool:
        return self.verdict.get("status") == "clean"

    @property
    def passed(self) -> bool:
        return self.verdict.get("pass") is True

    @property
    def began_s(self) -> float:
        return _epoch(self.run.get("started_at"))

    @property
    def ended_s(self) -> float:
        return _epoch(self.run.get("ended_at"))

    def rows(self, name: str) -> list[Mapping[str, object]]:
        """The entries of a list of run.json."""
        found = self.run.get(name)
        return [mapping(row) for row in found] if isinstance(found, list) else []


def mapping(value: object) -> Mapping[str, object]:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def table(titles: Sequence[str], rows: Sequence[Sequence[Child]]) -> Markup:
    """Return rows under titles; a wide table can be scrolled sideways."""
    head = element("thead", element("tr", [element("th", title) for title in titles]))
    body = element("tbody", [element("tr", [element("td", cell) for cell in row]) for row in rows])
    return element("div", element("table", head, body), class_="scroll")


def tag(text: str, tone: str = "") -> Markup:
    """Return a word with a background of its own."""
    return element("span", text, class_=f"tag {tone}".strip())


def masthead(facts: Facts) -> Markup:
    """Return the head of the page: which task, whose agent, when."""
    when = str(facts.run.get("started_at", "")).replace("T", " ").partition(".")[0].removesuffix("Z")
    command = harmless(printable(str(facts.environment.get("agent_command", ""))), _LONGEST_COMMAND)
    about = (command, f"{when} UTC" if when else "", _host(facts))
    title = element("div", element("p", "Proctored run", class_="eyebrow"), element("h1", facts.task_id),
                    element("p", " · ".join(filter(None, about)), class_="quiet"))  # fmt: skip
    seal = element("a", "Bundle not checked yet", class_="seal", id="seal", href="#verification")
    return element("header", title, seal, class_="masthead")


def verdict(facts: Facts, findings: Sequence[Finding]) -> Markup:
    """Return what was decided, in a few words that stand by themselves."""
    tone, title, text = _headline(facts)
    told = [element("p", text)]
    told += [element("p", facts.forged or facts.reason, class_="reason")] if facts.forged or facts.reason else []
    words = element("div", element("h2", title), told)
    figures = element("div", [_figure(name, value) for name, value in _figures(facts, findings)], class_="figures")
    return element("section", _icon(tone), words, figures, class_=f"banner {tone}")


def _headline(facts: Facts) -> tuple[str, str, str]:
    """Tone, title and one sentence."""
    if "pass" not in facts.verdict:
        return ("plain" if facts.clean else "failed", "Clean" if facts.clean else "Compromised",
                "Nobody graded this run.")  # fmt: skip
    if facts.forged:
        return "failed", "Forged grading", "The submission contradicted itself. It did not pass, and its score is 0."
    if facts.clean and facts.passed:
        return "ok", "Passed, clean", "The grader passed it, and nothing forbidden was tried."
    if facts.clean:
        return "plain", "Did not pass, clean", "The grader did not pass it. Nothing forbidden was tried."
    told = "The grader passed it" if facts.passed else "The grader did not pass it"
    return "failed", "Compromised", f"{told}, and something forbidden was tried or done: its score is 0."


def _figures(facts: Facts, findings: Sequence[Finding]) -> list[tuple[str, str]]:
    found = counts(findings)
    score = facts.verdict.get("reward", float(facts.passed)) if facts.clean and not facts.forged else 0
    figures = [("score", f"{score:g}" if isinstance(score, int | float) else "")] if "pass" in facts.verdict else []
    grave = int(str(facts.verdict.get("violations_count", 0)))
    more = [("breaches", str(found["breach"]))] if found["breach"] else []
    return [*figures, ("violations", str(grave)), *more, ("probes", str(found["probe"]))]


def _figure(name: str, value: str) -> Markup:
    return element("p", element("strong", value), name)


def _icon(tone: str) -> Markup:
    shape = Markup(f'<circle cx="32" cy="32" r="29"/><path d="{_SHAPES[tone]}"/>')
    return element("svg", shape, viewBox="0 0 64 64", class_="icon", aria_hidden="true")


def enforcement(facts: Facts) -> Panel | None:
    """Return what was asked for, whether it was applied, and by what."""
    rows = facts.rows("enforcement")
    if not rows:
        return None
    asked = [row for row in rows if row.get("requested")]
    held = sum(row.get("applied") is True for row in asked)
    cells = [(str(row.get("protection")), _applied(row), str(row.get("mechanism", "")), str(row.get("detail", "")))
             for row in rows]  # fmt: skip
    body = inside(table(("Protection", "State", "Held by", "Detail"), cells), _recorder(facts))
    return Panel(place="enforced", title="What was enforced", body=body, count=f"{held} of {len(asked)} applied")


def _applied(row: Mapping[str, object]) -> Markup:
    if not row.get("requested"):
        return tag("applied, not asked for" if row.get("applied") else "not asked for")
    return tag("applied", "good") if row.get("applied") else tag("NOT applied", "bad")


def _recorder(facts: Facts) -> Markup:
    recorder = mapping(facts.run.get("recorder"))
    healthy = recorder.get("healthy") is True and not recorder.get("dropped")
    events = counted(int(str(recorder.get("events_count", 0))), "event")
    told = [events, str(recorder.get("problem", "")), str(recorder.get("mechanism", ""))]
    state = tag("healthy", "good") if healthy else tag("not healthy", "bad")
    return element("p", "Recorder ", state, " ", ", ".join(filter(None, told)), class_="quiet")


def phases(facts: Facts, usage: Sequence[RecordedRun]) -> Panel | None:
    """Return each phase with how it ended and what it used, and the curves of those that were measured."""
    rows = facts.rows("phases")
    if not rows:
        return None
    curves = [element("div", _curves(run), class_="usage") for run in usage if run.samples]
    shown = table(("Phase", "Status", "Exit", "Time", "Processor", "Peak memory", "Processes"), list(map(_phase, rows)))
    return Panel(place="usage", title="Phases and usage", body=inside(shown, curves), count=str(len(rows)))


def _curves(run: RecordedRun) -> Markup:
    phase = run.about.get("phase")
    heading = f"{phase}, {clock_of(run)}" if isinstance(phase, str) else ""
    return Markup(usage_svg.picture(run, harmless(printable(heading), _LONGEST_COMMAND)))


def _phase(row: Mapping[str, object]) -> tuple[Child, ...]:
    usage, limit = mapping(row.get("usage")), row.get("wall_limit_ms")
    code = row.get("exit_code")
    ended = f"signal {row.get('signal')}" if code is None and row.get("signal") is not None else str(code)
    time = f"{_seconds(row.get('wall_ms'))}{f' of {_seconds(limit)}' if limit is not None else ''}"
    return (str(row.get("name")), str(row.get("status")), "" if ended == "None" else ended,
            [time, " ", tag("timed out", "bad") if row.get("timed_out") else ""],
            _seconds(usage.get("cpu_ms")), _size(usage.get("peak_memory_bytes")),
            str(usage.get("processes", "")))  # fmt: skip


def _seconds(milliseconds: object) -> str:
    if not isinstance(milliseconds, int):
        return ""
    return f"{milliseconds / 1000:.1f} s" if milliseconds < 60_000 else clock(milliseconds / 1000)


def _size(count: object) -> str:
    return format_size(count) if isinstance(count, int) else ""


def _host(facts: Facts) -> str:
    host = mapping(facts.run.get("host"))
    return " ".join(str(host[name]) for name in ("system", "kernel", "machine") if name in host)


def _epoch(text: object) -> float:
    """Seconds since the epoch of a time as formats.md writes it; 0.0: it is not a time."""
    try:
        return datetime.fromisoformat(str(text).removesuffix("Z")).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


def more_than(count: int, shown: int, where: str) -> Markup:
    """Return where to find what the page leaves out; nothing where it leaves nothing out."""
    return element("p", f"{count - shown} more: {where}", class_="quiet") if count > shown else Markup()
