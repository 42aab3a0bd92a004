"""Runs pytest inside the grader's sandbox and tells how each test ended. It imports nothing of ringfence.

It shares its interpreter with the code under test, so nothing that it says is believed by itself (``pytest_results``).
What lies in the workspace without being run has no effect on it: the interpreter is isolated (``-I``), pytest takes its
options, ``conftest.py`` and plug-ins from the oracle's directory alone, names of the standard library, of pytest and of
the oracle's own helpers are never looked up in the workspace, and compiled files there are not read. """

from __future__ import annotations

import datetime
import json
import os
import sys
import time
import timeit
from hashlib import sha256
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    PathFinder,
    SourceFileLoader,
)

CHANNEL = 3
MAX_NAME_CHARS = 4096
MAX_MESSAGE_CHARS = 300
RUNNER = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup", "tomli", "py")
UTC = datetime.timezone.utc  # noqa: UP017  the interpreter of a task may be an old one
OFF_S = 1e9
"""The deviation of a clock that can't be read any more."""
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from importlib.abc import PathEntryFinder
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType

    import pytest


class Freshly(SourceFileLoader):
    """Compiles the source; a compiled file beside it may hold other code."""

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


class NameFinder:
    """Finds some names in the places that they belong to, and nowhere else."""

    def __init__(self, places: dict[str, list[str]]) -> None:
        self.places = places

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or name not in self.places:
            return None
        spec = PathFinder.find_spec(name, self.places[name])
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return spec


def arrange_imports(workspace: str, oracle: list[str], oracle_names: list[str]) -> None:
    """The workspace comes first for all names but those of the interpreter, the runner and the oracle."""
    trusted = list(sys.path)
    places = dict.fromkeys((*sys.stdlib_module_names, *RUNNER), trusted)
    places |= {name: [*oracle, *trusted] for name in oracle_names}
    just_before = next(place for place, finder in enumerate(sys.meta_path) if finder is PathFinder)
    sys.meta_path.insert(just_before, NameFinder(places))
    fresh = FileFinder.path_hook((ExtensionFileLoader, EXTENSION_SUFFIXES), (Freshly, SOURCE_SUFFIXES))

    def hook(path: str) -> PathEntryFinder:
        if path != workspace and not path.startswith(workspace + "/"):
            raise ImportError(path)
        return fresh(path)

    sys.path_hooks.insert(0, hook)
    sys.path_importer_cache.clear()
    source = os.path.join(workspace, "src")
    sys.path[:0] = [workspace, *([source] if os.path.isdir(source) else []), *oracle]


class Clocks:
    """The clocks before there was code under test, and how far off they are now for the tests.

    A test that measures time trusts the functions in ``time`` and in its own module, and code under test can replace
    these.
    """

    def __init__(self) -> None:
        now = datetime.datetime.now
        self.own: dict[str, Callable[[], float]] = {
            "time": time.time, "time_ns": _seconds(time.time_ns), "monotonic": time.monotonic,
            "monotonic_ns": _seconds(time.monotonic_ns), "perf_counter": time.perf_counter,
            "perf_counter_ns": _seconds(time.perf_counter_ns), "process_time": time.process_time,
            "process_time_ns": _seconds(time.process_time_ns), "default_timer": timeit.default_timer,
            "datetime": lambda: now(UTC).timestamp(),
        }  # fmt: skip
        self.began = time.perf_counter()
        self.off: dict[str, float] = dict.fromkeys(self.own, 0.0)

    def look(self, seen: Mapping[str, object]) -> None:
        """Compare the clocks in a module, and in modules that it refers to."""
        for name, read in _readable(seen, self.own):
            least = self.own[name]()
            try:
                told = read()
                off = max(least - told, told - self.own[name](), 0.0)
            except Exception:
                off = OFF_S
            self.off[name] = max(self.off[name], min(off, OFF_S) if off == off else OFF_S)

    def lived_s(self) -> float:
        return round(self.own["perf_counter"]() - self.began, 6)


def _seconds(read: Callable[[], int]) -> Callable[[], float]:
    return lambda: read() / 1e9


