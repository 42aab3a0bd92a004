"""``make test``: the whole suite as the calling user and, when that is root, as an ordinary user too.

Ends with an error when a test fails, when one is skipped that could have run here, when coverage is
below what is promised, or when a run leaves something behind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
USER = "ringfence-test"
# Another in every run, the same for all workers of one: some tests are named after a set.
HASH_SEED = str(os.getpid())
OVERALL_PERCENT, ENFORCEMENT_PERCENT = 85, 90
ENFORCEMENT = ("posix", "linux", "backends", "engine")
# Long, and of code that the rest measures: run without coverage, which would double their time.
# The slowest first, so that the others go on beside it.
UNMEASURED = (
    "tests/programs", "tests/unit/evidence/test_evidence_mutations.py",
    "tests/contract/test_conformance_warm.py", "tests/contract/test_without_user_namespaces.py",
    "tests/doors/test_verify_page.py", "tests/doors/test_verify_page_parity.py", "tests/escape", "tests/unit/bench",
    "tests/unit/engine/test_pool_limits.py", "tests/unit/engine/test_pool_mishaps.py",
    "tests/unit/linux/test_seccomp_profiles.py", "tests/unit/linux/test_recorder.py", "tests/unit/model/test_values.py",
    "tests/unit/evidence/test_evidence_chain.py", "tests/unit/checkpoint/test_sequences.py", "tests/unit/monitor",
    "tests/unit/manager/test_side_by_side.py", "tests/unit/evidence/test_evidence_json.py",
    "tests/unit/linux/test_seccomp_programs.py", "tests/unit/linux/test_seccomp_attacks.py",
    "tests/unit/linux/test_tripwire_faults.py", "tests/unit/checkpoint/test_transaction.py",
    "tests/unit/engine/test_pool_turns.py", "tests/doors/test_readme.py", "tests/doors/test_safe_agent.py",
    "tests/doors/test_manager.py", "tests/unit/manager/test_live_state.py", "tests/doors/test_cli_transactions.py",
    "tests/unit/posix/test_spawner.py",
)  # fmt: skip
# The same for every user, and long.
NOT_AS_USER = ("verify_page", "test_tripwire.py", "test_tripwire_faults", "test_seccomp_profiles", "test_recorder.py")
# Guest kernels, which keep one processor busy for many minutes and wait for nobody: they run beside all the rest.
GUESTS = "tests/hosts"
# What says something about privileges. The rest, the verifier among it, is the same for every user.
USER_TESTS = (
    "contract", "doors", "escape", "programs",
    "unit/backends", "unit/checkpoint", "unit/engine", "unit/integrations", "unit/linux", "unit/manager", "unit/posix",
)  # fmt: skip
# Of the development packages the ordinary user's tests need all but the checkers.
NOT_FOR_USER = ("mypy", "ruff", "types-")
# What tests/programs installs with, and packages whose suites it runs; root's tests fetch those themselves.
FOR_PROGRAMS = ("pip", "toolz", "simplejson", "joblib")


def main() -> int:
    if os.name != "posix":
        return _pytest([sys.executable], ROOT, ["tests/unit"])
    with _in_the_background(GUESTS) as guests:
        failed = _as_caller()
        if os.geteuid() == 0:
            failed |= _as_ordinary_user()
        failed |= guests()
    return 1 if failed else 0


def _say(text: str) -> None:
    print(f"\n── {text}", flush=True)


def _pytest(python: list[str], folder: Path, arguments: list[str], **environment: str) -> int:
    """Many at a time; what fails beside others is run again alone, and counts if it fails there too.

    Some tests attack the machine that they run on, with all its memory and processors. A failure that goes away when
    nobody else is there is the neighbour's, and is printed all the same.
    """
    cache = folder / ".pytest_cache"
    shutil.rmtree(cache, ignore_errors=True)
    variables = os.environ | {"RINGFENCE_NO_SKIPS": "1", "PYTHONHASHSEED": HASH_SEED} | environment
    command = [*python, "-m", "pytest", "-q", "--durations=25", "-o", f"cache_dir={cache}", *arguments]
    # Most tests wait for something: more workers than cores end sooner. The order must not matter anyway.
    workers = ["-n", str((os.cpu_count() or 1) + 2), "--dist", "worksteal"]
    code = subprocess.run([*command, *workers], cwd=folder, env=variables, check=False).returncode
    if code != 1:
        return code
    _say("what failed, once more and alone")
    alone = ["--last-failed", "--last-failed-no-failures=none"]
    return subprocess.run([*command, *alone], cwd=folder, env=variables, check=False).returncode


@contextmanager
def _in_the_background(tests: str) -> Iterator[Callable[[], int]]:
    """Run these from now on; what is yielded waits for them and says how they ended. Alone once more if they failed."""
    environment = os.environ | {"RINGFENCE_NO_SKIPS": "1"}
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "pytest", "-q", "--durations=5", "-o", f"cache_dir={cache}", tests]
        running = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=subprocess.STDOUT)

        def result() -> int:
            _say(f"{tests}, beside all the others")
            code = running.wait()
            said.seek(0)
            print(said.read(), flush=True)
            again = [*command, "--last-failed", "--last-failed-no-failures=none"]
            return code and subprocess.run(again, cwd=ROOT, env=environment, check=False).returncode

        try:
            yield result
        finally:
            running.terminate()
            running.wait()


def _as_caller() -> int:
    _say(f"tests as uid {os.geteuid()}, with coverage")
    for old in ROOT.glob(".coverage*"):
        old.unlink()
    environment = {
        "COVERAGE_PROCESS_START": str(ROOT / "tests" / "coverage.ini"),
        "COVERAGE_FILE": str(ROOT / ".coverage"),
    }
    command = [sys.executable, "-m", "coverage", "run", "--rcfile=tests/coverage.ini"]
    elsewhere = [f"--ignore={part}" for part in (*UNMEASURED, GUESTS)]
    failed = _pytest(command, ROOT, ["tests", *elsewhere], **environment)
    failed |= _coverage()
    _say(f"tests as uid {os.geteuid()}, without coverage")
    return failed | _pytest([sys.executable], ROOT, list(UNMEASURED))


def _coverage() -> int:
    coverage = [sys.executable, "-m", "coverage"]
    options = ["--rcfile=tests/coverage.ini"]
    subprocess.run([*coverage, "combine", "-q", *options], cwd=ROOT, check=False)
    failed = 0
    for label, least, include in (
        ("everything", OVERALL_PERCENT, "*/src/ringfence/*"),
        ("enforcement code", ENFORCEMENT_PERCENT, ",".join(f"*/ringfence/{name}/*" for name in ENFORCEMENT)),
    ):
        _say(f"coverage of {label}: at least {least} %")
        report = [*coverage, "report", *options, f"--include={include}", f"--fail-under={least}"]
        done = subprocess.run([*report, "--skip-covered"], cwd=ROOT, check=False)
        failed |= done.returncode
    return failed


def _as_ordinary_user() -> int:
    """Root is bound by less than a user and is trusted with more; both must hold."""
    _say(f"tests as the ordinary user {USER}")
    if subprocess.run(["id", USER], capture_output=True, check=False).returncode:
        subprocess.run(["useradd", "--create-home", USER], check=True)
    with tempfile.TemporaryDirectory(prefix="ordinary-user-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        python = _user_python(folder)
        documents = [document.name for document in ROOT.glob("*.md")]
        for part in ("src", "tests", "examples", "bench", "docs", "pyproject.toml", "Makefile", "LICENSE", *documents):
            _copy(ROOT / part, folder / "project" / part)
        subprocess.run(["chown", "-R", USER, str(folder / "project")], check=True)
        drop = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups", "--reset-env"]
        variables = ["env", f"PYTHONPATH={folder}/project/src", "RINGFENCE_NO_SKIPS=1", "PYTHONDONTWRITEBYTECODE=1",
                     f"PYTHONHASHSEED={HASH_SEED}"]  # fmt: skip
        there = [f"tests/{part}" for part in USER_TESTS if (ROOT / "tests" / part).exists()]
        # The tripwires' tests try an ordinary caller by themselves, which takes root to prepare.
        left_out = [f"--ignore-glob=*{name}*" for name in NOT_AS_USER]
        arguments = [*left_out, *there]
        with _fuse_as_distributions_have_it():
            return _pytest([*drop, *variables, str(python)], folder / "project", arguments)


@contextmanager
def _fuse_as_distributions_have_it() -> Iterator[None]:
    """/dev/fuse is for everybody on ordinary distributions; in many containers it is root's alone."""
    device = Path("/dev/fuse")
    before = device.stat().st_mode
    device.chmod(0o666)
    try:
        yield
    finally:
        device.chmod(before)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "results"))
    elif source.exists():
        shutil.copy(source, target)


