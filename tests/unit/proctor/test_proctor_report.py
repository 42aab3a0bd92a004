"""The page about a run: what it says in each case, how much it shows, and that every text in it stays text."""

from __future__ import annotations

import base64
import os
import re
import sys
from typing import Any

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "evidence"))
import evidence_samples as s

from ringfence.evidence.bundle import Result, encode_bundle
from ringfence.evidence.page import document, verify_page
from ringfence.model.events import Event, EventKind
from ringfence.monitor.sample import Sample
from ringfence.monitor.usage_log import RecordedRun
from ringfence.proctor.findings import Finding
from ringfence.proctor.report import texts as report_texts
from ringfence.proctor.report import timeline as report_timeline
from ringfence.proctor.report.markup import Markup, element, inside, quoted, words
from ringfence.proctor.report.page import ReportData, page
from ringfence.proctor.report.texts import Log
from ringfence.proctor.severity import Severity

HTML = "<img src=x onerror=pwned=1>"


def finding(severity: Severity = Severity.ATTEMPT, path: str = "/oracle/x", time_s: float = 5.0) -> Finding:
    return Finding(severity=severity, kind="masked_read", time_s=s.STARTED.timestamp() + time_s, pid=7, process="cat",
                   argv=("cat", path), syscall="openat", result="ENOENT", path=path)  # fmt: skip


def shown(*, violations: list[dict[str, Any]] | None = None, passed: bool = True, reward: float | None = None,
          **data: Any) -> str:  # fmt: skip
    result = Result(task_id="fizz", passed=passed, reward=reward)
    bundle = s.ringfence_bundle(violations=violations or [], result=result)
    return page(ReportData(bundle=bundle, **data))


def text_of(html: str) -> str:
    """What stands before the verifier, without tags."""
    return re.sub(r"<[^>]*>", " ", html.partition('id="verification"')[0].partition("</style>")[2])


@pytest.mark.parametrize(("passed", "violations", "forged", "title", "score"), [
    (True, [], "", "Passed, clean", "1"),
    (False, [], "", "Did not pass, clean", "0"),
    (True, s.VIOLATIONS, "", "Compromised", "0"),
    (False, s.VIOLATIONS, "", "Compromised", "0"),
    (False, [], "a test and its twin both passed", "Forged grading", "0"),
])  # fmt: skip
def test_the_verdict_stands_first_and_in_words(
    passed: bool, violations: list[dict[str, Any]], forged: str, title: str, score: str
) -> None:
    html = shown(passed=passed, violations=violations, forged=forged)
    assert title in text_of(html)
    assert f"<strong>{score}</strong>score" in html and forged in html


def test_a_reward_is_the_score_only_where_the_run_is_clean() -> None:
    assert "<strong>0.25</strong>score" in shown(reward=0.25)
    assert "<strong>0</strong>score" in shown(reward=0.25, violations=s.VIOLATIONS)


def test_it_says_what_was_enforced_and_by_what() -> None:
    text = text_of(shown())
    assert "2 of 2 applied" in text and "cgroup v2" in text and "network namespace" in text and "healthy" in text


def test_attempts_are_listed_and_probes_are_behind_a_fold() -> None:
    html = shown(findings=[finding(), finding(Severity.PROBE, "/oracle/looked")])
    before, _, behind = html.partition("<details>")
    assert "/oracle/x" in before and "openat · ENOENT · cat (pid 7) · cat /oracle/x" in before
    assert "/oracle/looked" in behind and "/oracle/looked" not in before
    assert "5.00 s" in before
    assert "Nothing forbidden was tried." in shown()


def test_connections_say_what_became_of_them() -> None:
    row = {"decision": "refused", "protocol": "tls", "name": "evil.example", "port": 443, "reason": "not in the list",
           "process": "curl (pid 9)", "bytes_out": 0, "bytes_in": 0}  # fmt: skip
    event = Event(kind=EventKind.EGRESS, run_id="r", time_s=s.STARTED.timestamp() + 1, details=row)
    text = text_of(shown(events=[event]))
    assert "evil.example:443" in text and "not in the list" in text and "curl (pid 9)" in text
    assert "Connections" not in text_of(shown())


def test_usage_is_drawn_for_each_phase_that_was_measured() -> None:
    samples = tuple(Sample(time_s=float(n), cpu_percent=50.0, memory_bytes=n << 20) for n in range(9))
    html = shown(usage=[RecordedRun(about={"command": ["my-agent"]}, samples=samples, end={"status": "OK", "rc": 0})])
    assert html.count("<polyline") >= 2 and "my-agent" in html
    assert "<polyline" not in shown()


def test_the_curves_of_a_long_run_are_no_longer_than_those_of_a_short_one() -> None:
    samples = tuple(Sample(time_s=n / 4, cpu_percent=1.0 + 98 * (n == 7000), memory_bytes=n) for n in range(40_000))
    html = shown(usage=[RecordedRun(about={"phase": "agent"}, samples=samples)])
    assert len(html) < 300_000 and "at most 99 %" in html
    (cpu, *_) = re.findall(r'<polyline points="([^"]*)"', html)
    heights = [float(point.partition(",")[2]) for point in cpu.split()]
    assert len(heights) == 960 and sum(height == min(heights) for height in heights) == 1


