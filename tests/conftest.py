"""What every test may use: measuring inside the spawner, and no skipped test where one could run."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, settings

from tests import chosen, lines, measured, over_a_second, thinning
from tests.testable import is_untestable

ROOT = Path(__file__).resolve().parent.parent
# Whoever starts the tests in the background has them ignore these, and all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
for _signal in ("SIGQUIT", "SIGHUP"):
    if hasattr(signal, _signal):
        signal.signal(getattr(signal, _signal), signal.SIG_DFL)
# Commands choose the environment that is active, and tests mean the one that they run in.
for _name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
    os.environ.pop(_name, None)
# No test asserts a time: the machine may be busy.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Where another pass asks for all examples, this one needs some of them (tests/run.py).
settings.register_profile("short", settings.get_profile("patient"), max_examples=20)
settings.load_profile("short" if "RINGFENCE_FEW_EXAMPLES" in os.environ else "patient")
if "RINGFENCE_FEW_EXAMPLES" in os.environ:
    # Thousands of tests and trees of source stay: to look through them again and again takes a tenth of a quick pass.
    gc.set_threshold(50_000, 20, 100)


@pytest.fixture(scope="session", autouse=True)
def _measure_what_is_started() -> Iterator[None]:
    """The spawner and the gateway start without site-packages and without variables; have them measured too."""
    if measured.FOLDER not in os.environ:
        yield
        return
    from ringfence.egress import client
    from ringfence.roles import spawner
    from tests.no_spawner import end_spawner

    file = measured.for_what_is_started(os.environ.get("PYTEST_XDIST_WORKER", "main"))
    start = f"import os; os.environ[{lines.VARIABLE!r}] = {file!r}; exec({measured.STARTED!r}); "
    for module in (spawner, client):
        module._BOOT = start.replace("{", "{{").replace("}", "}}") + module._BOOT  # type: ignore[attr-defined]
    yield
    end_spawner()


@pytest.fixture(scope="session")
def docker_address(folder_of_all_workers: Path) -> Iterator[str]:
    """A real Docker daemon, the same for all workers; its programs are found by ``DOCKER_HOST``."""
    from tests import container_engine

    with container_engine.shared(folder_of_all_workers) as address:
        yield address


@pytest.fixture
def container_client(docker_address: str, python_image: str) -> Iterator[object]:
    """A client of that daemon, which has an image with a Python; a container that the test leaves behind fails it."""
    from ringfence.container import orphans
    from ringfence.container.api import connect

    client = connect(docker_address)
    yield client
    left = [each.name for each in client.list(orphans.OWNER) if each.labels[orphans.OWNER] == orphans.owner()]
    client.close()
    assert left == [], "a container was left behind"


@pytest.fixture(scope="session")
def python_image(docker_address: str, folder_of_all_workers: Path) -> str:
    """The name of an image with a Python in it, which that daemon has."""
    from tests import container_image

    return container_image.imported(folder_of_all_workers)


@pytest.fixture(scope="session")
def folder_of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for all workers of a session: what they share is locked by a file in it."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base


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
def _own_noted_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Directories that a test has noted as ours stay on the disk with it; to hide them all from each sandbox of
    thousands of tests would take longer and longer. What others have noted meanwhile stays: workers share the place."""
    from ringfence.model.own import noted_roots, private_place
    from ringfence.model.paths import within
    from ringfence.model.state_folder import state_folder

    base = os.path.realpath(tmp_path_factory.getbasetemp())
    before = {place: noted_roots.noted(place) for place in (state_folder(), private_place.path())}
    yield
    for place, known in before.items():
        new = [path for path in noted_roots.noted(place) if path not in known and within(path, base)]
        if new:
            noted_roots.forget(place, new)


@pytest.fixture(autouse=True)
def _same_folder_afterwards() -> Iterator[None]:
    """A test that leaves the process in another directory is noticed here, not in the test after it."""
    before = os.getcwd()
    yield
    after = os.getcwd()
    os.chdir(before)
    assert after == before, f"the test left the current directory at {after}"


_ENDINGS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name))


@pytest.fixture(autouse=True)
def _same_signals_afterwards() -> Iterator[None]:
    """What a test leaves ignored is ignored by all that later ones start, e.g. by a git that ends its filters so."""
    before = list(map(signal.getsignal, _ENDINGS))
    yield
    after = list(map(signal.getsignal, _ENDINGS))
    for number, handler in zip(_ENDINGS, before, strict=True):
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)
    assert after == before, f"the test left other handlers of signals: {after}"


