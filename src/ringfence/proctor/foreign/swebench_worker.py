"""Runs a repository's own tests inside the grader's sandbox and tells how each ended. It imports nothing of ringfence.

It runs on the interpreter that the repository needs, which may be a Python 3.5: no newer syntax here. It shares that
interpreter with the code under test, so nothing that it says is believed by itself (``pytest_results``). Names of the
standard library and of the runner are never looked up in the repository, unless the repository is the runner.
"""

import builtins
import json
import os
import runpy
import sys
import time
import unittest
from hashlib import sha256
from importlib.machinery import PathFinder

CHANNEL = 3
MAX_NAME_CHARS = 4096
MAX_MESSAGE_CHARS = 300
RUNNER = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup", "tomli", "py")
NOT_FOUND = getattr(builtins, "ModuleNotFoundError", ImportError)  # type: type[ImportError]
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    import pytest


# ---- what is imported from where


class InterpreterFinder:
    """Finds some names where the interpreter has them, and nowhere else."""

    def __init__(self, names: "Iterable[str]", places: "list[str]") -> None:
        self.names, self.places = frozenset(names), places

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if path is not None or name not in self.names:
            return None
        spec = PathFinder.find_spec(name, self.places)
        if spec is None:
            raise NOT_FOUND("No module named " + repr(name), name=name)
        return spec


def standard_names() -> "set[str]":
    """Names of the standard library; an older Python does not list them."""
    listed = getattr(sys, "stdlib_module_names", None)
    if listed is not None:
        return set(listed)
    library = os.path.dirname(os.__file__)
    found = set(sys.builtin_module_names)
    for folder in (library, os.path.join(library, "lib-dynload")):
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            found.add(name.partition(".")[0])
    return found - {"site-packages", "dist-packages", "__pycache__", "test", "tests"}


def arrange_imports(workspace: str, sources: "Sequence[str]", own: "Sequence[str]") -> None:
    """The repository comes first for all names but those of the interpreter and the runner."""
    guarded = (standard_names() | set(RUNNER)) - set(own)
    place = next(number for number, finder in enumerate(sys.meta_path) if finder is PathFinder)
    sys.meta_path.insert(place, InterpreterFinder(guarded, list(sys.path)))
    folders = [os.path.normpath(os.path.join(workspace, each)) for each in sources]
    sys.path[:0] = [each for each in folders if os.path.isdir(each)]
    os.environ["PYTHONPATH"] = os.pathsep.join(folders)  # of programs that tests start
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", os.defpath)


# ---- what is told


class Teller:
    """Writes one JSON object a line."""

    def __init__(self, describes: bool) -> None:
        self.describes = describes
        self.bad = False
        self.told = set()  # type: set[str]

    def tell(self, **record: object) -> None:
        text = json.dumps(record).encode() + b"\n"
        while text:
            text = text[os.write(CHANNEL, text) :]

    def test(self, name: str, outcome: str, took_s: float, message: str = "", label: str = "") -> None:
        if name in self.told:
            return  # a runner that tries again
        self.told.add(name)
        self.bad = self.bad or outcome in ("failed", "error")
        words = label if self.describes and label else message.strip().partition("\n")[0][:MAX_MESSAGE_CHARS]
        self.tell(test=short(name), outcome=outcome, duration_s=round(max(took_s, 0.0), 6), message=words)

    def uncollected(self, name: str, outcome: str, message: str) -> None:
        self.bad = self.bad or outcome == "failed"
        words = message.strip().rpartition("\n")[2][:MAX_MESSAGE_CHARS]
        self.tell(uncollected=short(name), outcome=outcome, message=words)


def short(name: str) -> str:
    """Shorten a name of any length, and keep it unique."""
    if len(name) <= MAX_NAME_CHARS:
        return name
    return name[: MAX_NAME_CHARS - 65] + "~" + sha256(name.encode("utf-8", "backslashreplace")).hexdigest()


# ---- pytest


