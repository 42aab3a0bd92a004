"""``make quick``, ``make test``, ``make test-all``, ``make soak``: which tests run, as whom, and in which order.

Markers choose the tests (pyproject.toml lists them). Every command ends with an error when a test fails, when one is
skipped that could have run here, or when coverage is below what is promised. ``test`` is the gate: what fails there is
run once more, alone (tests/second_runs.py). Elsewhere nothing is tried a second time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests import chosen, framework_environment, measured, noted, ordinary_user, packages, second_runs, shared_host
from tests.second_runs import Pass

ROOT = Path(__file__).resolve().parent.parent
NO_SKIPS = {"RINGFENCE_NO_SKIPS": "1"}
FEW_EXAMPLES = {"RINGFENCE_FEW_EXAMPLES": "1"}
"""Of properties: for passes whose tests another pass runs with all of them."""
STARTED = time.monotonic()
# Most tests wait for something: more workers than cores end sooner. The order must not matter anyway.
WORKERS = (os.cpu_count() or 1) + 4
LATER = "not long and not guest and not soak"
GATE = f"{LATER} and not over_a_second and not unsteady"
EVERYTHING = "not guest and not soak"
GUESTS = "guest and not soak"
HANGS_S = "240"
"""In the gate, with all that a test prepares: the longest takes a few seconds, under load a minute."""


def quick() -> int:
    """Pure tests: nothing is started, and a hook in conftest.py holds that."""
    return _red(_pure(f"not slow and {GATE}", [sys.executable], FEW_EXAMPLES))


def test() -> int:
    """The gate: what a change can break on this host, as the caller and, when that is root, as an ordinary user."""
    if os.name != "posix":
        return quick()
    packages.install(packages.of_the_gate())
    framework_environment.packages_of("mcp")
    os.environ.setdefault("RINGFENCE_TEST_HANGS_S", HANGS_S)
    with ordinary_user.prepared() as user, shared_host.fuse_for_everybody():
        # What succeeds without a sandbox is no other thing for an ordinary user: root shows it.
        passes = _by_caller(GATE) + _as_user(user, f"{GATE} and not control")
        _say("what failed, once more and alone")
        judged = second_runs.judge(passes)
    return second_runs.tell(judged, _minutes(time.monotonic() - STARTED))


def test_all(parts: Sequence[str] = ()) -> int:
    """Every test but the soak, none a second time; guest kernels, other people's suites, benches once, coverage.

    ``parts``: only these of them, one after the other: ``caller``, ``user``, ``coverage``, ``guests``.
    """
    packages.install()
    if parts:
        return max(PARTS[part]() for part in parts)
    # Guest kernels keep one processor busy for minutes and wait for nobody.
    with _in_the_background(["tests/hosts", "-m", GUESTS]) as guests:
        failed = max(PARTS[part]() for part in ("caller", "user", "coverage"))
        return failed | guests("guest kernels, beside all the others").code


def _all_of_the_caller() -> int:
    with shared_host.fuse_for_everybody():
        return _red(_by_caller(EVERYTHING))


def _all_of_the_user() -> int:
    with ordinary_user.prepared() as user, shared_host.fuse_for_everybody():
        return _red(_as_user(user, EVERYTHING))


def _all_guests() -> int:
    with _in_the_background(["tests/hosts", "-m", GUESTS]) as guests:
        return guests("guest kernels").code


def _by_caller(marks: str) -> list[Pass]:
    """The pure tests, and those that start something."""
    chooses = ["tests", "-m", f"not pure and {marks}"]
    pure = _pure(marks, [sys.executable], {})
    return [*pure, _pytest(_as_caller(), [sys.executable], ROOT, chooses, **{chosen.VARIABLE: chosen.SYSTEM})]


def _red(passes: Sequence[Pass]) -> int:
    return max((each.code for each in passes), default=0)


def soak() -> int:
    """Every test there is, with RINGFENCE_LONG: whole corpora and many more sequences. Hours; ``all`` runs a part."""
    os.environ["RINGFENCE_LONG"] = "1"
    with ordinary_user.prepared() as user, shared_host.fuse_for_everybody():
        passes = [_pytest(f"{_as_caller()}: soak", [sys.executable], ROOT, ["tests"])]
        return _red(passes + _as_user(user, "not guest"))


def unsteady() -> int:
    """Which tests passed only the second time in earlier runs of the gate, and how often."""
    return second_runs.history()


def user(arguments: Sequence[str]) -> int:
    """Some tests as an ordinary user, for whoever is root: ``python -m tests.run user tests/escape -k fork``."""
    if os.geteuid() != 0:
        return subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=ROOT, check=False).returncode
    with ordinary_user.prepared() as prepared:
        place = prepared()
        command = [*place.python, "-m", "pytest", place.base, *arguments]
        return subprocess.run(command, cwd=place.project, check=False).returncode


def coverage() -> int:
    """The measured pass alone."""
    return _measure()


COMMANDS: dict[str, Callable[[], int]] = {
    "quick": quick, "test": test, "soak": soak, "coverage": coverage, "unsteady": unsteady,
}  # fmt: skip
PARTS: dict[str, Callable[[], int]] = {
    "caller": _all_of_the_caller, "user": _all_of_the_user, "coverage": coverage, "guests": _all_guests,
}  # fmt: skip
"""Of ``all``."""
WITH_WORDS: dict[str, Callable[[Sequence[str]], int]] = {"all": test_all, "user": user}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.run", description=__doc__)
    parser.add_argument("command", choices=[*COMMANDS, *WITH_WORDS])
    given, rest = parser.parse_known_args(arguments)
    strange = [word for word in rest if word not in PARTS] if given.command == "all" else []
    if strange:
        parser.error(f"{strange[0]} is not a part of all; those are {', '.join(PARTS)}")
    _open_standard_streams()
    clean_up_when_ended()
    # Else each of some thousand processes compiles the whole package, and each worker all tests.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    name = given.command
    code = WITH_WORDS[name](rest) if name in WITH_WORDS else COMMANDS[name]()
    _say(f"{given.command}: {'failed' if code else 'passed'} after {_minutes(time.monotonic() - STARTED)}")
    return 1 if code else 0


def clean_up_when_ended() -> None:
    """As after Ctrl-C: by SIGTERM alone nothing that was made for a pass would be removed."""
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))


def _open_standard_streams() -> None:
    """Whoever starts the tests may have closed them, and the next file to be opened would be taken for one."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)


