"""The command line where its streams are closed, full or shared, or its directory is gone: as other programs start
it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import sysconfig
import termios
from pathlib import Path

import pytest
from tests.patience import eventually

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="descriptors are looked up in /proc"),
    pytest.mark.usefixtures("unmeasured"),  # what it is about begins with the interpreter, before anything is measured
]


def _shell(redirection: str, command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    words = ["sh", "-c", f'exec "$@" {redirection}', "sh", *command]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60, **options)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("level", ["process", "strict"])
def test_a_job_whose_caller_has_no_input_gets_nothing_else_of_the_caller(
    ringfence_command: list[str], level: str
) -> None:
    """What is opened next would take the place of the closed stream: the job's input was the door to the spawner."""
    command = [*ringfence_command, "run", "--isolation", level, "--", "readlink", "/proc/self/fd/0"]
    assert _shell("<&-", command).stdout == "/dev/null\n"
    assert _shell("", command, input="").stdout.startswith("pipe:")


CHANGES = """
import os, sys
def attempt(what, *arguments):
    try:
        what(*arguments)
        print(what.__name__)
    except OSError:
        pass
attempt(os.fchmod, 0, 0o600)
attempt(os.utime, 0, (1, 1))
attempt(os.setxattr, 0, 'user.mark', b'x')
attempt(lambda: os.close(os.open('/proc/self/fd/0', os.O_RDWR)))
print(sys.stdin.read(), end='')
"""


def test_a_file_that_is_a_strict_jobs_input_is_read_and_not_changed(
    ringfence_command: list[str], tmp_path: Path
) -> None:
    """With the file's own descriptor it changes mode and times, and without Landlock it opens it anew for writing."""
    file, here = tmp_path / "input", tmp_path / "here"
    here.mkdir()
    for level, changed in (("strict", False), ("process", True)):
        file.write_text("what is in it\n")
        file.chmod(0o644)
        with file.open() as stdin:
            command = [*ringfence_command, "run", "--isolation", level, "--", sys.executable, "-c", CHANGES]
            done = subprocess.run(command, stdin=stdin, capture_output=True, text=True, cwd=here, check=False)
        assert done.stdout.endswith("what is in it\n"), done.stderr
        assert (file.stat().st_mode & 0o777 == 0o600, file.stat().st_mtime == 1) == (changed, changed)
        assert ("pipe" in _input_of(ringfence_command, level, file)) is not changed


def _input_of(command: list[str], level: str, file: Path) -> str:
    with file.open() as stdin:
        words = [*command, "run", "--isolation", level, "--", "readlink", "/proc/self/fd/0"]
        return subprocess.run(words, stdin=stdin, capture_output=True, text=True, check=True).stdout


def test_a_job_whose_caller_has_no_stream_at_all_runs(ringfence_command: list[str], tmp_path: Path) -> None:
    command = [*ringfence_command, "run", "--commit", "--", "sh", "-c", "echo out; echo err >&2; echo done > done"]
    done = _shell("<&- >&- 2>&-", command, cwd=tmp_path)
    assert (done.returncode, (tmp_path / "done").read_text()) == (0, "done\n")


def test_what_is_meant_for_a_closed_stderr_does_not_go_to_stdout(ringfence_command: list[str]) -> None:
    command = [*ringfence_command, "run", "--wall", "0.3", "--", "sleep", "5"]
    assert "TIMEOUT" in _shell("2>&1", command).stdout
    done = _shell("2>&-", command)
    assert (done.returncode, done.stdout) == (124, "")


@pytest.mark.parametrize("words", [["run", "--", "echo", "hello"], ["run", "--json", "--", "true"], ["sandboxes"],
                                   ["verify-page"]])  # fmt: skip
def test_an_output_that_is_full_is_an_error_in_one_line(ringfence_command: list[str], words: list[str]) -> None:
    done = _shell("> /dev/full", [*ringfence_command, *words])
    assert done.returncode == 1
    assert "No space left on device" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["verify-page"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_gone_is_no_error_of_ours(
    ringfence_command: list[str], monkeypatch: pytest.MonkeyPatch, words: list[str], unbuffered: str
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*ringfence_command, *words], stdout=writer, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(writer)
    assert done.stderr == b""


def test_an_output_that_cannot_show_a_sign_is_no_reason_to_fail(
    ringfence_command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1:strict")
    done = _shell("", [*ringfence_command, "--help"])
    assert (done.returncode, done.stderr) == (0, "") and "usage: ringfence COMMAND \\u2026" in done.stdout
    odd = os.fsdecode(b"odd-\xff.yaml")
    (tmp_path / odd).write_text("nofile: 99")
    done = _shell("", [*ringfence_command, "policy", "check", odd], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", [["run", "--", "true"], ["run", "--strict", "--", "true"], ["test", "x.py"],
                                   ["run", "--python", "x.py"]])  # fmt: skip
def test_a_current_folder_that_is_gone_is_said_in_words(
    ringfence_command: list[str], tmp_path: Path, words: list[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = ["sh", "-c", 'rmdir ../gone && exec "$@"', "sh", *ringfence_command, *words]
    done = subprocess.run(command, cwd=gone, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith("ringfence: "), done.stderr


def _waiting(pipe: int) -> int:
    """How many bytes nobody has read yet."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_an_output_that_does_not_wait_gets_everything(ringfence_command: list[str]) -> None:
    """As whoever else holds it may have switched it: more is written than a pipe holds before anybody reads."""
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    command = [*ringfence_command, "run", "--", "sh", "-c", "head -c 300000 /dev/zero; echo >&2"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        assert process.stderr is not None
        eventually(lambda: _waiting(ours) > 60000)
        with open(ours, "rb") as reader:
            assert reader.read() == bytes(300000)
        assert process.stderr.read() == b"\n"
    assert process.returncode == 0


def test_a_package_in_the_current_folder_does_not_replace_ours(tmp_path: Path) -> None:
    (tmp_path / "ringfence").mkdir()
    for name in ("ringfence/__init__", "ringfence/__main__", "json", "argparse", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("print('hostile')\n", encoding="utf-8")
    script = Path(sysconfig.get_path("scripts")) / "ringfence"
    commands = {"plain": ["-m", "ringfence"], "safe": ["-P", "-m", "ringfence"], "script": [str(script)]}
    said = {
        name: subprocess.run([sys.executable, *words, "policy", "show", "--json"], cwd=tmp_path, check=False,
                             capture_output=True, text=True).stdout
        for name, words in commands.items() if name != "script" or script.exists()
    }  # fmt: skip
    assert "hostile" in said.pop("plain")
    assert all(text.startswith("{") for text in said.values()), said


@pytest.mark.parametrize("words", [
    ["run", "--policy", "F", "--", "true"], ["policy", "show", "F"], ["usage", "./F"],
    ["verify-bundle", "--bundle", "F"], ["verify-bundle", "--bundle", "empty", "--trust", "F"],
    ["verify", "--verdict", "F", "--pubkey", "00" * 32],
], ids=["run", "policy", "usage", "bundle", "trust", "verdict"])  # fmt: skip
@pytest.mark.parametrize("kind", ["pipe", "endless"])
def test_a_pipe_or_an_endless_file_is_refused_in_words(
    ringfence_command: list[str], words: list[str], kind: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").touch()
    if kind == "pipe":
        os.mkfifo(tmp_path / "F")
    else:
        (tmp_path / "F").symlink_to("/dev/zero")
    command = [*ringfence_command, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2, done.stderr
    assert "not a regular file" in done.stderr and "Traceback" not in done.stderr
