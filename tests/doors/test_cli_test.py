"""``ringfence test`` as a person meets it: its arguments, Ctrl-C, exit codes, hints, and whose pytest it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ringfence import SandboxPolicy, run_pytests, run_pytests_v2
from ringfence.cli import interpreter
from ringfence.errors import UsageError
from ringfence.model.outcome import Outcome, Status
from ringfence.model.record import replace
from ringfence.pytest_runner.hints import hints
from ringfence.pytest_runner.records import parse_records

pytestmark = [pytest.mark.privileges, pytest.mark.usefixtures("unmeasured")]

PASSES, FAILS = "def test_passes(): pass\n", "def test_fails(): assert False\n"


def _ringfence(command: list[str], *words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | variables
    return subprocess.run([*command, *words], capture_output=True, text=True, check=False, timeout=300, cwd=cwd,
                          env=environment, stdin=subprocess.DEVNULL)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test_a.py").write_text(PASSES)
    (tmp_path / "test_b.py").write_text(FAILS)
    return tmp_path


# ---- arguments


@pytest.mark.parametrize("words", [
    ["test_a.py", "--here", "--", "-q", "-rN"],
    ["--here", "test_a.py", "--wall", "60", "--", "-q", "-rN"],
    ["--wall", "60", "--", "-q", "-rN", "test_a.py"],
    ["test_b.py", "--wall=60", "test_a.py", "--", "-q", "-rN", "-k", "passes"],
    ["--", "-q", "-rN", "-k", "passes"],
])  # fmt: skip
def test_flags_stand_anywhere_and_what_follows_two_dashes_goes_to_pytest(
    ringfence_command: list[str], folder: Path, words: list[str]
) -> None:
    done = _ringfence(ringfence_command, "test", *words, cwd=folder)
    assert done.returncode == 0 and done.stdout.startswith("."), done.stdout + done.stderr
    assert done.stderr == ""


def test_its_help_offers_only_what_it_takes(ringfence_command: list[str], folder: Path) -> None:
    """Tests run in an interpreter of the host, with the host's files."""
    told = _ringfence(ringfence_command, "test", "--help", cwd=folder).stdout
    assert "--isolation {none,process,strict}" in told and "--image" not in told and "--root" not in told
    for flag in ("--image", "--root"):
        assert _ringfence(ringfence_command, "test", flag, ".", cwd=folder).returncode == 2
    for words in (("test_a.py",), ("test_a.py", "--isolation", "strict")):  # the control
        assert _ringfence(ringfence_command, "test", *words, cwd=folder).returncode == 0


def test_a_flag_of_pytests_without_the_two_dashes_is_refused(ringfence_command: list[str], folder: Path) -> None:
    done = _ringfence(ringfence_command, "test", "test_a.py", "-x", cwd=folder)
    assert done.returncode == 2 and "there is no option -x" in done.stderr


@pytest.mark.parametrize("wrong", [
    lambda: run_pytests_v2("test_a.py"),  # type: ignore[arg-type]
    lambda: run_pytests_v2(Path("test_a.py")),  # type: ignore[arg-type]
    lambda: run_pytests_v2(b"test_a.py"),  # type: ignore[arg-type]
    lambda: run_pytests_v2(None),  # type: ignore[arg-type]
    lambda: run_pytests_v2([3]),  # type: ignore[list-item]
    lambda: run_pytests_v2(["test_a.py"], arguments="-x"),
    lambda: run_pytests_v2(["test_a.py"], {"wall_time_s": 5}),  # type: ignore[arg-type]
    lambda: run_pytests_v2(["test_a.py"], 5),  # type: ignore[arg-type]
    lambda: run_pytests_v2(["test_a.py"], interpreter="/no/such/python"),
    lambda: run_pytests(["test_a.py"], "5"),  # type: ignore[arg-type]
    lambda: run_pytests(["test_a.py"], None),  # type: ignore[arg-type]
    lambda: run_pytests("test_a.py", 5),  # type: ignore[arg-type]
])  # fmt: skip
def test_a_wrong_argument_is_refused_in_words(wrong) -> None:
    with pytest.raises(UsageError, match=r"^(paths|policy|arguments|timeout_s|interpreter): "):
        wrong()


# ---- exit codes and Ctrl-C


