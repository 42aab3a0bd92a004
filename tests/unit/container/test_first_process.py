"""The first process of a container, and the word by which an exit status is no signal."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ringfence.container import first_process
from ringfence.container.first_process import INSIDE, WORD, LastWord
from ringfence.container.hardening import Bind, ContainerSpec
from ringfence.kernel.calls import native

SPEC = ContainerSpec(argv=("true",), init=True)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "first").touch(0o755)
    monkeypatch.setattr(native, "first_path", lambda: f"{tmp_path}/first")
    monkeypatch.delenv("RINGFENCE_PURE", raising=False)
    return f"{tmp_path}/first"


def test_ours_is_in_place_of_the_engines_and_can_be_left_away(program: str) -> None:
    made = first_process.added(SPEC, is_local=True)
    assert made.argv == (INSIDE, "true") and not made.init and first_process.is_in(made)
    assert made.binds == (Bind(source=os.path.realpath(program), target=INSIDE, read_only=True),)
    assert first_process.left_away(made) == SPEC and not first_process.is_in(SPEC)


@pytest.mark.parametrize("changes", [
    {"init": False}, {"binds": (Bind(source="/usr", target="/ringfence"),)},
    {"binds": (Bind(source="/usr", target=INSIDE),)}, {"tmpfs": {"/ringfence": "ro"}},
])  # fmt: skip
def test_where_it_has_no_place_it_is_left_away(program: str, changes: dict[str, object]) -> None:
    from ringfence.model.record import replace

    spec = replace(SPEC, **changes)
    assert first_process.added(spec, is_local=True) is spec


def test_it_is_left_away_where_the_engine_can_not_see_it(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert first_process.added(SPEC, is_local=False) is SPEC
    monkeypatch.setenv("RINGFENCE_PURE", "1")
    assert first_process.added(SPEC, is_local=True) is SPEC
    monkeypatch.delenv("RINGFENCE_PURE")
    os.unlink(program)
    assert first_process.added(SPEC, is_local=True) is SPEC


def passed(*pieces: bytes) -> tuple[bytes, bool]:
    word = LastWord()
    out = b"".join(bytes(word.pass_on(memoryview(piece))) for piece in pieces)
    return out + word.rest(), word.heard


@pytest.mark.parametrize("before", [b"", b"words\n", b"\0", b"\0ring", WORD, WORD[:-1], b"x" * 100_000])
def test_the_word_is_heard_at_the_end_however_it_is_cut(before: bytes) -> None:
    whole = before + WORD
    assert passed(whole) == (before, True)
    assert passed(*(whole[-200:][at : at + 1] for at in range(len(whole[-200:])))) == (before[-200 + len(WORD) :], True)
    for cut in range(max(0, len(whole) - 2 * len(WORD)), len(whole)):
        assert passed(whole[:cut], whole[cut:]) == (before, True)


@pytest.mark.parametrize("said", [b"", b"x", b"\0", WORD[:-1], WORD + b"x", WORD + b"\0", b"\0" + WORD[1:-1] + b"!"])
def test_all_else_is_passed_on(said: bytes) -> None:
    assert passed(said) == (said, False)
    assert passed(*(said[at : at + 1] for at in range(len(said)))) == (said, False)


def test_what_can_not_be_the_word_is_not_held_back() -> None:
    word = LastWord()
    assert bytes(word.pass_on(memoryview(b"prompt> "))) == b"prompt> "
    assert bytes(word.pass_on(memoryview(b"a\0b"))) == b"a\0b"


# ---- the program itself, as pid 1 of a namespace: anywhere else it does nothing


@pytest.fixture(scope="module")
def compiled() -> str:
    path = native.first_path()
    if not os.access(path, os.X_OK):
        pytest.skip("not testable here: no compiler has made it")
    if shutil.which("unshare") is None or os.geteuid() != 0:
        pytest.skip("not testable here: to make a pid namespace takes root and unshare")
    return path


def as_first(path: str, *argv: str, **more: object) -> subprocess.CompletedProcess[bytes]:
    command = ["unshare", "--pid", "--fork", "--kill-child", path, *argv]
    return subprocess.run(command, check=False, capture_output=True, timeout=60, **more)  # type: ignore[call-overload, no-any-return]


@pytest.mark.system
@pytest.mark.root
@pytest.mark.parametrize(("code", "rc", "tells"), [
    ("exit 0", 0, False), ("exit 7", 7, False), ("exit 128", 128, False), ("exit 129", 129, True),
    ("exit 137", 137, True), ("exit 192", 192, True), ("exit 193", 193, False), ("kill -9 $$", 137, False),
    ("kill -11 $$", 139, False), ("kill -15 $$", 143, False), ("sleep 1000 & exit 139", 139, True),
    ("(while :; do echo >&2; done) & exit 139", 139, True),
])  # fmt: skip
def test_it_ends_as_the_job_and_tells_an_exit_from_a_signal(compiled: str, code: str, rc: int, tells: bool) -> None:
    done = as_first(compiled, "sh", "-c", code)
    assert (done.returncode, done.stderr.endswith(WORD)) == (rc, tells), done
    assert done.stderr.strip(b"\n") == (WORD if tells else b"")


@pytest.mark.system
@pytest.mark.root
def test_it_finds_a_program_by_the_path_and_says_what_it_can_not_start(compiled: str, tmp_path: Path) -> None:
    (tmp_path / "own").symlink_to(shutil.which("true") or "/bin/true")
    (tmp_path / "plain").touch(0o644)
    found = {"PATH": f"/etc/passwd:/nonexistent:{tmp_path}"}
    outside = shutil.which("unshare") or ""
    for argv, rc, words in (("own", 0, b""), ("plain", 126, b"plain: can't be executed\n"),
                            (f"{tmp_path}/own", 0, b""), ("sh", 127, b"sh: no such program in the container\n"),
                            ("", 127, b": no such program in the container\n")):  # fmt: skip
        done = subprocess.run([outside, "--pid", "--fork", compiled, argv], env=found, check=False, capture_output=True)
        assert (done.returncode, done.stderr) == (rc, words), argv


@pytest.mark.system
@pytest.mark.root
def test_signals_go_to_the_job_and_the_dead_are_collected(compiled: str) -> None:
    code = ("import os, signal, sys\n"
            "def told(number, _): print('got', number, flush=True); sys.exit(0)\n"
            "signal.signal(signal.SIGTERM, told)\n"
            "if os.fork() == 0:\n    if os.fork() == 0: os._exit(0)\n    os._exit(0)\n"
            "os.wait(); print(os.getpid(), os.getpgid(0), flush=True)\n"
            "os.kill(1, signal.SIGTERM); signal.pause()")  # fmt: skip
    done = as_first(compiled, sys.executable, "-S", "-c", code)
    assert done.returncode == 0 and done.stdout == b"2 2\ngot %d\n" % signal.SIGTERM, done


@pytest.mark.system
def test_outside_a_namespace_it_does_nothing(tmp_path: Path) -> None:
    """It kills all processes that it can see."""
    path = native.first_path()
    if not os.access(path, os.X_OK):
        pytest.skip("not testable here: no compiler has made it")
    done = subprocess.run([path, "touch", f"{tmp_path}/ran"], check=False, capture_output=True)
    assert done.returncode == 127 and not [*tmp_path.iterdir()]