class PytestReporter:
    """A plug-in of pytest, of any version."""

    def __init__(self, teller: Teller) -> None:
        self.teller = teller
        self.reports = {}  # type: dict[str, list[pytest.TestReport]]

    def pytest_collectreport(self, report: "pytest.CollectReport") -> None:
        if not report.passed:
            self.teller.uncollected(report.nodeid, report.outcome, message_of(report))

    def pytest_deselected(self, items: "Sequence[pytest.Item]") -> None:
        for item in items:
            self.teller.tell(deselected=short(item.nodeid))

    def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
        self.reports.setdefault(report.nodeid, []).append(report)
        if report.when == "teardown":
            reports = self.reports.pop(report.nodeid)
            failed = [each for each in reports if each.failed]
            took_s = sum(getattr(each, "duration", 0.0) for each in reports)
            self.teller.test(report.nodeid, outcome_of(reports), took_s, message_of(failed[0]) if failed else "")


def outcome_of(reports: "Sequence[pytest.TestReport]") -> str:
    """One word for set-up, call and tear-down together."""
    failed = [each.when for each in reports if each.failed]
    expected = any(hasattr(each, "wasxfail") for each in reports)
    if failed:
        return "failed" if "call" in failed else "error"
    if any(each.skipped for each in reports):
        return "xfailed" if expected else "skipped"
    if not any(each.when == "call" for each in reports):
        return "error"
    return "xpassed" if expected else "passed"


def message_of(report: "Any") -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return getattr(crash, "message", None) or str(report.longrepr or "")


def run_pytest(settings: "dict[str, Any]", teller: Teller) -> int:
    try:
        import pytest
    except ImportError as error:
        if error.name != "pytest":
            raise
        teller.tell(missing="pytest")
        return 4
    words = ["--rootdir", settings["workspace"], "--tb=no", "-q", "--maxfail=0", "--continue-on-collection-errors"]
    return int(pytest.main(words + settings["arguments"] + settings["files"], plugins=[PytestReporter(teller)]))


# ---- Django, whose runner is unittest's


class UnittestReporter:
    """Listens to every result of unittest: each class of results calls the first one."""

    def __init__(self, teller: Teller, workspace: str) -> None:
        self.teller, self.workspace = teller, workspace
        self.outcomes = {}  # type: dict[int, tuple[str, str]]
        self.began = {}  # type: dict[int, float]

    def install(self) -> None:
        ends = {"addSuccess": "passed", "addFailure": "failed", "addError": "error", "addSkip": "skipped",
                "addExpectedFailure": "xfailed", "addUnexpectedSuccess": "failed"}  # fmt: skip
        for name, outcome in ends.items():
            self._listen(name, lambda test, details, outcome=outcome: self.note(test, outcome, details))
        self._listen("addSubTest", lambda test, details: self.note_part(test, details))
        self._listen("startTest", lambda test, details: self.began.__setitem__(id(test), time.time()))
        self._listen("stopTest", lambda test, details: self.finish(test))

    def _listen(self, name: str, listener: "Any") -> None:
        plain = getattr(unittest.TestResult, name)

        def listening(result: "Any", test: "Any", *details: object) -> object:
            returned = plain(result, test, *details)
            listener(test, details)
            return returned

        setattr(unittest.TestResult, name, listening)

    def note(self, test: "Any", outcome: str, details: "Sequence[Any]") -> None:
        words = str(details[0][1]) if details and isinstance(details[0], tuple) else ""
        if not hasattr(test, "_testMethodName") or type(test).__module__ == "unittest.loader":
            self.teller.uncollected(str(test), "failed" if outcome != "skipped" else "skipped", words)
            return
        before = self.outcomes.get(id(test), ("", ""))
        if before[0] not in ("failed", "error"):
            self.outcomes[id(test)] = outcome, words
        if id(test) not in self.began:
            self.finish(test)

    def note_part(self, test: "Any", details: "Sequence[Any]") -> None:
        if len(details) > 1 and details[1] is not None:
            self.note(test, "failed", details[1:])

    def finish(self, test: "Any") -> None:
        if type(test).__module__ == "unittest.loader":
            return
        outcome, words = self.outcomes.pop(id(test), ("error", "it has no result"))
        took_s = time.time() - self.began.pop(id(test), time.time())
        label = str(test) + "\n" + (test.shortDescription() or "")
        self.teller.test(self.name_of(test), outcome, took_s, words, label)

    def name_of(self, test: "Any") -> str:
        """``file::Class::method``, as pytest would call it."""
        kind = type(test)
        path = getattr(sys.modules.get(kind.__module__), "__file__", None) or kind.__module__
        if os.path.isabs(path):
            path = os.path.relpath(path, self.workspace)
        return "::".join([path, *kind.__qualname__.split("."), test._testMethodName])


