"""Runs the same pytest in a sandbox: same arguments, same directory, live output. pytest's reports are carried over;
all other changes of the tests are dropped.

pytest's exit code is trusted as far as ``ringfence test`` trusts it: a test that ends the process does not pass.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import threading
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch

import pytest

from ringfence.checkpoint.transaction import Transaction
from ringfence.engine import boxed_call
from ringfence.engine.run import run, traits_of, transaction_kind
from ringfence.errors import CheckpointError, SandboxError
from ringfence.integrations.pytest_plugin.words import FLAG, INSIDE_VARIABLE, NESTED
from ringfence.model import state_folder
from ringfence.model.job import Job
from ringfence.model.limits import UNLIMITED_OUTPUT
from ringfence.model.outcome import Outcome
from ringfence.model.paths import within
from ringfence.model.policy import SandboxPolicy
from ringfence.model.system_text import escape_controls
from ringfence.model.ways.walk import absolute, itself, real
from ringfence.pytest_runner.hints import hints
from ringfence.pytest_runner.records import parse_records
from ringfence.pytest_runner.result import from_outcome
from ringfence.pytest_runner.runner import GUEST_FOLDER
from ringfence.roles.removal import remove_tree
from ringfence.steps.executor import CHANNEL_FD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.contract import Visit

_CACHE = ".pytest_cache"
"""pytest's default; a project with another one has to do without."""
INTERRUPTED = 2
"""Of pytest."""
_BY_A_SIGNAL = 128
"""Of shells: what is added to the signal's number."""
_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
# A run of tests is long, and has many parts.
_LIMITS = {"wall_time_s": 3600, "cpu_time_s": 4 * 3600, "mem_bytes": 4 * 2**30, "pids_max": 1024, "nofile": 4096}
_PASSED_ON = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "PY_COLORS", "NO_COLOR",
              "FORCE_COLOR", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "COVERAGE_FILE", "COVERAGE_RCFILE", "CI")  # fmt: skip
_INTERACTIVE = {"usepdb": "--pdb", "trace": "--trace"}
_TELLING_ONLY = ("collectonly", "help", "version", "showfixtures", "show_fixtures_per_test", "showmarkers", "markers",
                 "cacheshow", "setupplan")  # fmt: skip
_COVERAGE_REPORTS = {"html": "htmlcov", "xml": "coverage.xml", "json": "coverage.json", "lcov": "coverage.lcov"}


def run_inside(config: pytest.Config, level: str) -> int:
    """The exit code of the whole."""
    _refuse_what_cannot_be(config)
    try:
        policy = _policy(config, level)
        return _run(config, policy)
    except SandboxError as error:
        told = "\n  ".join(filter(None, (str(error), *getattr(error, "fixes", ()), error.hint)))
        raise pytest.UsageError(f"{FLAG}: {escape_controls(told, keep=chr(10))}") from error
    except KeyboardInterrupt:
        _say("interrupted before any test ran")
        return INTERRUPTED


def _refuse_what_cannot_be(config: pytest.Config) -> None:
    given = config.known_args_namespace
    for name, flag in _INTERACTIVE.items():
        if getattr(given, name, False):
            raise pytest.UsageError(f"{flag} needs your terminal inside the sandbox, which tests must not have; "
                                    f"omit {FLAG} or {flag}")  # fmt: skip
    root = str(config.rootpath)
    for name in _early_plugins(config):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and within(real(file), real(root)) and "site-packages" not in file:
            raise pytest.UsageError(f"the project's own plug-in {name} is named by -p and was loaded before {FLAG}, "
                                    "outside of the sandbox; «ringfence test» starts all of pytest inside")  # fmt: skip


def _early_plugins(config: pytest.Config) -> Iterator[str]:
    """Plug-ins named by -p; pytest has imported them before any plug-in of the environment."""
    named = getattr(config.known_args_namespace, "plugins", None) or ()
    return (name for name in named if isinstance(name, str) and not name.startswith("no:"))


def _words(config: pytest.Config) -> Namespace:
    """The arguments of the person who runs pytest. The project's own configuration may set ``addopts`` too, but must
    not choose its policy or what is carried over."""
    own = [*shlex.split(os.environ.get("PYTEST_ADDOPTS", "")), *map(os.fspath, config.invocation_params.args)]
    found: Namespace = config._parser.parse_known_args(own)
    return found


