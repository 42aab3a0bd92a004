"""What every test may use: measuring inside the spawner, and no skipped test where one could run."""

from __future__ import annotations

import os
import signal
import site
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import measured
from tests.testable import is_untestable

ROOT = Path(__file__).resolve().parent.parent
UNIT = ROOT / "tests" / "unit"
# Whoever starts the tests in the background has them ignore both, and all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGQUIT"):
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
# No test asserts a time: the machine may be busy.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
# Coverage has whatever a measured process becomes measured too. Programs in a sandbox are none of ours, and what
# coverage would say when its file can't be written there is in their output.
_HANDS_NOTHING_ON = """
plain = os.execve
def execve(path, arguments, environment):
    environment.pop('COVERAGE_PROCESS_CONFIG', None)
    plain(path, arguments, environment)
os.execve = execve
"""


@pytest.fixture(scope="session", autouse=True)
def _measure_the_spawner() -> Iterator[None]:
    """The spawner starts without site-packages and so without coverage; give it both while measuring."""
    config = os.environ.get("COVERAGE_PROCESS_START")
    if not config:
        yield
        return
    from ringfence.posix import spawner

    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    os.environ["COVERAGE_FILE"] = measured.own_file(worker)

    start = (
        f"import sys, os; sys.path += {site.getsitepackages()!r}; {_HANDS_NOTHING_ON}"
        f"os.environ['COVERAGE_PROCESS_START'] = {config!r}; "
        f"os.environ['COVERAGE_FILE'] = {os.environ['COVERAGE_FILE']!r}; "
        "import coverage; coverage.process_startup(); "
    )
    before = spawner._BOOT
    spawner._BOOT = start + before
    yield
    spawner.shutdown()
    spawner._BOOT = before


@pytest.fixture(scope="session", autouse=True)
def _own_state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What commands keep for later is not kept in the home of who runs the tests."""
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    yield
    if before is None:
        del os.environ["XDG_STATE_HOME"]
    else:
        os.environ["XDG_STATE_HOME"] = before


@pytest.fixture(autouse=True)
def _same_folder_afterwards() -> Iterator[None]:
    """A test that leaves the process in another folder is noticed here, not in the test after it."""
    before = os.getcwd()
    yield
    after = os.getcwd()
    os.chdir(before)
    assert after == before, f"the test left the current folder at {after}"


@pytest.fixture
def unmeasured_spawner(_measure_the_spawner: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The spawner as users have it: for tests of many runs, each of which would write a coverage file."""
    from ringfence.posix import spawner

    spawner.shutdown()
    boot = spawner._BOOT
    monkeypatch.setattr(spawner, "_BOOT", boot[boot.rindex("import sys; sys.path.insert") :])
    yield
    spawner.shutdown()


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is started is not measured: coverage says on stderr that it can't write its file in a sandbox."""
    for name in [name for name in os.environ if name.startswith("COVERAGE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def ringfence_command() -> list[str]:
    """The command line of this very interpreter; -P: without it a test's folder could replace the package."""
    return [sys.executable, "-P", "-m", "ringfence"]


_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec"})


class _Purity:
    held = False
    """While a test runs that is not marked ``system``."""


def _refuse_to_start(event: str, _: tuple[object, ...]) -> None:
    if _Purity.held and event in _STARTS:
        _Purity.held = False  # what reports this may start something
        raise AssertionError(f"a pure test starts a process ({event}): mark it with pytest.mark.system")


sys.addaudithook(_refuse_to_start)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test in tests/unit starts nothing unless it says so: ``make quick`` rests on that."""
    _Purity.held = UNIT in item.path.parents and not item.get_closest_marker("system")
    yield
    _Purity.held = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes root to prepare is root's alone, and no check that anybody else could run."""
    out_of_reach = [item for item in items if item.get_closest_marker("root") and os.geteuid() != 0]
    config.hook.pytest_deselected(items=out_of_reach)
    items[:] = [item for item in items if item not in out_of_reach]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A skipped test proves nothing: with the switch on it is a failure."""
    if not os.environ.get("RINGFENCE_NO_SKIPS") or hasattr(session.config, "workerinput"):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if reporter else []
    skipped = [report for report in reports if not is_untestable(report)]
    if skipped:
        reporter.write_line(f"{len(skipped)} skipped, and RINGFENCE_NO_SKIPS is set: that is a failure", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
