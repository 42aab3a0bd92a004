"""A pytest plugin that runs inside the sandbox: it makes a private working directory and reports each test's outcome.

It stands alone in its directory, so that the interpreter of the tests needs nothing else of ringfence.
What it writes is as untrusted as everything that comes out of a sandbox.

``start.py`` loads it by its path, before pytest could rewrite its assertions: PYTEST_DONT_REWRITE.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import opcode
import os
import threading

import pytest

CHANNEL_VARIABLE = "RINGFENCE_CHANNEL"
FOLDER_VARIABLE = "RINGFENCE_TEST_FOLDER"
OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed", "rerun")
OF_SUBTESTS = "subtests "
"""Begins the categories of subtests that are no tests, e.g. of those that passed."""
MAX_NAME_CHARS = 4096
"""Characters of a test's name; the caller's limit for lines fits these."""
MAX_CHAIN = 64
"""How many chained exceptions are examined."""
HAS_SUBTESTS = importlib.util.find_spec("_pytest.subtests") is not None
"""From pytest 9 on. In earlier versions failed subtests count even if the test is run again."""
REFUSED = "ringfence_refused"
"""The attribute of a report in which a worker of pytest-xdist sends home what a limit refused."""
ELSEWHERE = "ringfence_elsewhere"
"""The same for a file that is not in the private directory but in the caller's."""
UNREADABLE = "ringfence_unreadable"
"""The same for a path that collection was not allowed to read."""
ERRNO_NAMES = {number: errno.errorcode[number] for number in (
    errno.ENOMEM, errno.EMFILE, errno.EFBIG, errno.ENOSPC, errno.EDQUOT)}  # fmt: skip
STARTING = frozenset({
    "fork", "forkpty", "fork_exec", "_fork_exec", "posix_spawn", "posix_spawnp", "start_new_thread",
    "_start_new_thread", "start_joinable_thread", "_start_joinable_thread",
})  # fmt: skip
"""Functions that start a process or a thread, by the names that code calls them by."""
TYPE_CHECKING = False


if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from types import TracebackType
    from typing import Any


class Reporter:
    """Writes one JSON object a line: a test's outcome, the counts of collection, the end."""

    def __init__(self, descriptor: int, config: pytest.Config) -> None:
        os.set_inheritable(descriptor, False)
        self.config = config
        self.owner = os.getpid()
        self.stream = open(descriptor, "w", encoding="utf-8", errors="replace")  # noqa: SIM115

    def _tell(self, **record: object) -> None:
        if os.getpid() != self.owner:
            return  # a test has forked, and its child goes on in a copy of pytest
        self.stream.write(json.dumps(record) + "\n")
        self.stream.flush()

    def _tell_test(self, report: pytest.TestReport | pytest.CollectReport, outcome: str, took: float) -> None:
        # Reports of subtests and of crashed workers have whole numbers.
        self._tell(test=report.nodeid[:MAX_NAME_CHARS], outcome=outcome, duration_s=max(0.0, round(float(took), 6)))

    def tell_refused(self, name: str, failed: bool) -> None:
        self._tell(refused=name, failed=failed)

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        name = _refused(excinfo.value)
        if name:
            self.tell_refused(name, True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = getattr(report, REFUSED, None)
        if name:
            self.tell_refused(name, report.failed)
        if report.failed and hasattr(report, ELSEWHERE):
            self._tell(elsewhere=True)
        outcome = _counted_as(report, self.config)
        if outcome:
            self._tell_test(report, outcome, report.duration)
        if outcome == "rerun" and HAS_SUBTESTS:
            self._tell(superseded=report.nodeid[:MAX_NAME_CHARS])  # its subtests run again and are reported again

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        name = getattr(report, REFUSED, None)
        if name:
            self.tell_refused(name, True)
        path = getattr(report, UNREADABLE, None)
        if path:
            self._tell(unreadable=path[:MAX_NAME_CHARS])
        if not report.passed:
            self._tell_test(report, "skipped" if report.skipped else "error", 0.0)

    def pytest_deselected(self, items: Sequence[object]) -> None:
        self._tell(deselected=len(items))

    def pytest_keyboard_interrupt(self) -> None:
        self._tell(broken_off=True)  # also for pytest.exit, whatever exit status that chose

    def pytest_sessionfinish(self, session: object, exitstatus: int) -> None:
        self._tell(finished=int(exitstatus))


def _counted_as(report: pytest.TestReport, config: pytest.Config) -> str | None:
    """The category in pytest's own summary: plug-ins may decide it, e.g. for subtests and reruns. No plug-in may turn a
    failure into something else."""
    status = config.hook.pytest_report_teststatus(report=report, config=config)
    category: str | None = status[0] if status else None
    if report.failed and category not in ("failed", "error"):
        return _outcome_of(report)
    if category in OUTCOMES:
        return category
    return None if category == "" or str(category).startswith(OF_SUBTESTS) else _outcome_of(report)


def _outcome_of(report: pytest.TestReport) -> str | None:
    expected_to_fail = hasattr(report, "wasxfail")
    if report.when == "call" and report.passed:
        return "xpassed" if expected_to_fail else "passed"
    if report.skipped:
        return "xfailed" if expected_to_fail else "skipped"
    if report.failed:
        return "error" if report.when in ("setup", "teardown") else "failed"
    return None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    """Note at a report that a limit refused the test something: as a type and an errno, never as text."""
    result = yield
    if call.excinfo is None:
        return
    _note_refused(result.get_result(), call.excinfo.value)
    if os.environ.get(FOLDER_VARIABLE) and _is_elsewhere(call.excinfo.value, str(item.config.invocation_params.dir)):
        setattr(result.get_result(), ELSEWHERE, True)


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, None]:
    """The same for a module that can't be imported."""
    result = yield
    report = result.get_result()
    call = getattr(report, "call", None)
    if call is not None and call.excinfo is not None:
        error = call.excinfo.value
        _note_refused(report, error)
        if isinstance(error, PermissionError) and isinstance(error.filename, (str, os.PathLike)):
            setattr(report, UNREADABLE, os.path.abspath(os.fsdecode(error.filename)))


