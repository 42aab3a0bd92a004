"""The process tree as ps tells it; the same questions as to /proc, the same answers."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from ringfence.roles import process_table

SLEEPER = [sys.executable, "-c", "import subprocess, sys; subprocess.run(['sleep', '60'])"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    (("0:00.01", 0.01), ("00:00:07", 7), ("12:34.56", 754.56), ("1-02:03:04", 93784), ("100-00:00:00", 8640000)),
)
def test_processor_time_is_read_as_ps_prints_it(text: str, seconds: float) -> None:
    assert process_table.parse_time(text) == pytest.approx(seconds)


@pytest.mark.system
def test_who_asks_does_not_count_the_asking() -> None:
    code = "import os; from ringfence.roles import process_table as table; print(len(table.descendants(os.getpid())))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"0\n"


@pytest.mark.system
def test_children_are_found_and_killed() -> None:
    child = subprocess.Popen(SLEEPER)
    while len(found := process_table.descendants(child.pid)) < 1:
        assert child.poll() is None
    assert all(row.rss_bytes > 0 for row in found)
    assert {row.threads for row in found} == {1} and not any(row.zombie for row in found)
    for row in found:
        process_table.kill(row, signal.SIGKILL)
    assert child.wait(60) == 0  # its own child is gone, so it has nothing left to wait for
    process_table.kill(found[0], signal.SIGKILL)  # gone already: no error


def test_the_dead_that_nobody_waited_for_are_told(monkeypatch) -> None:
    rows = [["5", "1", "0", "0:01.00", "Z+"], ["6", "5", "10", "0:00.50", "S"], ["7", "99", "1", "0:00", "R"]]
    monkeypatch.setattr(process_table, "_table", lambda: rows)
    found = {row.pid: row for row in process_table.descendants(1)}
    assert set(found) == {5, 6} and found[5].zombie and not found[6].zombie
    assert (found[5].cpu_ticks, found[6].rss_bytes) == (100, 10240)
    assert process_table.proportional_bytes(found[6]) == 10240


def test_what_ps_cannot_tell_is_zero() -> None:
    assert process_table.open_own_io() == -1
    told = process_table.written_bytes(1), process_table.own_written_bytes(-1), process_table.oom_kills()
    assert told == (0, 0, 0)
