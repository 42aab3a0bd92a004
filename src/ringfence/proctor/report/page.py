"""``report.html``: one page about a run that a person can read, and that checks the run's own bundle.

Owns what the page is made of. It needs no network and no other file, and its policy allows none. Everything in it is
text (``markup``): what a sandbox printed or named can't become markup of the page. It does not run, judge or sign
anything, and writes no files.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

from ringfence import __version__
from ringfence.evidence import page as verifier
from ringfence.evidence.bundle import encode_bundle
from ringfence.model.events import Event
from ringfence.model.record import record
from ringfence.monitor.usage_log import RecordedRun
from ringfence.proctor.findings import Finding
from ringfence.proctor.report import record as report_record
from ringfence.proctor.report import texts as report_texts
from ringfence.proctor.report import timeline as report_timeline
from ringfence.proctor.report.markup import Markup, element, inside, words
from ringfence.proctor.report.record import Facts
from ringfence.proctor.report.texts import Log


@record
class ReportData:
    """What a page is made of. Only the bundle is required; an empty part is left out, or shown as empty."""

    bundle: Mapping[str, object]
    """As ``make_bundle`` gave it: the page carries these very bytes, and takes the signed facts from them."""
    findings: Sequence[Finding] = ()
    """Of all phases, in the order of time, probes among them."""
    events: Sequence[Event] = ()
    """Of all phases; the connections are read from them."""
    diff: bytes = b""
    """``final.diff``."""
    usage: Sequence[RecordedRun] = ()
    """One for each phase that was measured."""
    logs: Sequence[Log] = ()
    reason: str = ""
    """Why the grader decided so, in one sentence."""
    forged: str = ""
    """Why the grading is a forgery; empty: it is not."""
    grading: Mapping[str, object] = {}
    """What is in grading.json."""
    left_out: Sequence[tuple[str, str]] = ()
    """Path and reason of what was not taken over into grading."""


def page(data: ReportData) -> str:
    """Return the page as one HTML document."""
    facts = Facts.of(data.bundle, reason=data.reason, forged=data.forged)
    bundle = base64.b64encode(encode_bundle(data.bundle)).decode("ascii")
    script = f"{verifier.verifier_script()}\n{_asset('report.js')}"
    return verifier.document(
        _asset("report.html"),
        style=f"{verifier.verifier_style()}\n{_asset('report.css')}",
        script=script,
        title=words(f"{facts.task_id} · proctored run"),
        HEAD=report_record.masthead(facts),
        RUN=_run(data, facts),
        VERIFIER=verifier.verifier_body(),
        BUNDLE=bundle,
        VERSION=words(__version__),
    )


def _run(data: ReportData, facts: Facts) -> Markup:
    """All about the run: first what was decided, then why, last what it left behind."""
    panels = (
        report_timeline.violations(data.findings, facts.began_s, facts.ended_s, data.events),
        report_timeline.connections(data.events, facts.began_s),
        report_record.enforcement(facts),
        report_record.phases(facts, data.usage),
        report_texts.changes(data.diff, data.left_out),
        report_texts.grading(data.grading),
        report_texts.logs(data.logs),
    )
    shown = [panel for panel in panels if panel is not None]
    return inside(report_record.verdict(facts, data.findings), _contents(shown), [panel.markup() for panel in shown])


def _contents(shown: Sequence[report_record.Panel]) -> Markup:
    places = [*(panel.place for panel in shown), "verification"]
    links = [element("li", element("a", place.capitalize(), href=f"#{place}")) for place in places]
    return element("nav", element("ul", links, class_="contents"), aria_label="On this page")


def _asset(name: str) -> str:
    return verifier.asset(__package__, f"assets/{name}")
