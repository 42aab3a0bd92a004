"""What the worker tells of a test: one word for all its phases, and names that stay apart."""

from __future__ import annotations

import datetime
import json
import time
from types import SimpleNamespace

import pytest

from ringfence.proctor import pytest_worker
from ringfence.proctor.pytest_results import MAX_LINE_BYTES, parse
from ringfence.proctor.pytest_worker import CHANNEL, MAX_NAME_CHARS, Clocks, NameFinder, Reporter, outcome_of, short


def _report(when: str, outcome: str, **more: object) -> SimpleNamespace:
    flags = {name: outcome == name for name in ("passed", "failed", "skipped")}
    return SimpleNamespace(nodeid="t.py::test_a", when=when, duration=0.5, longrepr=None, **flags, **more)


@pytest.mark.parametrize(("ends", "word"), [
    ("passed passed passed", "passed"), ("passed failed passed", "failed"), ("failed passed", "error"),
    ("passed passed failed", "error"), ("skipped passed", "skipped"), ("passed skipped passed", "skipped"),
])  # fmt: skip
def test_all_phases_of_a_test_have_one_word(ends: str, word: str) -> None:
    phases = ("setup", "call", "teardown") if len(ends.split()) == 3 else ("setup", "teardown")
    assert outcome_of([_report(when, end) for when, end in zip(phases, ends.split(), strict=True)]) == word


def test_expected_failures_and_tests_without_a_call_are_no_pass() -> None:
    assert outcome_of([_report("call", "skipped", wasxfail="known")]) == "xfailed"
    assert outcome_of([_report("call", "passed", wasxfail="known")]) == "xpassed"
    assert outcome_of([_report("setup", "passed"), _report("teardown", "passed")]) == "error"


def test_long_names_stay_apart_and_fit_into_a_line() -> None:
    names = ["t.py::test_a[" + "\U0001f40d" * 9000 + end for end in "ab"]
    assert short(names[0]) != short(names[1]) and len(short(names[0])) == MAX_NAME_CHARS
    told: list[bytes] = []

    def write(channel: int, text: bytes) -> int:
        assert channel == CHANNEL
        told.append(text[:1000])  # a pipe takes what it has room for
        return len(told[-1])

    reporter = Reporter(write)
    for name in names:
        report = _report("call", "failed")
        report.longrepr = "\U0001f40d" * 5000
        reporter.reports[name] = [report]
        reporter.pytest_runtest_logfinish(name)
    lines = b"".join(told)
    assert max(map(len, lines.splitlines())) < MAX_LINE_BYTES
    assert len(parse(lines).outcomes) == 2 and not parse(lines).doubt
    assert json.loads(lines.splitlines()[0])["duration_s"] == 0.5


def test_a_name_of_the_runner_is_looked_for_in_its_own_place_alone(tmp_path: object) -> None:
    guard = NameFinder({"winreg": [str(tmp_path)]})
    assert guard.find_spec("solution") is None and guard.find_spec("winreg", ["/elsewhere"]) is None
    with pytest.raises(ModuleNotFoundError):
        guard.find_spec("winreg")
    assert pytest_worker.RUNNER[:2] == ("pytest", "_pytest")


STOPPED = SimpleNamespace(**{**vars(time), "perf_counter": lambda: 0.0})
LATE = SimpleNamespace(datetime=SimpleNamespace(now=lambda zone: datetime.datetime(2020, 1, 1, tzinfo=zone)))


@pytest.mark.parametrize(("seen", "name"), [
    ({"time": STOPPED}, "perf_counter"), ({"monotonic": lambda: 1.5}, "monotonic"), ({"time": lambda: 0}, "time"),
    ({"time": SimpleNamespace(time_ns=lambda: 5)}, "time_ns"), ({"datetime": LATE}, "datetime"),
    ({"datetime": LATE.datetime}, "datetime"), ({"process_time": lambda: float("nan")}, "process_time"),
    ({"timeit": SimpleNamespace(default_timer=lambda: "x")}, "default_timer"),
])  # fmt: skip
def test_a_clock_that_was_exchanged_is_seen(seen: dict[str, object], name: str) -> None:
    clocks = Clocks()
    clocks.look({"time": time, "datetime": datetime, "perf_counter": time.perf_counter, "other": 5})
    assert set(clocks.off.values()) == {0.0}
    clocks.look(seen)
    assert {each for each, off in clocks.off.items() if off > 0.1} == {name}


def test_clocks_are_told_once_each_and_read() -> None:
    told: list[bytes] = []
    reporter = Reporter(lambda _, text: told.append(text) or len(text))  # type: ignore[func-returns-value]
    reporter.clocks.look({"time": STOPPED})
    reporter.tell_clocks()
    read = parse(b"".join(told))
    assert read.clocks.keys() == reporter.clocks.own.keys() and read.clocks["perf_counter"] > 0 and not read.doubt
