"""``ringfence top``: finds the sandboxes that run, believes none of them, and leaves the terminal as it was."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unicodedata import east_asian_width

import pytest

import ringfence
from ringfence.cli.top import fitted
from ringfence.cli.top_view import Row, command_of, lines
from ringfence.engine.box import Box
from ringfence.kernel.proc import procfs
from ringfence.kernel.proc import running as leaders
from ringfence.kernel.proc.processes import FORKER, LEADER
from ringfence.kernel.proc.running import RunningSandbox
from ringfence.model.limits import IsolationLevel
from ringfence.model.policy import SandboxPolicy
from ringfence.model.printed import harmless
from ringfence.monitor.sample import Sample
from ringfence.sandbox import host

pytestmark = [
    pytest.mark.privileges,
    pytest.mark.skipif(sys.platform != "linux", reason="finds leaders in /proc"),
]
PATIENCE_S = 60

# A process that calls itself a forker, with a child that calls itself a leader, with a child.
IMITATION = """
import ctypes, os, sys, time
def call_me(name): ctypes.CDLL(None).prctl(15, name, 0, 0, 0)
call_me(b'ringfence-fork')
if os.fork() == 0:
    call_me(b'ringfence-lead')
    if os.fork() == 0:
        print('ready', flush=True)
    time.sleep(600)
