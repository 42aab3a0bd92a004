"""A pytest plugin, loaded inside the guest only: one JSON line on the console for each test."""

from __future__ import annotations

import json
import os

import pytest

MARK = "@@guest "


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        text = "" if report.passed else f"{str(report.longrepr)[-3000:]}\n{report.capstderr[-1000:]}"
        _say(test=report.nodeid.rpartition("/")[2], outcome=report.outcome, passed=report.passed,
             seconds=round(report.duration, 2), text=text)  # fmt: skip


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _say(test=report.nodeid, outcome="failed", passed=False, seconds=0, text=str(report.longrepr)[-3000:])


def _say(**fact: object) -> None:
    # A copy of the console that init made: pytest captures descriptor 1, and a user may not open the console.
    line = "\n" + MARK + json.dumps({"who": os.environ["GUEST_WHO"], **fact}) + "\n"
    os.write(int(os.environ["GUEST_REPORT_FD"]), line.encode())