def _note_refused(report: object, error: BaseException) -> None:
    name = _refused(error)
    if name:
        setattr(report, REFUSED, name)


def _refused(error: BaseException) -> str | None:
    """The kind of exception that shows that a limit was hit; absent: no exception of the chain does."""
    for each in _chain(error):
        if isinstance(each, MemoryError):
            return "MemoryError"
        if isinstance(each, OSError) and each.errno in ERRNO_NAMES:
            return ERRNO_NAMES[each.errno]
        if _is_of_starting(each):
            return "EAGAIN"
    return None


def _chain(error: BaseException) -> list[BaseException]:
    """Everything that its traceback shows: causes, contexts, and the members of a group."""
    found: list[BaseException] = []
    ahead: list[object] = [error]
    while ahead and len(found) < MAX_CHAIN:
        each = ahead.pop()
        if not isinstance(each, BaseException) or any(each is known for known in found):
            continue
        found.append(each)
        ahead.append(each.__cause__ or (None if each.__suppress_context__ else each.__context__))
        members = getattr(each, "exceptions", ())
        ahead += members if isinstance(members, tuple) else ()
    return found


def _is_elsewhere(error: BaseException, folder: str) -> bool:
    """Whether a file was not found by a relative path that means one in this directory."""
    missing = [each.filename for each in _chain(error) if isinstance(each, FileNotFoundError)]
    paths = [os.fsdecode(name) for name in missing if isinstance(name, (str, os.PathLike))]
    return any(os.path.lexists(os.path.join(folder, path)) for path in paths if path and not os.path.isabs(path))


def _is_of_starting(error: BaseException) -> bool:
    """Whether it was raised because no thread or process could be started. Other exceptions of these types, e.g. of a
    socket with nothing to read, are raised in functions that start nothing."""
    of_a_fork = isinstance(error, BlockingIOError) and error.errno == errno.EAGAIN
    frame = _innermost(error.__traceback__)
    if frame is None or not (of_a_fork or type(error) is RuntimeError):
        return False
    code = frame.tb_frame.f_code
    if code is threading.Thread.start.__code__:
        started = getattr(frame.tb_frame.f_locals.get("self"), "_started", None)
        return started is not None and not started.is_set()  # else it was started twice
    by_itself = code.co_code[frame.tb_lasti] == opcode.opmap["RAISE_VARARGS"]
    return not by_itself and bool(STARTING.intersection(code.co_names))


def _innermost(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback


def pytest_configure(config: pytest.Config) -> None:
    # Workers of pytest-xdist report to their controller, which reports here.
    channel = os.environ.pop(CHANNEL_VARIABLE, None)
    if channel and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Reporter(int(channel), config), "ringfence-reporter")


_LOAD_BY_PATH = """
import importlib.util, os, sys
name, path, folder = channel.receive()
os.chdir(folder)
spec = importlib.util.spec_from_file_location(name, path)
sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[name])
"""


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A worker of pytest-xdist on this machine gets this very file too, before it looks for its name.

    A replacement worker starts when we are in the private directory; it has to look for files where the first one did.
    """
    if node.gateway.spec.popen:
        channel = node.gateway.remote_exec(_LOAD_BY_PATH)
        channel.send((__name__, __file__, str(node.config.invocation_params.dir)))
        channel.waitclose()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Options, conftest files and collection saw the caller's directory; the tests run in one of their own."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        os.makedirs(os.path.expandvars(folder), exist_ok=True)
        os.chdir(os.path.expandvars(folder))


@pytest.hookimpl(hookwrapper=True)
def pytest_report_header(config: pytest.Config) -> Generator[None, Any, None]:
    """Leave the private cache directory out of the header: it has another name in every run."""
    result = yield
    result.force_result([part for part in result.get_result() if not _names_cache(part)])


def _names_cache(part: object) -> bool:
    return isinstance(part, str) and part.startswith("cachedir:")