time.sleep(600)
"""
LEAVE_PARENTS = "import os, time\nif os.fork(): time.sleep(600)\nos.setsid()\nif os.fork(): os._exit(0)\n"


def _levels() -> list[str]:
    return ["process"] if host.user_namespaces_blocked() else ["process", "strict"]


@contextmanager
def _box(level: str) -> Iterator[Box]:
    with ringfence.open(SandboxPolicy(isolation=IsolationLevel(level), wall_time_s=600)) as opened:
        yield opened


def _await(opened: Box, program: str) -> None:
    handle = opened.start([sys.executable, "-c", program])
    end = time.monotonic() + PATIENCE_S
    while b"ready" not in handle.stdout:
        assert time.monotonic() < end and not handle.done, handle.stderr
        time.sleep(0.01)


def _mine() -> list[RunningSandbox]:
    """Of what is taken for a leader, all below this process: other tests may run sandboxes at the same time."""
    below = {process.pid for process in procfs.descendants(os.getpid())}
    return [leader for leader in leaders.find() if leader.pid in below]


def _top(command: list[str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command, "top", *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.parametrize("level", _levels())
def test_a_running_sandbox_is_found_with_what_it_uses(ringfence_command: list[str], level: str) -> None:
    with _box(level) as box:
        _await(box, "import time\nmass = b'x' * (40 << 20)\nprint('ready', flush=True)\ntime.sleep(600)")
        done = _top(ringfence_command, "--json", "--interval", "0.05")
        assert done.returncode == 0, done.stderr
        (row,) = [row for row in json.loads(done.stdout) if row["caller"] == os.getpid()]
    assert row["memory_bytes"] > 40 << 20
    assert row["processes"] >= 1 and row["seconds"] >= 0
    assert row["command"][0] == _own_command()[0]
    assert _mine() == []


def _own_command() -> list[str]:
    with open("/proc/self/cmdline", "rb") as file:
        return file.read().decode().split("\0")


@pytest.mark.parametrize("leave", ["", LEAVE_PARENTS], ids=["below", "adopted"])
@pytest.mark.parametrize("level", _levels())
def test_a_guest_that_calls_itself_a_leader_is_none(level: str, leave: str) -> None:
    with _box(level) as box:
        _await(box, leave + IMITATION)
        assert len(_mine()) == 1
        assert _mine()[0].caller == os.getpid()


def test_the_same_imitation_outside_of_a_sandbox_is_taken_for_one() -> None:
    """The control: by its names alone it can't be told from a leader."""
    imitation = subprocess.Popen([sys.executable, "-c", IMITATION], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert imitation.stdout is not None and imitation.stdout.readline() == b"ready\n"
        assert len(_mine()) == 1
    finally:
        os.killpg(imitation.pid, signal.SIGKILL)
        imitation.communicate()


class _Counted(dict[int, leaders._Entry]):
    """A table that counts how often somebody is looked up."""

    looked_up = 0

    def __getitem__(self, pid: int) -> leaders._Entry:
        self.looked_up += 1
        return super().__getitem__(pid)


def test_deeply_nested_imitations_do_not_cost_the_square_of_their_number() -> None:
    def entry(pid: int) -> leaders._Entry:
        name = (FORKER, LEADER)[pid % 2]
        return leaders._Entry(f"{pid} ({name}) S {pid - 1} {'0 ' * 30}".encode())

    count = 2000
    table = _Counted({pid: entry(pid) for pid in range(2, count)})
    found = [pid for pid in table if pid % 2 and leaders._leads(pid, table)]
    assert found == [3]
    assert table.looked_up < 10 * count


def test_another_users_leader_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    with _box("process") as box:
        _await(box, "import time\nprint('ready', flush=True)\ntime.sleep(600)")
        assert len(_mine()) == 1
        uid = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
        assert _mine() == []


def _row(command: tuple[str, ...], **figures: float) -> Row:
    leader = RunningSandbox(pid=7, start=1, caller=6, command=command)
    return Row(leader=leader, seconds=75, sample=Sample(time_s=1.0, **figures), shares=(0.0, 50.0, 100.0))  # type: ignore[arg-type]


def test_the_command_is_the_callers_and_can_not_touch_the_terminal() -> None:
    (_, _, line) = lines([_row(("/usr/bin/ringfence", "run", "--", "sh", "-c", "\x1b[2Jx\ny"))], 200)
    assert line.endswith("sh -c ?[2Jx?y")
    assert all(line.isprintable() for line in lines([_row(("a\x1b]0;b\x07", "\r\n\t"))], 60))
    assert command_of(RunningSandbox(pid=7, start=1, caller=0, command=())) == "?"


def test_a_line_is_as_long_as_the_terminal_is_wide_at_most() -> None:
    assert {len(line) <= 50 for line in lines([_row(("python", "x" * 300))], 50)} == {True}


def test_what_does_not_fit_is_counted_and_how_to_leave_is_always_told() -> None:
    assert fitted(["a", "b"], 10) == ["a", "b", "", "q quits"]
    assert fitted(["a", "b", "c", "d"], 4) == ["a", "b", "", "q quits; 2 more below"]


def test_the_table_adds_up_and_marks_what_could_not_be_read() -> None:
    busy = _row(("a",), memory_bytes=2**20, cpu_percent=50, written_bytes=2**20, unreadable=1)
    head, _, first, second = lines([busy, _row(("b",), cpu_percent=25)], 200)
    assert head == "2 sandboxes, 75 % of a core, 1 MiB"
    assert "1 MiB?" in first and "?" not in second and "1:15" in first
    assert " ▄█" in first


@pytest.mark.parametrize("words", [("--once",), ()], ids=["once", "no terminal"])
def test_without_a_terminal_it_prints_once(ringfence_command: list[str], words: tuple[str, ...]) -> None:
    done = _top(ringfence_command, "--interval", "0.05", *words)
    assert done.returncode == 0 and "COMMAND" in done.stdout.splitlines()[1]
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("interval", ["0", "nan", "1e9", "-1"])
def test_an_interval_that_is_none_is_refused(ringfence_command: list[str], interval: str) -> None:
    done = _top(ringfence_command, f"--interval={interval}")
    assert done.returncode == 2 and "--interval" in done.stderr


class _Terminal:
    """The command on a terminal of its own."""

    def __init__(self, command: list[str]) -> None:
        self.pid, self.screen = pty.fork()
        if self.pid == 0:
            os.execvp(command[0], command)
        fcntl.ioctl(self.screen, termios.TIOCSWINSZ, struct.pack("HHHH", 500, 120, 0, 0))
        self.before = termios.tcgetattr(self.screen)
        self.shown = b""

    def await_text(self, text: bytes) -> None:
        end = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            assert time.monotonic() < end, self.shown
            if select.select([self.screen], [], [], 1)[0]:
                self.shown += os.read(self.screen, 65536)

    def end(self) -> int:
        try:
            while piece := os.read(self.screen, 65536):
                self.shown += piece
        except OSError:
            pass  # the other side has been closed
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


ENDS = {"q": (lambda t: os.write(t.screen, b"q"), 0), "ctrl-c": (lambda t: os.write(t.screen, b"\x03"), 130),
        "kill": (lambda t: os.kill(t.pid, signal.SIGTERM), 130),
        "ctrl-backslash": (lambda t: os.write(t.screen, b"\x1c"), 130),
        "hang-up": (lambda t: os.kill(t.pid, signal.SIGHUP), 130)}  # fmt: skip


@pytest.mark.parametrize("way", ENDS)
def test_on_a_terminal_it_refreshes_until_it_is_ended_and_restores_the_terminal(
    ringfence_command: list[str], way: str
) -> None:
    with _box("process") as box:
        _await(box, "import time\nprint('ready', flush=True)\ntime.sleep(600)")
        terminal = _Terminal([*ringfence_command, "top", "--interval", "0.1"])
        terminal.await_text(b"q quits")
        assert str(_mine()[0].pid).encode() in terminal.shown
        terminal.shown = terminal.shown.replace(b"q quits", b"")
        terminal.await_text(b"q quits")  # once more: it refreshes
        changed = termios.tcgetattr(terminal.screen)
        ends, code = ENDS[way]
        ends(terminal)
        assert terminal.end() == code
    assert changed != terminal.before
    assert terminal.shown.rstrip().endswith(b"\x1b[?25h\x1b[?1049l")
    assert termios.tcgetattr(terminal.screen) == terminal.before
    os.close(terminal.screen)


WORDS = {"wide": "漢" * 300, "emoji": "😀" * 300, "long": "x" * 100_000, "control": "\x1b[2J" * 50,
         "direction": "\u202e" * 300, "no text": "\udcff" * 300}  # fmt: skip


@pytest.mark.parametrize("word", WORDS.values(), ids=WORDS)
def test_no_command_makes_a_line_longer_than_the_terminal(word: str) -> None:
    """A line that goes on in the next row would push the others out of the screen."""
    shown = harmless(f"1234 {word}", 80)
    assert shown.isprintable() and sum(2 if east_asian_width(char) in "WF" else 1 for char in shown) <= 80
    assert harmless("漢字", 4) == "漢字" and harmless("漢字", 3) == "漢…"