@pytest.mark.parametrize(("words", "code"), [
    (["test_a.py"], 0), (["test_b.py"], 1), (["nope.py"], 4), (["test_a.py", "--network", "none"], 2),
])  # fmt: skip
def test_data_and_words_have_the_same_exit_code(
    ringfence_command: list[str], folder: Path, words: list[str], code: int
) -> None:
    plain = _ringfence(ringfence_command, "test", *words, cwd=folder)
    data = _ringfence(ringfence_command, "test", *words, "--json", cwd=folder)
    assert (plain.returncode, data.returncode) == (code, code), plain.stderr + data.stderr
    assert json.loads(data.stdout)["status"] == {0: "OK", 2: "INTERNAL_ERROR"}.get(code, "FAILED")


def test_a_level_with_a_python_of_its_own_is_refused(ringfence_command: list[str], folder: Path) -> None:
    words = ("test", "test_a.py", "--isolation", "container")
    plain, data = (_ringfence(ringfence_command, *words, *more, cwd=folder) for more in ((), ("--json",)))
    assert (plain.returncode, data.returncode) == (2, 2)
    assert "isolation container: tests run in an interpreter of the host" in plain.stderr
    assert "interpreter of the host" in json.loads(data.stdout)["error"]


def _waits(ready: Path) -> str:
    """A test that says when it begins to wait: a FIFO is read by who started it."""
    os.mkfifo(ready)
    return f" open({str(ready)!r}, 'w').close()\n import time\n time.sleep(100)\n"


@pytest.mark.parametrize("level", ["process", "strict"])
def test_ctrl_c_prints_pytests_summary_of_what_failed_so_far(
    ringfence_command: list[str], folder: Path, level: str
) -> None:
    (folder / "test_c.py").write_text("import time\ndef test_c():\n print('waiting', flush=True)\n time.sleep(100)\n")
    words = ["test", "test_b.py", "test_c.py", "--isolation", level, "--wall", "300", "--", "-s"]
    with subprocess.Popen([*ringfence_command, *words], cwd=folder, stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE) as process:  # fmt: skip
        assert process.stdout is not None
        before = iter(process.stdout.readline, "")
        assert any("waiting" in line for line in before)
        process.send_signal(signal.SIGINT)
        printed = process.stdout.read()
        assert process.wait(300) == 130, printed
    assert "FAILED test_b.py::test_fails" in printed and "1 failed" in printed


def test_ctrl_c_gives_the_data_of_what_failed_so_far(ringfence_command: list[str], folder: Path) -> None:
    ready = folder / "ready"
    (folder / "test_c.py").write_text(f"def test_c():\n{_waits(ready)}")
    command = [*ringfence_command, "test", "test_b.py", "test_c.py", "--wall", "300", "--json"]
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        ready.read_text()
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    result = json.loads(printed)
    assert (result["status"], result["rc"], result["counts"]["failed"]) == ("FAILED", 2, 1)


def test_a_second_ctrl_c_ends_tests_that_do_not_listen(ringfence_command: list[str], folder: Path) -> None:
    ready = folder / "ready"
    deaf = "".join(f" signal.signal(signal.{name}, signal.SIG_IGN)\n" for name in ("SIGINT", "SIGTERM"))
    (folder / "test_c.py").write_text(f"import signal\ndef test_c():\n{deaf}{_waits(ready)}")
    command = [*ringfence_command, "test", "test_c.py", "--wall", "300"]
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        ready.read_text()
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3)
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 130


# ---- hints


RELATIVE = "def test_reads(): open('data.txt').close()\n"


@pytest.mark.parametrize("arguments", [[], ["-n", "1"]], ids=["alone", "xdist"])
def test_a_file_of_the_current_folder_that_is_missed_gives_a_hint(
    ringfence_command: list[str], folder: Path, arguments: list[str]
) -> None:
    (folder / "test_c.py").write_text(RELATIVE)
    (folder / "data.txt").write_text("")
    words = ["test", "test_c.py", "--pids", "64", "--memory", "2G", "--", *arguments]
    done = _ringfence(ringfence_command, *words, cwd=folder)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.endswith("--here runs tests there\n")
    assert _ringfence(ringfence_command, "test", "--here", "test_c.py", cwd=folder).returncode == 0


