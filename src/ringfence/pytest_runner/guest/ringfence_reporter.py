"""A pytest plugin that runs inside the sandbox: a private working folder, and each test's outcome told.

It stands alone in its folder, so that the interpreter of the tests needs nothing else of ringfence.
What it writes is the guest's word, like everything that comes out of a sandbox.

``start.py`` loads it by its path, before pytest could rewrite its assertions: PYTEST_DONT_REWRITE.
"""

from __future__ import annotations

import json
import os

import pytest

CHANNEL_VARIABLE = "RINGFENCE_CHANNEL"
FOLDER_VARIABLE = "RINGFENCE_TEST_FOLDER"
MAX_NAME_CHARS = 4096
"""Of the name of a test; the caller takes no longer lines than these make."""
TYPE_CHECKING = False


if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from typing import Any


class Reporter:
    """Writes one JSON object a line: a test's outcome, the counts of collection, the end."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self.stream = open(descriptor, "w", encoding="utf-8", errors="replace")  # noqa: SIM115

    def _tell(self, **record: object) -> None:
        self.stream.write(json.dumps(record) + "\n")
        self.stream.flush()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = _outcome_of(report)
        if outcome:
            took = max(0.0, round(report.duration, 6))
            self._tell(test=report.nodeid[:MAX_NAME_CHARS], outcome=outcome, duration_s=took)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._tell(test=report.nodeid[:MAX_NAME_CHARS], outcome="error", duration_s=0.0)

    def pytest_deselected(self, items: Sequence[object]) -> None:
        self._tell(deselected=len(items))

    def pytest_sessionfinish(self, session: object, exitstatus: int) -> None:
        self._tell(finished=int(exitstatus))


def _outcome_of(report: pytest.TestReport) -> str | None:
    expected_to_fail = hasattr(report, "wasxfail")
    if report.when == "call" and report.passed:
        return "xpassed" if expected_to_fail else "passed"
    if report.skipped:
        return "xfailed" if expected_to_fail else "skipped"
    if report.failed:
        return "failed" if report.when == "call" else "error"
    return None


def pytest_configure(config: pytest.Config) -> None:
    # Workers of pytest-xdist report to their controller, which reports here.
    channel = os.environ.pop(CHANNEL_VARIABLE, None)
    if channel and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Reporter(int(channel)), "ringfence-reporter")


_LOAD_BY_PATH = """
import importlib.util, sys
name, path = channel.receive()
spec = importlib.util.spec_from_file_location(name, path)
sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[name])
"""


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A worker of pytest-xdist on this machine gets this very file too, before it looks for its name."""
    if node.gateway.spec.popen:
        channel = node.gateway.remote_exec(_LOAD_BY_PATH)
        channel.send((__name__, os.path.abspath(__file__)))
        channel.waitclose()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Options, conftest files and collection saw the caller's folder; the tests run in one of their own."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        os.makedirs(os.path.expandvars(folder), exist_ok=True)
        os.chdir(os.path.expandvars(folder))


@pytest.hookimpl(hookwrapper=True)
def pytest_report_header(config: pytest.Config) -> Generator[None, Any, None]:
    """Leave the private cache folder out of the header: it has another name in every run."""
    result = yield
    result.force_result([part for part in result.get_result() if not _names_cache(part)])


def _names_cache(part: object) -> bool:
    return isinstance(part, str) and part.startswith("cachedir:")
