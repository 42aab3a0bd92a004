"""A place that can go back, and an interpreter that lives in it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
from tests.patience import PATIENCE_S, eventually

from ringfence.backends.newest import Heard
from ringfence.checkpoint.transaction import Transaction
from ringfence.engine.run import transaction_kind
from ringfence.errors import CheckpointError, UsageError
from ringfence.integrations.living import checkpoints
from ringfence.integrations.living.cut import Gathered, cut
from ringfence.integrations.living.guest import CELL, HEAD, LENGTH, MARK_START
from ringfence.integrations.living.place import Place
from ringfence.integrations.living.python import LivingPython, _Tail
from ringfence.model.job import Job
from ringfence.model.policy import SandboxPolicy
from ringfence.python_jobs.reply import Reply, ReplyKind, read_reply

POLICY = SandboxPolicy(isolation="strict", wall_time_s=60, cpu_time_s=60)
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs isolation strict")


def test_gathered_keeps_the_first_and_the_last_half() -> None:
    gathered = Gathered(10)
    for piece in (b"abc", b"defgh", b"ijklmnop"):
        gathered.add(piece)
    assert gathered.all() == b"abcde\n[TRUNCATED] 6 bytes dropped\nlmnop"


def test_short_output_is_gathered_whole() -> None:
    gathered = Gathered(10)
    gathered.add(b"abcdefgh")
    assert gathered.all() == b"abcdefgh"


def test_a_cut_text_says_how_to_read_on() -> None:
    assert cut("x" * 10, 10, "more") == "x" * 10
    assert cut("x" * 20, 9, "more") == "x" * 6 + "\n[… 11 of 20 characters left out here; more …]\n" + "x" * 3


@pytest.fixture
def python() -> Iterator[LivingPython]:
    with Place(POLICY) as place:
        yield LivingPython(place)


@on_linux
@pytest.mark.system
@pytest.mark.privileges
def test_cells_share_variables_and_tell_output_values_and_exceptions(python: LivingPython) -> None:
    cell = python.run("import sys\nx = (1, {2: b'3'})\nprint('out')\nprint('err', file=sys.stderr)\nx")
    assert (cell.stdout, cell.stderr, cell.value, cell.ok) == (b"out\n", b"err\n", (1, {2: b"3"}), True)
    assert python.set({"y": [4]}).ok and python.run("[x, y]").value == [(1, {2: b"3"}), [4]]
    raised = python.run("def f():\n    return 1 / 0\nf()").raised
    assert raised is not None and raised.type_name == "ZeroDivisionError" and "return 1 / 0" in raised.traceback
    assert "guest.py" not in raised.traceback
    odd = python.run("object()")
    assert odd.value is None and odd.shown.startswith("<object object")


@on_linux
@pytest.mark.system
def test_a_cell_that_is_given_up_while_it_waits_never_runs_and_breaks_off_no_other(python: LivingPython) -> None:
    python.run("seen = []")
    first, second = threading.Event(), threading.Event()
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(python.run, "import time\nseen.append(1)\nwhile len(seen) < 9: time.sleep(.1)",
                                 given_up=first)  # fmt: skip
        eventually(python._one_at_a_time.locked)
        waiting = threads.submit(python.run, "seen.append(2)", given_up=second)
        second.set()
        assert "before it started" in waiting.result(PATIENCE_S).problem
        assert not running.done(), "only its own giver-up breaks it off"
        first.set()  # the control
        assert running.result(PATIENCE_S).problem == "it was interrupted"
    assert python.run("seen").value == [1]


@on_linux
@pytest.mark.system
def test_a_cell_that_takes_too_long_is_interrupted_or_killed(python: LivingPython) -> None:
    python.run("x = 1")
    broken = python.run("import time\ntime.sleep(100)", timeout=0.5)
    assert not broken.ok and not broken.lost and "took too long" in broken.problem
    assert python.run("x").value == 1
    stubborn = python.run("import signal\nsignal.signal(2, signal.SIG_IGN)\nwhile True: pass", timeout=0.5)
    assert stubborn.lost and "killed" in stubborn.problem
    fresh = python.run("x")
    assert fresh.raised is not None and fresh.raised.type_name == "NameError"


@on_linux
@pytest.mark.system
@pytest.mark.parametrize("code", [
    "import os\nos._exit(0)",
    "import sys\nsys.exit(0)",
    "import os\nos.close(1)",
    "import os\nos.write(1, b'\\n\\x1e' + b'0' * 16 + b'\\n\\0\\0\\0\\0')",
    "import sys\nsys.stdout = sys.stderr = None",
    "print('x' * 10_000_000)",
])  # fmt: skip
def test_what_a_cell_does_to_its_interpreter_leaves_the_next_one_usable(python: LivingPython, code: str) -> None:
    python.run(code, timeout=20)
    answer = python.run("40 + 2", timeout=20)
    assert answer.value == 42 or python.run("40 + 2").value == 42, answer


@on_linux
@pytest.mark.system
def test_a_place_goes_back_and_commits_what_was_sealed(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "a").write_text("1")
    made = Transaction.create(tmp_path / "tx", [base], kind=transaction_kind(POLICY))
    with made as transaction, Place(POLICY, transaction) as place:
        place.put("a", b"2")
        two = place.checkpoint("two")
        place.put("a", b"3")
        place.roll_back(two.checkpoint_id)
        assert place.get("a", 100) == b"2"
        assert place.run(Job(argv=("cat", "a"))).stdout == b"2"
        sealed = place.seal()
        place.commit(sealed=sealed)
    assert (base / "a").read_text() == "2"


@on_linux
@pytest.mark.system
def test_checkpoints_take_no_more_than_their_part_of_the_host_s_disk(tmp_path: Path) -> None:
    """A model may ask for as many as it likes, and each keeps the files as they were."""
    (base := tmp_path / "base").mkdir()
    disk = 1 << 20
    policy = POLICY.with_changes(disk_bytes=disk)
    made = Transaction.create(tmp_path / "tx", [base], kind=transaction_kind(policy))
    with made as transaction, Place(policy, transaction) as place:
        for each in range(2):  # the control
            place.put("a", os.urandom(disk // 4))
            assert place.checkpoint(str(each)).name == str(each)
        with pytest.raises(CheckpointError, match="is the limit") as refused:
            for _ in range(30):
                place.end_all()  # as by a limit: each box may write so much anew
                place.put("a", os.urandom(disk // 4))
                place.checkpoint()
        assert "commit" in refused.value.hint and transaction.used_bytes() <= checkpoints.MOST_CHECKPOINT_DISKS * disk
        place.roll_back(place.checkpoints()[0].checkpoint_id)
        place.commit()
        assert place.checkpoint("after").name == "after"


@on_linux
@pytest.mark.system
def test_a_place_without_a_workspace_has_no_history() -> None:
    with Place(POLICY) as place, pytest.raises(UsageError, match="has no checkpoints"):
        place.checkpoint()
    with pytest.raises(UsageError, match="closed"):
        place.run(Job(argv=("true",)))


def test_a_reply_that_says_it_is_endless_is_held_no_further_than_a_reply_can_be() -> None:
    tail = _Tail(b"m" * 16, 1000)
    assert tail.add(b"out" + MARK_START + b"m" * 16 + b"\n" + LENGTH.pack(2**32 - 1)) == b"out"
    assert tail.found and not tail.complete
    for _ in range(100):
        assert tail.add(b"x" * 1000) == b""
    assert len(tail.held) == 1000 + LENGTH.size and tail.complete and tail.payload == b"x" * 1000


class Streams:
    """A visit whose interpreter has said this; how each stream was asked for more is written down."""

    def __init__(self, stdout: bytes, stderr: bytes, ends_after: int) -> None:
        self._said = {"stdout": stdout, "stderr": stderr}
        self._left = ends_after
        self.in_vain: list[tuple[str, float]] = []
        self.signals: list[int] = []

    def _read(self, name: str, since: int, timeout_s: float) -> Heard:
        data = self._said[name][since:]
        if not data:
            self.in_vain.append((name, timeout_s))
        return Heard(data=data, position=since + len(data))

    def read_stdout(self, since: int, *, timeout_s: float) -> Heard:
        return self._read("stdout", since, timeout_s)

    def read_stderr(self, since: int, *, timeout_s: float) -> Heard:
        return self._read("stderr", since, timeout_s)

    def signal(self, number: int) -> None:
        self.signals.append(number)

    @property
    def done(self) -> bool:
        self._left -= 1
        return self._left < 0


MARK = b"m" * 16
BEGIN = MARK_START + MARK + b"\n"


def listened(streams: Any, seconds: float = PATIENCE_S) -> tuple[bytes | None, str]:
    place: Any = SimpleNamespace(policy=POLICY)
    gathered = {name: Gathered(1000) for name in ("stdout", "stderr")}
    return LivingPython(place)._listen(streams, MARK, gathered, time.monotonic() + seconds, threading.Event())


@pytest.mark.parametrize(("stdout", "stderr", "waits"), [
    (BEGIN, BEGIN, "stdout"),
    (BEGIN + LENGTH.pack(5) + b"1234", BEGIN, "stdout"),
    (BEGIN + LENGTH.pack(1) + b"1", b"", "stderr"),
    (b"", b"", "both"),
], ids=["no length", "half a reply", "no mark on stderr", "nothing"])  # fmt: skip
def test_what_has_not_come_is_waited_for(stdout: bytes, stderr: bytes, waits: str) -> None:
    """Otherwise the caller's thread would ask for it without a rest."""
    streams = Streams(stdout, stderr, 5)
    assert listened(streams) == (None, "")
    rests = [name for name, timeout_s in streams.in_vain[:-2] if timeout_s > 0]  # the last two: it has ended
    assert len(rests) >= 4 and set(rests) == ({"stdout", "stderr"} if waits == "both" else {waits})