@pytest.mark.parametrize("body", [
    RELATIVE.replace("data.txt", "nope.txt"), RELATIVE.replace("data.txt", "/data.txt"), FAILS,
    "def test_a(): raise FileNotFoundError(2, 'data.txt')\n",
], ids=["nowhere", "absolute", "another reason", "no name"])  # fmt: skip
def test_other_failures_give_no_hint(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "data.txt").write_text("")
    (folder / "test_c.py").write_text(body)
    result = run_pytests_v2(["test_c.py"])
    assert (result["status"], result["hints"]) == ("FAILED", [])


def test_tests_in_another_folder_are_shown_and_run_under_strict(ringfence_command: list[str], folder: Path) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    path = folder / "test_a.py"
    for words in (("--strict", str(path)), (str(path),)):
        assert _ringfence(ringfence_command, "test", *words, cwd=elsewhere).returncode == 0
    assert _ringfence(ringfence_command, "test", "--strict", str(path), cwd=folder).returncode == 0


def test_success_that_is_not_believed_is_said(ringfence_command: list[str], folder: Path) -> None:
    (folder / "test_c.py").write_text("import pytest\ndef test_a(): pytest.exit('bye', returncode=0)\n")
    done = _ringfence(ringfence_command, "test", "test_c.py", cwd=folder)
    assert done.returncode == 1
    assert done.stderr == "ringfence: FAILED: exit code 0, but the session was interrupted (pytest.exit)\n"