def _as_caller() -> str:
    return f"tests as uid {os.geteuid()}"


def _say(text: str) -> None:
    print(f"\n── {text}", flush=True)


def _minutes(seconds: float) -> str:
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def _pytest(title: str, python: Sequence[str], folder: Path, arguments: Sequence[str], **environment: str) -> Pass:
    """One pass, many tests at a time."""
    _say(title)
    started = time.monotonic()
    beside = ["-n", str(WORKERS), "--dist", "worksteal"]
    command, variables = [*python, "-m", "pytest", "-q", "-p", "no:cacheprovider"], os.environ | NO_SKIPS | environment
    if not any((folder / "tests" / "doors" / "__pycache__").glob("*-pytest-*.pyc")):
        # In a fresh clone each worker would compile all tests, since they begin at the same time.
        once = [*command, "--collect-only", *arguments]
        subprocess.run(once, cwd=folder, env=variables, stdout=subprocess.DEVNULL, check=False)
    with noted.file() as notes:
        telling = ["-p", "tests.noted", "--notes", str(notes), "--durations=15"]
        full = [*command, *telling, *beside, *arguments]
        code = subprocess.run(full, cwd=folder, env=variables, check=False).returncode
        ended = Pass(title=title, python=tuple(python), folder=folder, environment=dict(variables),
                     arguments=tuple(arguments), code=_code(code), notes=noted.Notes.read(notes))  # fmt: skip
    _say(f"{title}: {'failed' if ended.code else 'passed'} after {_minutes(time.monotonic() - started)}")
    return ended


def _code(code: int) -> int:
    """Exit code 5, no test chosen, is no failure: a host may have none of a kind."""
    return 0 if code == 5 else code


def _pure(marks: str, python: Sequence[str], environment: Mapping[str, str], *words: str) -> list[Pass]:
    """The pure tests, in as many processes as there are cores."""
    chooses = ("-m", f"pure and {marks}")
    with ExitStack() as stack:
        running = [stack.enter_context(_in_the_background([*part, *chooses, *words], environment, python))
                   for part in chosen.parts(os.cpu_count() or 1)]  # fmt: skip
        return [wait("pure tests") for wait in running]


def _as_user(prepared: Callable[[], ordinary_user.Place], marks: str) -> list[Pass]:
    """Root is bound by less than a user and is trusted with more; both must hold."""
    if os.geteuid() != 0:
        return []
    place = prepared()
    marks, variables = f"privileges and not once and {marks}", NO_SKIPS | {chosen.VARIABLE: chosen.USER}
    return [_pytest(f"tests as the user {ordinary_user.NAME}: {marks}", place.with_variables(variables),
                    place.project, ["tests", "-m", marks, place.base])]  # fmt: skip


def _measure() -> int:
    """Coverage, a pass of its own: it slows what it measures, so it asserts lines, not what the tests assert.

    All of these tests have run without it, and counted there. Of each test one case is run, so the figure is a floor.
    """
    with measured.files(ROOT) as environment:
        environment |= FEW_EXAMPLES
        _say("coverage: one case of each test, measured; what fails here does not count")
        marks, words = f"not unmeasured and {LATER}", ("--tb=no", "-rN")
        _pure(marks, measured.COMMAND, environment, *words)
        environment |= {chosen.VARIABLE: chosen.SYSTEM}
        _pytest("coverage: what starts processes", measured.COMMAND, ROOT,
                ["tests", "-m", f"not pure and {marks}", *words], **environment)  # fmt: skip
        measured.combine(ROOT, environment[measured.FOLDER])
        return measured.report(ROOT, _say)


@contextmanager
def _in_the_background(
    arguments: Sequence[str], environment: Mapping[str, str] | None = None, python: Sequence[str] = (sys.executable,)
) -> Iterator[Callable[[str], Pass]]:
    """Run these from now on; what is yielded waits for them, says so, and tells how they ended."""
    variables = os.environ | NO_SKIPS | dict(environment or {})
    with tempfile.TemporaryFile("w+") as said, noted.file() as notes:
        command = [*python, "-m", "pytest", "-q", "--durations=5", "-p", "no:cacheprovider"]
        telling = ["-p", "tests.noted", "--notes", str(notes)]
        running = subprocess.Popen([*command, *telling, *arguments], cwd=ROOT, env=variables, stdout=said,
                                   stderr=subprocess.STDOUT)  # fmt: skip

        def result(title: str) -> Pass:
            _say(title)
            code = running.wait()
            said.seek(0)
            shutil.copyfileobj(said, sys.stdout)
            return Pass(title=title, python=tuple(python), folder=ROOT, environment=dict(variables),
                        arguments=tuple(arguments), code=_code(code), notes=noted.Notes.read(notes))  # fmt: skip

        try:
            yield result
        finally:
            running.terminate()
            running.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