def run_django(settings: "dict[str, Any]", teller: Teller) -> int:
    UnittestReporter(teller, settings["workspace"]).install()
    with open("tests/runtests.py", encoding="utf-8") as file:
        known = file.read()
    words = settings["arguments"]
    if "--parallel" in words and "--parallel" not in known:  # before Django 1.9
        place = words.index("--parallel")
        words = words[:place] + words[place + 2 :]
    return run_script("tests/runtests.py", ["--verbosity", "2"] + words + settings["files"])


def run_script(path: str, words: "Sequence[str]") -> int:
    """Run it as its shebang says; return the exit status."""
    sys.argv = [path, *words]
    sys.path.insert(0, os.path.abspath(os.path.dirname(path)))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    return 0


# ---- SymPy, which has a runner of its own


class SympyReporter:
    """Listens to the class that prints the results."""

    def __init__(self, teller: Teller, workspace: str) -> None:
        self.teller, self.workspace = teller, workspace
        self.path = self.function = ""
        self.began = 0.0

    def install(self, module: "Any") -> None:
        ends = {"test_pass": "passed", "test_xfail": "xfailed", "test_xpass": "xpassed", "test_fail": "failed",
                "test_exception": "error", "test_skip": "skipped"}  # fmt: skip
        reporter = module.PyTestReporter
        for name, outcome in ends.items():
            self._listen(reporter, name, lambda details, outcome=outcome: self.end(outcome, details))
        self._listen(reporter, "entering_filename", lambda details: self.enter_file(str(details[0])))
        self._listen(reporter, "entering_test", lambda details: self.enter(details[0]))
        self._listen(reporter, "import_error", lambda details: self.broken(str(details[0]), details))
        module.run_in_subprocess_with_hash_randomization = lambda *words, **more: False

    def _listen(self, reporter: "Any", name: str, listener: "Any") -> None:
        plain = getattr(reporter, name, None)
        if plain is None:
            return

        def listening(self: "Any", *details: object, **more: object) -> object:
            listener(details)
            return plain(self, *details, **more)

        setattr(reporter, name, listening)

    def enter_file(self, path: str) -> None:
        self.path = os.path.relpath(path, self.workspace) if os.path.isabs(path) else path

    def enter(self, function: "Any") -> None:
        self.function, self.began = function.__name__, time.time()

    def end(self, outcome: str, details: "Sequence[Any]") -> None:
        words = str(details[0][1]) if details and isinstance(details[0], tuple) else ""
        self.teller.test(self.path + "::" + self.function, outcome, time.time() - self.began, words)

    def broken(self, path: str, details: "Sequence[Any]") -> None:
        self.enter_file(path)
        self.teller.uncollected(self.path, "failed", str(details[1][1]) if len(details) > 1 else "")


def run_sympy(settings: "dict[str, Any]", teller: Teller) -> int:
    from importlib import import_module

    os.environ["SYMPY_USE_CACHE"] = "no" if "-C" in settings["arguments"] else "yes"
    try:
        module = import_module("sympy.testing.runtests")
    except ImportError:
        module = import_module("sympy.utilities.runtests")
    SympyReporter(teller, settings["workspace"]).install(module)
    return run_script("bin/test", settings["arguments"] + settings["files"])


RUNNERS = {"pytest": run_pytest, "django": run_django, "sympy": run_sympy}


def main() -> None:
    settings = json.loads(sys.argv[1])
    os.set_inheritable(CHANNEL, False)
    sys.argv[1:] = []
    sys.dont_write_bytecode = True
    os.chdir(settings["workspace"])
    teller = Teller(settings["describes"])
    arrange_imports(settings["workspace"], settings["sources"], settings["own"])
    status = RUNNERS[settings["runner"]](settings, teller)
    if status in (0, 1):
        status = int(teller.bad)  # a runner may have reasons of its own, such as coverage
    teller.tell(finished=status)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(status)  # exit handlers of the interpreter must not change the exit status


if __name__ == "__main__":
    main()