def _user_python(folder: Path) -> Path:
    """An environment that another user can read: an interpreter below root's home is not."""
    base = next((path for path in _interpreters() if _readable_by_all(path)), None)
    if base is None:
        raise SystemExit("no Python 3.11 or later that an ordinary user could read; install python3")
    _test_package(base)
    environment = folder / "venv"
    subprocess.run([str(base), "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *_packages()]
    subprocess.run(install, check=True, stderr=subprocess.DEVNULL)
    return python


def _test_package(python: Path) -> None:
    """CPython's own tests, which Debian keeps apart."""
    if subprocess.run([str(python), "-c", "import test.test_os"], capture_output=True, check=False).returncode:
        package = f"lib{python.resolve().name}-testsuite"
        apt = ["apt-get", "-qq", "-o", "Dpkg::Use-Pty=0"]
        for command in (["update"], ["install", "-y", "--no-install-recommends", package]):
            subprocess.run([*apt, *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _packages() -> list[str]:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    return [*(package for package in wanted if not package.startswith(NOT_FOR_USER)), *FOR_PROGRAMS]


def _interpreters() -> list[Path]:
    own = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    return [own, *(Path(f"/usr/bin/python3.{minor}") for minor in (13, 12, 11))]


def _readable_by_all(path: Path) -> bool:
    if not path.exists():
        return False
    return all(parent.stat().st_mode & 0o005 == 0o005 for parent in (path.resolve(), *path.resolve().parents))


if __name__ == "__main__":
    sys.exit(main())