def _policy(config: pytest.Config, level: str) -> SandboxPolicy:
    """The operator's file, or generous limits. The directory of ringfence is shown: its plug-in is loaded inside."""
    file = _words(config).ringfence_policy
    if file:
        from ringfence.model.policy_file import read_policy

        policy = read_policy(file, SandboxPolicy.from_dict, {"isolation": level})
    else:
        policy = SandboxPolicy.from_dict({"isolation": level, **_LIMITS})
    policy = policy.with_changes(output_bytes=UNLIMITED_OUTPUT)
    if not traits_of(policy.isolation).files_apart:
        return policy
    shown = (*policy.readable_paths, *boxed_call.needed_paths(), *_tests_elsewhere(config))
    return policy.with_changes(readable_paths=tuple(dict.fromkeys(shown)))


def _base(config: pytest.Config) -> str:
    """The directory that is worked in: pytest's root, where the current one lies in it."""
    here, root = str(config.invocation_params.dir), str(config.rootpath)
    return real(root if within(here, root) else here)


def _tests_elsewhere(config: pytest.Config) -> Iterator[str]:
    """Tests, or a configuration, that were named and lie in other directories."""
    base = _base(config)
    words = (word.partition("::")[0] for word in map(os.fspath, config.invocation_params.args) if word[:1] != "-")
    named = [absolute(word) for word in words if word and os.path.exists(word)]
    for path in (*named, *filter(None, [str(config.inipath or "")])):
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        if not within(real(folder), base):
            yield folder


def _job(config: pytest.Config, policy: SandboxPolicy) -> Job:
    words = [os.fspath(word) for word in config.invocation_params.args]
    words = [word for word in words if word != FLAG and not word.startswith(f"{FLAG}=")]
    if _is_terminal() and getattr(config.known_args_namespace, "color", "auto") == "auto":
        words.insert(0, "--color=yes")
    start = os.path.join(GUEST_FOLDER, "start.py")
    return Job(argv=(sys.executable, start, "-p", "ringfence_reporter", *words), cwd=str(config.invocation_params.dir),
               environment=_environment(policy), channel=True, stdin=b"")  # fmt: skip


def _is_terminal() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _environment(policy: SandboxPolicy) -> dict[str, str]:
    """The policy's own search path wins over the caller's."""
    asked, kind = policy.environment, NESTED if traits_of(policy.isolation).files_apart else "inside"
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    search = [GUEST_FOLDER, *filter(None, [asked.get("PYTHONPATH", os.environ.get("PYTHONPATH"))])]
    columns = str(shutil.get_terminal_size().columns)
    return {"COLUMNS": columns, **passed, INSIDE_VARIABLE: kind, "PYTHONPATH": os.pathsep.join(search),
            "PYTHONDONTWRITEBYTECODE": "1", "RINGFENCE_CHANNEL": str(CHANNEL_FD)}  # fmt: skip


def _run(config: pytest.Config, policy: SandboxPolicy) -> int:
    job = _job(config, policy)
    with _Signals() as signals:
        if not traits_of(policy.isolation).has_layer:
            outcome = run(job, policy, on_output=_pass_on, attach=signals.attach)
            return _told(config, outcome, signals)
        with _transaction(_base(config), policy) as transaction:
            outcome = run(job, policy, on_output=_pass_on, attach=signals.attach, transaction=transaction)
            _carry_over(transaction, _reports(config))
    return _told(config, outcome, signals)


@contextmanager
def _transaction(base: str, policy: SandboxPolicy) -> Iterator[Transaction]:
    # Its name is chosen first: a signal may come as soon as it is there.
    folder = os.path.join(state_folder.private_place(), f"pytest-{os.urandom(8).hex()}")
    try:
        os.mkdir(folder, 0o700)
        with Transaction.create(os.path.join(folder, "layer"), [base], kind=transaction_kind(policy),
                                hidden=policy.hidden_paths) as transaction:  # fmt: skip
            yield transaction
    finally:
        _remove(folder)


def _remove(folder: str) -> None:
    """What tests wrote is in it: any depth, any mode."""
    try:
        remove_tree(folder)
    except OSError as error:
        _say(f"{folder} could not be removed ({error.strerror}); remove it by hand")


def _pass_on(stream: str, piece: bytes) -> None:
    (sys.stdout if stream == "stdout" else sys.stderr).flush()
    view = memoryview(piece)
    while view:
        view = view[os.write(1 if stream == "stdout" else 2, view) :]


