"""What is told of a run: one live line on a terminal, lines elsewhere, JSON for machines, nothing hostile in any."""

from __future__ import annotations

import io
import json

import pytest

from ringfence.monitor.sample import Sample
from ringfence.proctor.display import Display
from ringfence.proctor.findings import Finding
from ringfence.proctor.severity import Severity

VERDICT = {"pass": True, "status": "compromised", "violations_count": 1, "reward": 0.5}
HOSTILE = "\x1b[2J\r\n\u202eevil\udcff"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def finding(severity: Severity = Severity.ATTEMPT, path: str = "/oracle/answer.txt", process: str = "cat") -> Finding:
    return Finding(severity=severity, kind="masked_read", time_s=1.0, pid=7, process=process, syscall="openat",
                   result="ENOENT", path=path)  # fmt: skip


def told(*, task: str = "fizz", path: str = "/oracle/answer.txt", report: str = "out/report.html", count: int = 1,
         stream: io.StringIO | None = None, **how: bool) -> str:  # fmt: skip
    out, clock = stream or io.StringIO(), Clock()
    display = Display(task, out, now=clock, **how)
    display.phase("agent", 1800.0)
    for _ in range(3):
        clock.now += 40.0
        display.usage(Sample(time_s=clock.now, cpu_s=41.2, memory_bytes=310 << 20, processes=3))
    display.finding(finding(Severity.PROBE, path))
    for _ in range(count):
        display.finding(finding(path=path, process=path))
    clock.now += 13.0
    display.phase("grader", None)
    clock.now += 4.0
    display.verdict(VERDICT, report)
    return out.getvalue()


def test_a_terminal_has_one_line_for_each_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("ringfence.proctor.display.Output.columns", lambda self: 120)
    text = told(live=True)
    lines = [line.rpartition("\r")[2].replace("\x1b[K", "") for line in text.split("\n")]
    assert lines == [
        "fizz  agent     2:13 / 30:00   cpu 41 s   mem 310 MiB   attempts 1 (masked_read /oracle/answer.txt)",
        "fizz  grader    0:04",
        "verdict: pass=true status=compromised violations=1 reward=0.5     out/report.html",
        "",
    ]
    assert text.count("\r") >= 6


def test_elsewhere_there_is_a_line_for_what_happens() -> None:
    assert told().splitlines() == [
        "fizz agent: begins, at most 30:00",
        "fizz agent: attempt: masked_read /oracle/answer.txt by /oracle/answer.txt (pid 7): ENOENT",
        "fizz agent: 2:13, cpu 41 s, mem 310 MiB, 1 violation",
        "fizz grader: begins",
        "fizz grader: 0:04",
        "verdict: pass=true status=compromised violations=1 reward=0.5     out/report.html",
    ]


def test_machines_get_one_object_a_line() -> None:
    events = [json.loads(line) for line in told(as_json=True).splitlines()]
    assert [event["event"] for event in events] == [
        "phase", "usage", "usage", "usage", "finding", "finding", "phase_end", "phase", "phase_end", "verdict",
    ]  # fmt: skip
    assert events[0] == {"event": "phase", "task": "fizz", "phase": "agent", "elapsed_s": 0.0, "limit_s": 1800.0}
    assert events[5]["severity"] == "attempt" and events[5]["path"] == "/oracle/answer.txt"
    assert events[6]["counts"] == {"probe": 1, "attempt": 1, "breach": 0} and events[6]["elapsed_s"] == 133.0
    assert events[-1] == {"event": "verdict", **VERDICT, "report": "out/report.html"}


@pytest.mark.parametrize("how", [{"live": True}, {}, {"as_json": True}], ids=["live", "lines", "json"])
def test_no_name_of_the_guest_steers_a_terminal(how: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = told(task=HOSTILE, path=HOSTILE, report=HOSTILE, **how)
    plain = told(**how)
    assert "\x1b[2J" not in text and "\u202e" not in text
    assert text.count("\n") == plain.count("\n") and text.count("\r") == plain.count("\r")
    assert text.isascii() or not how.get("as_json")


def test_a_narrow_terminal_gets_no_line_that_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("ringfence.proctor.display.Output.columns", lambda self: 40)
    for name in ("x", "漢"):
        lines = told(live=True, task=f"fizz{name}", path="/oracle/" + name * 500).replace("\x1b[K", "").split("\r")
        live = [line.rstrip("\n") for line in lines if line.startswith("fizz")]
        assert len(live) > 5
        assert all(sum(1 + (char == "漢") for char in line.partition("\n")[0]) < 40 for line in live)


def test_colours_mark_attempts_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[33m" in told(live=True) and "\x1b[33m" not in told(live=True, count=0)
    assert "\x1b" not in told()


def test_the_end_of_a_phase_tells_the_most_memory() -> None:
    out, clock = io.StringIO(), Clock()
    display = Display("fizz", out, now=clock)
    display.phase("agent", None)
    display.usage(Sample(time_s=1.0, cpu_s=2.0, memory_bytes=80 << 20))
    display.usage(Sample(time_s=2.0, cpu_s=3.0, memory_bytes=0))
    display.close()
    assert out.getvalue().splitlines()[-1] == "fizz agent: 0:00, cpu 3 s, mem 80 MiB"


def test_a_flood_of_attempts_is_counted_and_not_listed() -> None:
    lines = told(count=5000).splitlines()
    assert len(lines) < 40 and any("5000 violations" in line for line in lines)
    assert sum("events.jsonl has them" in line for line in lines) == 1


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_reader_that_went_away_costs_the_run_nothing() -> None:
    assert told(stream=Broken()) == ""
    closed = io.StringIO()
    display = Display("fizz", closed)
    closed.close()
    display.phase("agent", None)
    display.close()


def test_a_stream_without_unicode_gets_escapes() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Display("Übung", stream).phase("agent", None)
    assert raw.getvalue() == b"\\xdcbung agent: begins\n"


def test_nothing_is_told_outside_of_a_phase() -> None:
    out = io.StringIO()
    display = Display("fizz", out, live=True)
    display.usage(Sample(time_s=1.0))
    display.finding(finding())
    display.close()
    assert out.getvalue() == ""


def test_what_a_task_asks_for_is_said_before_it_runs() -> None:
    out = io.StringIO()
    Display("fizz", out).asks(["API_KEY", HOSTILE], ["api.example:443"])
    assert out.getvalue().startswith("fizz: the task asks for the variables API_KEY, ")
    assert out.getvalue().endswith(" and the hosts api.example:443\n") and "\x1b" not in out.getvalue()
    told = io.StringIO()
    Display("fizz", told, as_json=True).asks(["API_KEY"], [])
    assert json.loads(told.getvalue()) == {"event": "asks", "task": "fizz", "variables": ["API_KEY"], "hosts": []}
    nothing = io.StringIO()
    Display("fizz", nothing).asks([], [])
    assert not nothing.getvalue()
