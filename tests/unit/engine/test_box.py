"""A box is a place: files and background processes stay between visits, and everything ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import eventually

import ringfence
from ringfence import Job, SandboxError, SandboxPolicy, SetupError, Status, UnavailableError, UsageError
from ringfence.engine.box import Box
from ringfence.engine.handle import Handle
from ringfence.kernel.proc import processes, procfs
from ringfence.roles import box_leader

pytestmark = [pytest.mark.system, pytest.mark.privileges]

PYTHON = sys.executable
SERVER = textwrap.dedent(
    """
    import socket
    server = socket.create_server(("127.0.0.1", 5005))
    print("up", flush=True)
    while True:
        link, _ = server.accept()
        link.sendall(b"answer")
        link.close()
    """
)
CLIENT = "import socket; print(socket.create_connection(('127.0.0.1', 5005)).recv(99))"


@pytest.fixture(params=["strict", "process"])
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    with ringfence.open(SandboxPolicy(isolation=request.param, wall_time_s=30)) as opened:
        yield opened


@pytest.fixture
def strict() -> Iterator[Box]:
    with ringfence.open(SandboxPolicy(isolation="strict", wall_time_s=30)) as opened:
        yield opened


def _processes(box: Box) -> bytes:
    return box.run(["sh", "-c", "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done"]).stdout


def test_files_stay_from_one_visit_to_the_next(box: Box) -> None:
    assert box.run(["sh", "-c", "echo one > note"]).ok
    assert box.run(["sh", "-c", "echo two >> note; cat note"]).stdout == b"one\ntwo\n"


def test_files_go_in_and_come_out(box: Box) -> None:
    content = os.urandom(300_000)
    box.put("deep/er/file", content)
    assert box.run(["sh", "-c", "wc -c < deep/er/file"]).stdout.strip() == b"300000"
    assert box.get("deep/er/file") == content
    box.put("deep/er/file", b"")
    assert box.get("deep/er/file") == b""


def test_a_job_brings_its_files(box: Box) -> None:
    assert box.run(Job(argv=("cat", "a"), files={"a": b"mine"})).stdout == b"mine"
    assert box.get("a") == b"mine"


def test_a_file_that_is_not_there_says_so(box: Box) -> None:
    with pytest.raises(SandboxError, match="No such file"):
        box.get("missing")


def test_a_file_larger_than_asked_for_is_an_error(box: Box) -> None:
    box.put("big", bytes(5000))
    with pytest.raises(SandboxError, match="larger than 4999"):
        box.get("big", max_bytes=4999)
    assert len(box.get("big", max_bytes=5000)) == 5000


@pytest.mark.parametrize("make", ["mkfifo trap", "mkdir trap", "ln -s /dev/zero trap"])
def test_what_is_no_file_is_never_read(box: Box, make: str) -> None:
    assert box.run(["sh", "-c", make]).ok
    with pytest.raises(SandboxError, match=r"not a regular file|directory"):
        box.get("trap")


def test_a_link_that_the_guest_left_leads_no_further_than_the_guest_could_go(strict: Box, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the host's")
    strict.run(["ln", "-s", str(secret), "trap"])
    with pytest.raises(SandboxError):
        strict.get("trap")
    strict.put("trap", b"mine")
    assert strict.get("trap") == b"mine" and secret.read_text() == "the host's"


def test_a_server_started_in_one_visit_answers_in_the_next(strict: Box) -> None:
    server = strict.start([PYTHON, "-c", SERVER])
    eventually(lambda: b"up" in server.stdout or server.done, told=lambda: server.stderr)
    assert strict.run([PYTHON, "-c", CLIENT]).stdout == b"b'answer'\n"
    server.signal(signal.SIGTERM)
    assert server.wait(20).status is not Status.OK


def test_the_loopback_is_the_boxes_own(strict: Box) -> None:
    server = strict.start([PYTHON, "-c", SERVER])
    eventually(lambda: b"up" in server.stdout or server.done)
    with ringfence.open(strict.policy) as other:
        assert b"Refused" in other.run([PYTHON, "-c", CLIENT]).stderr


def test_what_a_visit_leaves_running_stays(strict: Box) -> None:
    assert strict.run(["sh", "-c", "sleep 1234 & echo left"]).stdout == b"left\n"
    assert b"sleep 1234" in _processes(strict)


def test_what_a_visit_leaves_running_may_do_all_that_it_might_before(strict: Box) -> None:
    """Calls that its filter tells of are answered also when the job that started it has ended long ago."""
    waiting = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    assert strict.run(["sh", "-c", '"$0" -c "$1" > said 2>&1 &', PYTHON, waiting + SERVER]).ok
    strict.run(["touch", "go"])
    eventually(lambda: strict.get("said"))
    assert strict.get("said") == b"up\n"
    assert strict.run([PYTHON, "-c", CLIENT]).stdout == b"b'answer'\n"


def test_who_leads_a_visit_goes_with_the_last_that_it_left() -> None:
    with ringfence.open(SandboxPolicy(isolation="strict")) as strict:
        strict.run(["true"])
        eventually(lambda: len(_leaders()) == 1)
        wait = "while [ ! -e {} ]; do sleep 0.05; done"
        strict.run(["sh", "-c", f"({wait.format('one')}; : > gone) & {wait.format('two')} &"])
        assert len(_leaders()) == 2
        strict.run(["touch", "one"])
        eventually(lambda: strict.run(["cat", "gone"]).ok)
        assert len(_leaders()) >= 2
        strict.run(["touch", "two"])
        eventually(lambda: len(_leaders()) == 1)
        strict.run(["sh", "-c", "sleep 1212 &"])
    assert not _leaders()


def _leaders() -> list[int]:
    found = []
    for row in procfs.descendants(os.getpid()):
        try:
            name = Path(f"/proc/{row.pid}/comm").read_text()
            found += [row.pid] if name == f"{processes.LEADER}\n" and not row.zombie else []
        except OSError:
            continue
    return found


def test_a_deadline_ends_its_own_visits_processes_and_no_others(strict: Box) -> None:
    strict.run(["sh", "-c", "sleep 1111 &"])
    with ringfence.open(SandboxPolicy(isolation="strict", wall_time_s=1.5)) as short:
        short.run(["sh", "-c", "sleep 1111 &"])
        ended = short.run(["sh", "-c", "(setsid sleep 2222 &); (setsid sh -c 'sleep 3333 & wait' &); sleep 4444"])
        assert ended.status is Status.TIMEOUT
        left = _processes(short)
    assert b"sleep 1111" in left
    assert not any(number in left for number in (b"2222", b"3333", b"4444")), left


def test_a_visit_can_be_killed_alone(strict: Box) -> None:
    first = strict.start(["sh", "-c", "(setsid sleep 5555 &); echo on; sleep 6666"])
    second = strict.start(["sh", "-c", "echo on; exec sleep 7777"])
    eventually(lambda: b"on" in first.stdout and b"on" in second.stdout)
    first.signal(signal.SIGKILL)
    assert first.wait(20).status is Status.KILLED_KILL
    left = _processes(strict)
    assert b"7777" in left and b"5555" not in left and b"6666" not in left
    assert not second.done


def _states(box: Box) -> dict[str, str]:
    """The argument of each sleep in the box, and its state."""
    look = "tr '\\0' ' ' < $p/cmdline; sed -n 's/^State:.//p' $p/status"
    told = box.run(["sh", "-c", f"for p in /proc/[0-9]*; do {look}; done"])
    rows = (line.split() for line in told.stdout.decode().splitlines() if line.startswith("sleep "))
    return {row[1]: row[2] for row in rows}


def test_a_visit_is_stopped_and_continued_alone_with_all_that_it_started(strict: Box) -> None:
    first = strict.start(["sh", "-c", "setsid sleep 5656 & echo on; sleep 6767"])
    strict.start(["sleep", "7878"])
    eventually(lambda: b"on" in first.stdout and _states(strict).keys() == {"5656", "6767", "7878"})
    first.signal(signal.SIGSTOP)
    eventually(lambda: _states(strict) == {"5656": "T", "6767": "T", "7878": "S"}, told=lambda: str(_states(strict)))
    first.signal(signal.SIGCONT)
    eventually(lambda: set(_states(strict).values()) == {"S"})


def test_a_visit_that_is_killed_as_soon_as_it_begins_leaves_nothing(strict: Box) -> None:
    for _ in range(10):
        visit = strict.start(["sh", "-c", "(setsid sleep 3131 &); sleep 3131"])
        visit.signal(signal.SIGKILL)
        assert not visit.wait(20).ok
    assert b"3131" not in _processes(strict)


@pytest.mark.parametrize("forks", [True, False])
def test_a_reaper_that_has_forked_the_job_meanwhile_is_not_ended_before_it(forks: bool) -> None:
    fork = "os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '600')" if forks else ""
    program = f"import os, time; {fork}\nprint(1, flush=True)\ntime.sleep(600)"
    reaper = subprocess.Popen([PYTHON, "-c", program], stdout=subprocess.PIPE)
    assert reaper.stdout is not None and reaper.stdout.readline() == b"1\n"
    job, row = procfs.children(reaper.pid), procfs.stat(reaper.pid)
    assert row is not None and len(job) == forks
    box_leader.end_reaper(procfs, row, time.monotonic() + 60)
    eventually(lambda: (procfs.stat(reaper.pid).zombie, procfs.is_stopped(reaper.pid)) == (not forks, False))
    for pid in job:
        os.kill(pid, signal.SIGKILL)
    reaper.kill()
    reaper.wait()
    reaper.stdout.close()


def test_input_is_written_and_output_streamed(box: Box) -> None:
    heard: list[tuple[str, bytes]] = []
    echo = box.start([PYTHON, "-u", "-c", "import sys\nfor line in sys.stdin: print(line.upper(), end='')"],
                     on_output=lambda stream, piece: heard.append((stream, piece)))  # fmt: skip
    echo.write(b"hello\n")
    eventually(lambda: b"HELLO" in echo.stdout)
    assert heard and heard[0][0] == "stdout"
    with pytest.raises(TimeoutError):
        echo.wait(0.01)
    echo.close_input()
    outcome = echo.wait(20)
    assert outcome.ok and outcome.stdout == b"HELLO\n"
    with pytest.raises(UsageError):
        echo.write(b"more")


def test_a_program_that_is_missing_is_said_by_its_step(box: Box) -> None:
    with pytest.raises(SetupError, match="exec"):
        box.run(["no-such-program"])
    assert box.run(["true"]).ok


def test_refused_calls_are_told_of_a_visit(strict: Box) -> None:
    outcome = strict.run([PYTHON, "-c", "import ctypes; ctypes.CDLL(None).unshare(0x10000000)"])
    told = [event.details["operation"] for event in outcome.events if str(event.kind) == "violation"]
    assert told == ["unshare"] and outcome.recorder["complete"] is True
    assert strict.run(["true"]).ok


def test_memory_is_held_for_all_visits_together() -> None:
    hog = "x = bytearray(120 << 20); x[::4096] = b'1' * len(x[::4096]); print('full', flush=True); input()"
    with ringfence.open(SandboxPolicy(isolation="strict", wall_time_s=60, mem_bytes=300 << 20)) as box:
        hogs: list[Handle] = []
        for _ in range(4):
            try:
                hogs.append(box.start([PYTHON, "-c", hog]))
            except SandboxError:
                break
            eventually(lambda: b"full" in hogs[-1].stdout or hogs[-1].done)
        assert any(one.done for one in hogs) or len(hogs) < 4


_READS = "i=0; while [ $i -lt 200 ]; do read -r line < /etc/passwd; i=$((i + 1)); done"


def test_a_visit_that_makes_more_calls_than_it_may_is_ended_and_others_go_on(box: Box) -> None:
    free = box.start(["sh", "-c", _READS], operations=100_000)
    over = box.start(["sh", "-c", _READS + "; sleep 60"], operations=150)
    late = box.start(["sh", "-c", _READS], operations=150)
    assert free.wait(60).ok and 200 <= free.operations < 100_000
    for each in (over, late):
        ended = each.wait(60)
        assert (ended.status, ended.rc, ended.limits_hit) == (Status.OPERATIONS_LIMIT, 137, ("operations",))
        assert each.operations > 150
    plain = box.start(["true"])
    assert plain.wait(60).ok and plain.operations == -1


def test_a_level_that_counts_no_calls_refuses_a_number_of_them(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(box._box), "limits_of_a_visit", frozenset())
    with pytest.raises(UnavailableError, match="can't count the calls of a visit"):
        box.start(["true"], operations=5)


def test_closing_ends_everything(strict: Box) -> None:
    before = _marked("8888")
    strict.run(["sh", "-c", "(setsid sleep 8888 &)"])
    running = strict.start(["sleep", "8888"])
    eventually(lambda: len(_marked("8888")) >= len(before) + 2)
    strict.close()
    assert running.done and _marked("8888") == before


def _marked(word: str) -> set[str]:
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and word.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                found.add(entry.name)
        except OSError:
            continue
    return found


def test_the_callers_death_ends_everything(tmp_path: Path) -> None:
    script = tmp_path / "caller.py"
    script.write_text(
        "import ringfence, os, time\nbox = ringfence.open()\nbox.run(['sh', '-c', '(setsid sleep 9191 &)'])\n"
        "handle = box.start(['sleep', '9191'])\nprint('open', flush=True)\ntime.sleep(100)\n"
    )
    caller = subprocess.Popen([PYTHON, str(script)], stdout=subprocess.PIPE)
    assert caller.stdout is not None and caller.stdout.readline() == b"open\n"
    eventually(lambda: len(_marked("9191")) == 2)
    caller.kill()
    caller.wait()
    eventually(lambda: not _marked("9191"))


def test_a_workspace_is_changed_in_a_layer_until_it_is_committed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "old").write_text("as it was")
    with ringfence.open(SandboxPolicy(isolation="strict"), tmp_path) as box:
        box.run(["sh", "-c", "echo new > made; echo changed > old"])
        box.run(["sh", "-c", "echo more >> made"])
        assert {(change.path, str(change.kind)) for change in box.changes()} == {("made", "added"), ("old", "modified")}
        assert (tmp_path / "old").read_text() == "as it was"
        box.commit()
    assert (tmp_path / "made").read_text() == "new\nmore\n" and (tmp_path / "old").read_text() == "changed\n"


def test_a_closed_box_takes_nothing_any_more(box: Box) -> None:
    box.close()
    box.close()
    uses = (lambda: box.run(["true"]), lambda: box.start(["true"]), lambda: box.put("a", b""), lambda: box.get("a"))
    for use in (*uses, box.changes, box.commit):
        with pytest.raises(UsageError, match="closed"):
            use()


def test_a_forked_copy_of_the_caller_can_not_use_it(box: Box) -> None:
    child = os.fork()
    if child == 0:
        try:
            for use in (lambda: box.run(["true"]), lambda: box.get("file"), box.changes, box.commit):
                with pytest.raises(UsageError, match="stays with the process"):
                    use()
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert box.run(["true"]).ok


def test_a_workspace_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="no such directory"):
        ringfence.open(SandboxPolicy(isolation="strict"), "/no/such/folder")


def test_a_guest_that_kills_everything_it_sees_does_not_outlive_its_visit(strict: Box) -> None:
    attack = "kill -9 -1; for p in /proc/[0-9]*; do kill -9 ${p#/proc/}; done; (setsid sleep 6161 &); sleep 6161"
    with ringfence.open(SandboxPolicy(isolation="strict", wall_time_s=2)) as box:
        outcome = box.run(["sh", "-c", attack])
        assert not outcome.ok
    eventually(lambda: not _marked("6161"))


def test_ctrl_c_in_a_wait_does_not_make_a_running_visit_look_ended(box: Box) -> None:
    handle = box.start(["sleep", "600"])
    for wait in (handle.wait, lambda: handle.wait(60)):
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            wait()
        assert not handle.done
    handle.signal(signal.SIGKILL)
    assert handle.wait(20).status is Status.KILLED_KILL