def test_a_diff_has_its_colours_and_ends_somewhere() -> None:
    html = shown(diff=b"--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-old\n+new\n same\n")
    rows = {"file first": "--- a/x", "file": "+++ b/x", "hunk": "@@ -1,2 +1,2 @@", "del": "-old", "add": "+new"}
    assert all(f'"row {kind}">{line}<' in html for kind, line in rows.items()) and '"row"> same<' in html
    head = b"diff --git a/x b/x\nnew file mode 100644\n--- /dev/null\n+++ b/x\n"
    git = shown(diff=head + b"@@ -0,0 +1 @@\n+a\ndiff --git a\n")
    assert git.count('"row file first"') == 2 and '"row file">new file mode' in git
    long = shown(diff=b"+x\n" * 100_000)
    assert "final.diff has the rest" in long and len(long) < 1_500_000
    assert "The agent changed nothing." in shown()


def test_no_line_of_a_file_looks_like_the_head_of_another() -> None:
    html = shown(diff=b"--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n--- /etc/passwd\n+++ /etc/shadow\n same\n--- b/y\n")
    assert '"row del">--- /etc/passwd<' in html and '"row add">+++ /etc/shadow<' in html
    assert '"row file first">--- b/y<' in html
    assert '"row">\\ No newline' in shown(diff=b"--- a\n+++ b\n@@ -1 +1 @@\n-x\n\\ No newline at end of file\n+y\n")


def test_a_long_command_is_cut_and_a_phase_names_its_curves() -> None:
    samples = tuple(Sample(time_s=float(n), memory_bytes=n << 20) for n in range(9))
    html = shown(usage=[RecordedRun(about={"phase": f"agent{HTML}"}, samples=samples)])
    assert "agent&lt;img" in html and "broken off" not in html
    bundle = s.ringfence_bundle()
    long = page(ReportData(bundle={**bundle, "environment": {**bundle["environment"], "agent_command": "x" * 5000}}))
    assert "x" * 200 not in long and "x…" in long


def test_logs_show_what_steers_a_terminal_and_are_cut_in_the_middle() -> None:
    html = shown(logs=[Log(name="agent.stdout", data=b"a\x1b]0;t\x07\xff\r\n"), Log(name="agent.stderr", data=b"")])
    assert 'a<span class="esc">\\x1b</span>]0;t<span class="esc">\\x07</span>\\xff\n' in html and "\x1b" not in html
    assert "empty" in html
    long = shown(logs=[Log(name="l", data=b"first" + b"." * (1 << 20) + b"last", dropped=7)])
    assert "first" in long and "last" in long and "are not shown here" in long and len(long) < 600_000
    assert "7 B more were not kept" in long


def test_a_flood_of_findings_does_not_make_a_flood_of_a_page() -> None:
    html = shown(findings=[finding()] * 20_000)
    assert html.count('class="target"') == report_timeline.MOST_SHOWN
    assert "19500 more: events.jsonl has all of them" in html


def test_what_was_left_out_of_grading_is_told_with_the_reason() -> None:
    text = text_of(shown(left_out=[("answer", "a link that leaves the workspace")]))
    assert "answer" in text and "a link that leaves the workspace" in text
    assert "counter-tests" in shown(grading={"kind": "counter-tests"})


def test_the_page_carries_the_very_bytes_of_the_bundle() -> None:
    bundle = s.ringfence_bundle()
    carried = page(ReportData(bundle=bundle)).partition('id="own-bundle">')[2].partition("<")[0]
    assert base64.b64decode(carried) == encode_bundle(bundle)


def test_a_bundle_of_another_kind_still_makes_a_page() -> None:
    html = page(ReportData(bundle={"verdict": {"task_id": "t", "status": "clean"}}))
    assert "Nobody graded this run." in html


def test_the_page_names_no_other_place_and_has_one_policy() -> None:
    html = shown(findings=[finding()])
    assert set(re.findall(r"\w+://[^\s\"'`)]*", html)) <= {"http://www.w3.org/2000/svg"}
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy
    assert "style=" not in re.sub(r"<script>.*", "", html, flags=re.DOTALL)


def test_what_is_put_into_a_page_is_not_looked_through_again() -> None:
    html = document("<p>@TITLE@ @STYLE@</p>", title="@SCRIPT@", style="s", script="x", TITLE="@STYLE@@SCRIPT@")
    assert html.endswith("<body>\n<p>@STYLE@@SCRIPT@ s</p></body>\n</html>\n") and "<title>@SCRIPT@</title>" in html
    assert "@" not in re.sub(r"<style>.*?</style>|<script>.*?</script>", "", verify_page(), flags=re.DOTALL)


@pytest.mark.parametrize("made", [
    element("p", HTML, title=f'"{HTML}'), inside(HTML, [HTML]), words(HTML), quoted(HTML),
    report_texts.changes(HTML.encode(), [(HTML, HTML)]).markup(), report_texts.grading({HTML: HTML}).markup(),
    report_texts.logs([Log(name=HTML, data=HTML.encode())]).markup(),
])  # fmt: skip
def test_text_stays_text(made: Markup) -> None:
    assert "<img" not in made and "&lt;img" in made


def test_what_hides_in_a_line_is_shown() -> None:
    assert words("a\u202eb\udcff\x1b") == "a\\u202eb\\xff\\x1b"
    assert element("i", Markup("<b></b>"), "&") == "<i><b></b>&amp;</i>"