def _readable(seen: Mapping[str, object], names: Mapping[str, object]) -> Iterator[tuple[str, Callable[[], float]]]:
    """Every way to read each clock: by its own name, or as a member of ``time``, ``timeit`` and ``datetime``."""
    for holder in (seen, _members(seen.get("time")), _members(seen.get("timeit"))):
        for name in names.keys() & holder.keys() - {"datetime"}:
            if callable(read := holder[name]):
                yield name, _seconds(read) if name.endswith("_ns") else read
    kind = seen.get("datetime")
    kind = getattr(kind, "datetime", kind)
    if hasattr(kind, "now"):
        yield "datetime", lambda: kind.now(UTC).timestamp()


def _members(module: object) -> Mapping[str, object]:
    return getattr(module, "__dict__", {})


class Reporter:
    """Writes one JSON object a line: how a test ended, what could not be collected, how the clocks went."""

    def __init__(self, write: Callable[[int, bytes], int] = os.write) -> None:
        self.write = write
        self.reports: dict[str, list[pytest.TestReport]] = {}
        self.clocks = Clocks()
        self.modules: dict[str, Mapping[str, object]] = {}

    def tell_clocks(self) -> None:
        for name, off in self.clocks.off.items():
            self.tell(clock=name, off_s=round(off, 6), lived_s=self.clocks.lived_s())

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self.modules[item.nodeid] = _members(getattr(item, "module", None))

    def tell(self, **record: object) -> None:
        text = json.dumps(record).encode() + b"\n"
        while text:
            text = text[self.write(CHANNEL, text) :]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self.tell(uncollected=short(report.nodeid), outcome=report.outcome, message=message_of(report))

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        for item in items:
            self.tell(deselected=short(item.nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.setdefault(report.nodeid, []).append(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        reports = self.reports.pop(nodeid, [])
        self.clocks.look(sys.modules)
        self.clocks.look(self.modules.get(nodeid, {}))
        if reports:
            took = round(sum(report.duration for report in reports if hasattr(report, "duration")), 6)
            failed = [report for report in reports if report.failed]
            message = message_of(failed[0]) if failed else ""
            self.tell(test=short(nodeid), outcome=outcome_of(reports), duration_s=took, message=message)


def short(name: str) -> str:
    """Shorten a name of any length, and keep it unique: a case may be named by thousands of characters."""
    if len(name) <= MAX_NAME_CHARS:
        return name
    return f"{name[: MAX_NAME_CHARS - 65]}~{sha256(name.encode('utf-8', 'backslashreplace')).hexdigest()}"


def outcome_of(reports: Sequence[pytest.TestReport]) -> str:
    """One word for set-up, call and tear-down together."""
    if any(report.failed for report in reports):
        return "failed" if any(report.failed and report.when == "call" for report in reports) else "error"
    if any(report.skipped for report in reports):
        return "xfailed" if any(hasattr(report, "wasxfail") for report in reports) else "skipped"
    if not any(report.when == "call" for report in reports):
        return "error"
    return "xpassed" if any(hasattr(report, "wasxfail") for report in reports) else "passed"


def message_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The first words of what went wrong, for people."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = getattr(crash, "message", None) or str(report.longrepr or "")
    return text.strip().partition("\n")[0][:MAX_MESSAGE_CHARS]


def main() -> None:
    settings = json.loads(sys.argv[1])
    os.set_inheritable(CHANNEL, False)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    sys.argv[1:] = []
    sys.dont_write_bytecode = True
    reporter = Reporter()
    try:
        import pytest
    except ModuleNotFoundError:
        reporter.tell(missing="pytest")
        os._exit(4)
    oracle = settings["oracle"]
    arrange_imports(settings["workspace"], settings["places"], settings["names"])
    status = int(pytest.main([
        "-c", settings["ini"], "--rootdir", oracle, "--confcutdir", oracle, "--import-mode=importlib",
        "-p", "no:cacheprovider", "--assert=plain", "--tb=no", "-q", "--maxfail=0", "--continue-on-collection-errors",
        *settings["files"],
    ], plugins=[reporter]))  # fmt: skip
    reporter.tell_clocks()
    reporter.tell(finished=status)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(status)  # exit handlers of the interpreter must not change the exit status


if __name__ == "__main__":
    main()