def _told(config: pytest.Config, outcome: Outcome, signals: _Signals) -> int:
    """The exit code, and the reason if pytest has not given one itself."""
    records = parse_records(outcome.message)
    result = from_outcome(outcome, records, hints(outcome, records))
    for hint in result["hints"]:
        _say(hint)
    if signals.ended_by:
        return _BY_A_SIGNAL + signals.ended_by
    if signals.count:
        return INTERRUPTED
    if result["doubt"] and _asked_only_to_be_told(config):
        return outcome.rc
    if result["doubt"] or str(result["status"]) not in ("OK", "FAILED"):
        _say(f"{result['status']}: {result['reason']}")
    return result["rc"]


def _asked_only_to_be_told(config: pytest.Config) -> bool:
    """No session with tests belongs to it then. The project's ``addopts`` can't ask: nobody would run its tests."""
    given = _words(config)
    return any(getattr(given, name, False) for name in _TELLING_ONLY)


def _say(text: str) -> None:
    print(f"ringfence: {escape_controls(text)}", file=sys.stderr)


# ---- what comes out


def _reports(config: pytest.Config) -> list[str]:
    """Where pytest and its plug-ins write for people and for the next run; a pattern may be in the last part."""
    given, here = _words(config), str(config.invocation_params.dir)
    names: list[str] = [*given.ringfence_keep]
    names += [name for option in ("xmlpath", "log_file", "report_log", "htmlpath", "json_report_file")
              if isinstance(name := getattr(given, option, None), str) and name]  # fmt: skip
    if getattr(given, "cov_source", None):
        data = os.environ.get("COVERAGE_FILE") or ".coverage"
        names += [data, f"{data}.*"]
        reports = getattr(given, "cov_report", None) or {}
        names += [str((reports[kind] if isinstance(reports, dict) else None) or place)
                  for kind, place in _COVERAGE_REPORTS.items() if kind in reports]  # fmt: skip
    if config.pluginmanager.hasplugin("cacheprovider"):
        named = [value for word in given.override_ini or () for name, _, value in [word.partition("=")]
                 if name == "cache_dir"]  # fmt: skip
        names.append(os.path.join(str(config.rootpath), named[-1] if named else _CACHE))
    return [os.path.normpath(os.path.join(here, os.path.expanduser(name))) for name in names]


def _carry_over(transaction: Transaction, reports: Iterable[str]) -> None:
    """Carry over reports alone. A link among them would make the next run write elsewhere: it is left behind."""
    places = [itself(place) for place in reports]
    try:
        links = transaction.links()
        chosen = [each.path for each in transaction.changes()
                  if any(within(each.path, place) or fnmatch(each.path, place) for place in places)]  # fmt: skip
        for path in [path for path in chosen if path in links]:
            _say(f"{path} is a link that the tests made; it is not kept")
        chosen = [path for path in chosen if not any(within(path, link) for link in links)]
        if chosen:
            transaction.commit(chosen)
    except CheckpointError as error:
        _say(f"reports are not kept: {error}")


class _Signals:
    """The first Ctrl-C goes to pytest, which sums up what it has so far; the second ends it. What asks us to end, e.g.
    where CI gives a job up, ends it too: then we remove the layer, and end."""

    def __init__(self) -> None:
        self.count = 0
        self.ended_by = 0
        self._visit: Visit | None = None
        self._before: dict[int, object] = {}

    def attach(self, visit: Visit, _: object) -> None:
        self._visit = visit

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._interrupt)
            for number in _ENDING:
                if signal.getsignal(number) != signal.SIG_IGN:  # else it is to outlive that, e.g. by nohup
                    self._before[number] = signal.signal(number, self._end)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _interrupt(self, *_: object) -> None:
        if self._visit is None:
            raise KeyboardInterrupt
        self.count += 1
        self._send(self._visit, signal.SIGINT if self.count == 1 else signal.SIGKILL)

    def _end(self, number: int, _: object) -> None:
        if self._visit is None:
            raise SystemExit(_BY_A_SIGNAL + number)
        self.ended_by = number
        self._send(self._visit, signal.SIGKILL)

    @staticmethod
    def _send(visit: Visit, number: int) -> None:
        if visit.filenos():
            visit.signal(number)