# ---- whose pytest it is


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with a pytest of its own."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    install = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "-q", "pytest"]
    subprocess.run(install, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment without pytest."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder


def _tells_its_prefix(folder: Path) -> None:
    (folder / "test_prefix.py").write_text("import sys, pytest\ndef test_a(): print(sys.prefix, pytest.__file__)\n")


@pytest.mark.parametrize("level", ["process", "strict"])
@pytest.mark.parametrize("way", ["file", "folder", "VIRTUAL_ENV", "CONDA_PREFIX"])
def test_tests_run_in_the_environment_that_is_named_or_active(
    ringfence_command: list[str], folder: Path, environment: Path, way: str, level: str
) -> None:
    _tells_its_prefix(folder)
    named = {"file": environment / "bin" / "python", "folder": environment}.get(way)
    words = ["test", "--isolation", level, "test_prefix.py", *(["--interpreter", str(named)] if named else [])]
    variables = {} if named else {way: str(environment)}
    done = _ringfence(ringfence_command, *words, "--", "-s", cwd=folder, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{environment} {environment}/lib" in done.stdout


def test_without_one_they_run_in_ringfences_own(ringfence_command: list[str], folder: Path) -> None:
    _tells_its_prefix(folder)
    done = _ringfence(ringfence_command, "test", "test_prefix.py", "--", "-s", cwd=folder)
    assert f"{sys.prefix} " in done.stdout


def test_an_environment_without_pytest_is_told_so(ringfence_command: list[str], folder: Path, bare: Path) -> None:
    done = _ringfence(ringfence_command, "test", "test_a.py", cwd=folder, VIRTUAL_ENV=str(bare))
    assert done.returncode == 4 and done.stdout == ""
    python = bare / "bin" / "python"
    told = f"{python} has no pytest: {python} -I -m pip install pytest, or name another Python with --interpreter"
    assert done.stderr == f"ringfence: {told}\n"


def test_the_advice_to_install_pytest_runs_nothing_of_the_tests(folder: Path) -> None:
    (folder / "pip.py").write_text("print('outside')")
    for options, said in ((("-I",), "pip "), ((), "outside")):  # the second is the control
        done = subprocess.run([sys.executable, *options, "-m", "pip", "--version"], cwd=folder, capture_output=True,
                              text=True, check=True)  # fmt: skip
        assert done.stdout.startswith(said)


def test_a_run_that_had_pytest_gets_no_such_advice() -> None:
    lack, ran = b'{"missing": "pytest"}\n', b'{"test": "a", "outcome": "passed", "duration_s": 0}\n{"finished": 4}\n'
    nothing = Outcome(status=Status.FAILED, rc=4, reason="", argv=("python3", "start.py"))
    assert len(hints(nothing, parse_records(lack))) == 1
    assert not hints(nothing, parse_records(lack + ran))
    assert not hints(replace(nothing, status=Status.OK, rc=0), parse_records(lack))


def test_the_library_takes_an_interpreter_too(folder: Path, environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    _tells_its_prefix(folder)
    python = environment / "bin" / "python"
    result = run_pytests_v2(["test_prefix.py"], SandboxPolicy(), arguments=["-s"], interpreter=python)
    assert result["status"] == "OK" and f"{environment} " in result["stdout"]
    assert result["cmd"][0] == str(python)


@pytest.mark.parametrize("way", ["--interpreter", "VIRTUAL_ENV"])
def test_a_python_file_runs_on_the_interpreter_that_is_meant(
    ringfence_command: list[str], folder: Path, bare: Path, way: str
) -> None:
    (folder / "file.py").write_text("import sys\nprint(sys.prefix)\n")
    named, variables = (["--interpreter", str(bare)], {}) if way == "--interpreter" else ([], {way: str(bare)})
    done = _ringfence(ringfence_command, "run", *named, "--python", "file.py", cwd=folder, **variables)
    assert (done.returncode, done.stdout) == (0, f"{bare}\n"), done.stderr
    own = _ringfence(ringfence_command, "run", "--python", "file.py", cwd=folder)
    assert own.stdout == f"{sys.prefix}\n"


@pytest.mark.parametrize(("words", "variables", "told"), [
    (["--interpreter", "/no/such"], {}, "--interpreter /no/such: not found as a file or on the PATH"),
    (["--interpreter", "/etc/passwd"], {}, "--interpreter /etc/passwd: can't be executed"),
    (["--interpreter", "/etc"], {}, "--interpreter /etc: there is no bin/python in it"),
    ([], {"VIRTUAL_ENV": "/no/such"}, "VIRTUAL_ENV=/no/such: there is no bin/python in it"),
])  # fmt: skip
def test_an_interpreter_that_is_not_there_is_refused_in_words(
    ringfence_command: list[str], folder: Path, words: list[str], variables: dict[str, str], told: str
) -> None:
    for command in (["test", *words, "test_a.py"], ["run", *words, "--python", "test_a.py"]):
        done = _ringfence(ringfence_command, *command, cwd=folder, **variables)
        assert done.returncode == 2
        assert done.stderr.startswith(f"ringfence: {told}\n  name a Python with --interpreter"), done.stderr


def _pyenv(root: Path, answer: str) -> None:
    for name, text in (("bin/pyenv", answer), ("shims/python3", "exit 9")):
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)


def test_the_python_behind_pyenvs_shim_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pyenv(tmp_path, 'test "$*" = "which python3" && echo /the/real/python3')
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["/home/somebody/.local/bin/ringfence"])
    assert interpreter.chosen(None) == sys.executable or "pyenv" in interpreter.chosen(None)
    monkeypatch.setenv("PATH", f"{tmp_path}/shims:/usr/bin:/bin")
    assert interpreter.chosen(None) == "/the/real/python3"
    _pyenv(tmp_path, "echo 'pyenv: version 99 is not installed' >&2; exit 1")
    with pytest.raises(UsageError, match="pyenv has no Python for this directory: pyenv: version 99 is not installed"):
        interpreter.chosen(None)
    monkeypatch.setattr(sys, "argv", [str(Path(sys.executable).parent / "ringfence")])
    assert interpreter.chosen(None) == sys.executable


@pytest.mark.parametrize("place", ["named", "below", "file"])
def test_what_cannot_be_read_is_told_in_one_sentence(ringfence_command: list[str], folder: Path, place: str) -> None:
    closed = folder / ("test_c.py" if place == "file" else "closed")
    closed.write_text(PASSES) if place == "file" else closed.mkdir()
    closed.chmod(0)
    target = folder if place == "below" else closed
    done = _ringfence(ringfence_command, "test", str(target), "--json", cwd=folder)
    plain = _ringfence(ringfence_command, "test", str(target), cwd=folder)
    closed.chmod(0o700)
    if os.geteuid() == 0:  # reads everything
        assert done.returncode == plain.returncode == {"named": 5, "below": 1, "file": 0}[place]
        return
    assert plain.stderr.startswith(f"ringfence: {closed} can't be read by this user\n"), plain.stderr
    assert plain.returncode == done.returncode != 0