def test_a_cell_that_has_ended_when_its_time_is_over_is_not_interrupted() -> None:
    ended = Streams(BEGIN + LENGTH.pack(1) + b"1", BEGIN, 5)
    assert listened(ended, -1) == (b"1", "") and ended.signals == []
    running = Streams(b"", b"", 5)
    assert "took too long" in listened(running, -1)[1] and running.signals == [2], "the control"


# It waits for late interrupts as long as a test may.
GUEST = """\
from ringfence.integrations.living import guest
guest._LATE_S = 600
guest.serve(100_000)
"""
CELL_UNTIL = """\
import os, time
os.write(1, b'begun\\n')
while not os.path.exists({!r}): time.sleep(0.01)
"""


@on_linux
@pytest.mark.system
@pytest.mark.parametrize(("sent_before", "kind"), [(1, ReplyKind.VALUE), (0, ReplyKind.RAISED)],
                         ids=["an earlier cell's", "its own"])  # fmt: skip
def test_an_interrupt_hits_the_cell_that_it_was_meant_for(tmp_path: Path, sent_before: int, kind: ReplyKind) -> None:
    """One that was sent before the request, and comes after it: the cell begins only then."""
    with subprocess.Popen([sys.executable, "-c", GUEST], stdin=-1, stdout=-1, stderr=subprocess.DEVNULL) as guest:
        assert guest.stdin is not None and guest.stdout is not None
        _say(guest.stdin, b"1", 0)
        assert _reply(guest.stdout).kind is ReplyKind.VALUE, "it listens to interrupts by now"
        _say(guest.stdin, CELL_UNTIL.format(str(tmp_path / "end")).encode(), sent_before)
        if not sent_before:
            select.select([guest.stdout], [], [], PATIENCE_S)
        has_begun, _, _ = select.select([guest.stdout], [], [], 0.5)  # long enough for one that does not wait
        guest.send_signal(signal.SIGINT)
        (tmp_path / "end").touch()
        assert guest.stdout.readline() == b"begun\n"
        said = _reply(guest.stdout)
        guest.stdin.close()
    assert said.kind is kind and bool(has_begun) is (not sent_before)


def _say(stdin: IO[bytes], source: bytes, sent: int) -> None:
    stdin.write(HEAD.pack(CELL, len(source), sent, MARK) + source)
    stdin.flush()


def _reply(stdout: IO[bytes]) -> Reply:
    assert stdout.read(len(BEGIN)) == BEGIN
    return read_reply(stdout.read(LENGTH.unpack(stdout.read(LENGTH.size))[0]))


@on_linux
@pytest.mark.system
def test_a_cell_that_forges_an_endless_reply_comes_to_an_end(python: LivingPython) -> None:
    forged = python.run(
        "import os, sys\nframe = sys._getframe()\n"
        "while frame and 'mark' not in frame.f_locals: frame = frame.f_back\n"
        "begin = b'\\n\\x1e' + frame.f_locals['mark'] + b'\\n'\n"
        "os.write(2, begin); os.write(1, begin + b'\\xff\\xff\\xff\\xff')\n"
        "import time\nfor _ in range(200): os.write(1, b'x' * 65536); time.sleep(0.005)"
    )
    assert forged.value is None and not forged.lost
    python.reset()
    assert python.run("1 + 1").value == 2
