"""The report of a run as a person meets it, in a real browser: it verifies its own bundle, and nothing in it bites."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "unit", "evidence"))
import chromium
import evidence_samples as s
from hostile_bundle import HTML, PAYLOAD, hostile_bundle

from ringfence.model.events import Event, EventKind
from ringfence.monitor.sample import Sample
from ringfence.monitor.usage_log import RecordedRun
from ringfence.proctor.findings import Finding
from ringfence.proctor.report.page import ReportData, page
from ringfence.proctor.report.texts import Log
from ringfence.proctor.severity import Severity

pytestmark = pytest.mark.unmeasured

BEGAN_S = s.STARTED.timestamp()


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    with chromium.browser() as found:
        yield found


def samples() -> tuple[Sample, ...]:
    return tuple(
        Sample(time_s=n / 2, cpu_s=n / 5, cpu_percent=60.0 + n % 7 * 5, memory_bytes=(80 + n) << 20, processes=3,
               written_bytes=n << 14)
        for n in range(220)
    )  # fmt: skip


def connection(text: str, decision: str, after_s: float, **more: object) -> Event:
    details = {"decision": decision, "protocol": "tls", "name": text, "address": text, "port": 443, "rule": text,
               "reason": text, "bytes_out": 2100, "bytes_in": 81_000, "process": text, **more}  # fmt: skip
    return Event(kind=EventKind.EGRESS, run_id=text, time_s=BEGAN_S + after_s, details=details)


def filled(text: str, bundle: dict[str, Any]) -> ReportData:
    """A page with this text in every field that a sandbox, a task or a grader can choose."""
    findings = [
        Finding(severity=severity, kind=kind, time_s=BEGAN_S + 20 * number, pid=7, process=text, argv=(text, text),
                syscall=text, result=text, path=path, host=host)
        for number, (severity, kind, path, host) in enumerate((
            (Severity.PROBE, "masked_read", text, ""), (Severity.ATTEMPT, "masked_read", text, ""),
            (Severity.ATTEMPT, "blocked_connect", "", text), (Severity.BREACH, "masked_write", text, ""),
            (Severity.ATTEMPT, text, text, text)))
    ]  # fmt: skip
    run = RecordedRun(about={"command": [text]}, samples=samples(), end={"status": text, "rc": text})
    logs = [Log(name=text, data=text.encode()), Log(name="agent.stdout", data=b"\x1b[2J\x1b]0;" + text.encode())]
    return ReportData(
        bundle=bundle, findings=findings, events=[connection(text, name, 9) for name in ("allowed", "refused", text)],
        diff=f"--- {text}\n+++ {text}\n@@ {text}\n+{text}\n-{text}\n".encode(), usage=[run], logs=logs, reason=text,
        forged=text, grading={text: [text, {text: text}]}, left_out=[(text, text)],
    )  # fmt: skip


def opened(running: Any, folder: Path, data: ReportData, **options: Any) -> Any:
    path = folder / "report.html"
    path.write_bytes(page(data).encode())
    return chromium.watched_page(running, path.as_uri(), **options)


def quiet(watched: chromium.Watched) -> bool:
    """It asked for nothing, complained of nothing, and its policy had nothing to refuse."""
    return (watched.strange_requests(), watched.complaints, watched.refused()) == ([], [], [])


def test_hostile_text_in_every_field_stays_text(running: Any, tmp_path: Path) -> None:
    with opened(running, tmp_path, filled(PAYLOAD, hostile_bundle())) as watched:
        watched.page.wait_for_selector("#result[data-state=intact]", timeout=60_000)
        watched.page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true })")
        text = watched.page.inner_text("body")
        assert text.count(HTML) >= 90
        assert "\u202e" not in text and "\\u202e" in text and "\x1b" not in text
        assert not watched.page.evaluate("'pwned' in window")
        assert watched.page.evaluate("document.querySelectorAll('img, [onerror], iframe, link').length") == 0
        assert watched.page.evaluate("document.querySelectorAll('script').length") == 2
        assert watched.page.evaluate("document.title").endswith("· proctored run")
        assert quiet(watched)


def test_the_same_text_bites_where_it_is_not_escaped(running: Any, tmp_path: Path) -> None:
    """The positive control: with a way around ``markup`` and without the policy the payload runs."""
    html = page(filled("HERE", s.ringfence_bundle()))
    bare = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html).replace("HERE", PAYLOAD)
    (tmp_path / "report.html").write_text(bare, encoding="utf-8")
    with chromium.watched_page(running, (tmp_path / "report.html").as_uri()) as watched:
        assert watched.page.evaluate("'pwned' in window")


def test_the_page_verifies_its_own_bundle_and_says_so_in_its_head(running: Any, tmp_path: Path) -> None:
    with opened(running, tmp_path, filled("plain", s.ringfence_bundle())) as watched:
        view = watched.page
        view.wait_for_selector("#result[data-state=intact]", timeout=60_000)
        assert view.inner_text("#seal") == "Bundle intact, signer unknown"
        view.fill("#key", s.OPERATOR.public_hex)
        view.wait_for_selector("#result[data-state=ok]")
        assert view.inner_text("#seal") == "Bundle verified"
        view.fill("#key", s.STRANGER.public_hex)
        view.wait_for_selector("#result[data-state=failed][data-step='7']")
        assert view.inner_text("#seal") == "Bundle NOT OK"
        assert quiet(watched)


def test_a_page_whose_bundle_was_changed_says_so(running: Any, tmp_path: Path) -> None:
    bundle = s.ringfence_bundle()
    bundle["verdict"]["task_id"] = "buzz"
    with opened(running, tmp_path, ReportData(bundle=bundle)) as watched:
        watched.page.wait_for_selector("#result[data-state=failed][data-step='6']", timeout=60_000)
        assert watched.page.inner_text("#seal") == "Bundle NOT OK"


def test_nothing_is_cut_off_on_a_phone(running: Any, tmp_path: Path) -> None:
    data = filled("a-long-name-without-any-blank/" * 12, s.ringfence_bundle())
    with opened(running, tmp_path, data, viewport={"width": 360, "height": 740}) as watched:
        watched.page.wait_for_selector("#result[data-state=intact]", timeout=60_000)
        watched.page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true })")
        assert watched.page.evaluate("document.documentElement.scrollWidth") <= 360