@pytest.fixture
def unmeasured_spawner(_measure_what_is_started: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The spawner as users have it: for tests of many runs, each of which would write a coverage file."""
    from ringfence.roles import spawner
    from tests.no_spawner import end_spawner

    end_spawner()
    boot = spawner._BOOT
    monkeypatch.setattr(spawner, "_BOOT", boot[boot.rindex("import sys; sys.path.insert") :])
    yield
    end_spawner()


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is started is not measured: coverage says on stderr that it can't write its file in a sandbox."""
    for name in [name for name in os.environ if name.startswith(("COVERAGE_", lines.VARIABLE))]:
        monkeypatch.delenv(name)


@pytest.fixture
def ringfence_command() -> list[str]:
    """The command line of this very interpreter; -P: without it a test's directory could replace the package."""
    return [sys.executable, "-P", "-m", "ringfence"]


LONG_SUITE_S, SLOWEST = 300, 40
HANGS_S = float(os.environ.get("RINGFENCE_TEST_HANGS_S", 900))
"""A test that takes longer ends its worker, which tells where it stood; else one that hangs would hold all the rest."""
_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec"})


class _Purity:
    held = False
    """While a test runs that is not marked ``system``."""
    watched_until = 0.0
    """When the process is ended unless another test has begun; on the clock of ``time.monotonic``."""


def _refuse_to_start(event: str, _: tuple[object, ...]) -> None:
    if _Purity.held and event in _STARTS:
        _Purity.held = False  # what reports this may start something
        raise AssertionError(f"a pure test starts a process ({event}): mark it with pytest.mark.system")


sys.addaudithook(_refuse_to_start)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test in tests/unit starts nothing unless it says so: ``make quick`` rests on that."""
    _Purity.held = chosen.is_pure(item)
    _watch(item)
    yield
    _Purity.held = False


def _watch(item: pytest.Item) -> None:
    """Not anew for each test: to end the thread that watches takes longer than most tests, most of all under load."""
    now = time.monotonic()
    if item.get_closest_marker("guest"):
        faulthandler.cancel_dump_traceback_later()
        _Purity.watched_until = 0.0
    elif now + HANGS_S > _Purity.watched_until:
        _Purity.watched_until = now + HANGS_S * 1.1
        file = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(HANGS_S * 1.1, exit=True, file=file)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Read no file that this pass has no test in."""
    return True if chosen.is_left_out(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes root to prepare is root's alone, and no check that anybody else could run."""
    thinning.apply(items)
    over_a_second.apply(items)
    for item in filter(chosen.is_pure, items):
        item.add_marker("pure")
    out_of_reach = [item for item in items if item.get_closest_marker("root") and os.geteuid() != 0]
    left_out = out_of_reach + (_repeated(items) if measured.FOLDER in os.environ else [])
    config.hook.pytest_deselected(items=left_out)
    left = set(left_out)
    items[:] = [item for item in items if item not in left]


def pytest_collection_finish() -> None:
    """Thousands of tests stay until the end: no need to look through them again and again for garbage."""
    gc.collect()
    gc.freeze()


def _repeated(items: list[pytest.Item]) -> list[pytest.Item]:
    """All cases of each test but the last: more of them cover hardly another line."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return [item for each in cases.values() for item in each[:-1]]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which files take longest in all: a suite has a budget, and single tests do not show where it goes."""
    spent: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in (each for each in reports if isinstance(each, pytest.TestReport)):
            name = report.nodeid.partition("::")[0]
            spent[name] = spent.get(name, 0.0) + report.duration
    if sum(spent.values()) > LONG_SUITE_S:
        terminalreporter.section("slowest files")
        for name in sorted(spent, key=spent.__getitem__, reverse=True)[:SLOWEST]:
            terminalreporter.write_line(f"{spent[name]:7.0f}s {name}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A skipped test proves nothing: with the switch on it is a failure."""
    faulthandler.cancel_dump_traceback_later()
    if not os.environ.get("RINGFENCE_NO_SKIPS") or hasattr(session.config, "workerinput"):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if reporter else []
    skipped = [report for report in reports if not is_untestable(report)]
    if skipped:
        reporter.write_line(f"{len(skipped)} skipped, and RINGFENCE_NO_SKIPS is set: that is a failure", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
