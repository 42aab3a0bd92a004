"""Living boxes of the level container on a real Docker engine: visits, files, limits and ends; and attacks on pid 1.

An attack prints ESCAPED where it gets what it is after. Its control is the same in a plain process or container, which
has not the protection that is tested: there it must succeed, else it would prove nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.patience import eventually
from tests.private_folders import left_in

import ringfence
from ringfence import Job, Outcome, SandboxPolicy
from ringfence.backends.in_container.hidden_watch import HiddenWatch
from ringfence.container import group_files, mounted, orphans, visits
from ringfence.container.api import Client
from ringfence.container.hardening import ContainerSpec
from ringfence.engine.box import Box
from ringfence.errors import FileError, SetupError, UnavailableError, UsageError
from ringfence.model import state_folder
from ringfence.model.limits import IsolationLevel, SyscallProfile
from ringfence.model.outcome import Status

pytestmark = [pytest.mark.system, pytest.mark.root]

POLICY = SandboxPolicy(isolation=IsolationLevel.CONTAINER, wall_time_s=120)


@pytest.fixture(autouse=True)
def engine(container_client: Client) -> Client:
    return container_client


@pytest.fixture
def box() -> Iterator[Box]:
    with ringfence.open(POLICY) as made:
        yield made


def python(box: Box, code: str, **also: object) -> Outcome:
    return box.run(Job(argv=("python3", "-I", "-S", "-c", code)), **also)  # type: ignore[arg-type]


def test_visits_come_and_go_and_what_they_leave_stays(box: Box) -> None:
    assert box.run(["sh", "-c", "echo one > a; cat; exit 3"], input=b"in").rc == 3
    assert box.run(["cat", "a"]).stdout == b"one\n"
    assert box.run(["env"], env={"MINE": "1"}).stdout.count(b"MINE=1") == 1
    box.put("deep/er/b", b"x" * 3_000_000)
    assert box.get("deep/er/b") == b"x" * 3_000_000
    left = python(box, "import os, time\nif os.fork() == 0:\n time.sleep(1)\n open('late', 'w').close()\n os._exit(0)")
    assert left.status is Status.OK
    eventually(lambda: box.run(["sh", "-c", "[ -e late ]"]).ok)
    for code in (0, 1, 126, 137, 255):
        done = python(box, f"import os; os._exit({code})")
        assert (done.rc, done.status) == (code, Status.FAILED if code else Status.OK)
    assert python(box, "import os; os.kill(os.getpid(), 11)").status is Status.CRASHED
    assert python(box, "import os; os.kill(os.getpid(), 9)").status is Status.KILLED_KILL
    with pytest.raises(SetupError, match="exec"):
        box.run(["no-such-program"])
    with pytest.raises(SetupError, match="chdir"):
        box.run(["true"], cwd="/no/such/folder")
    assert not box.ended


def test_signals_streams_and_terminals_are_the_callers_own(box: Box) -> None:
    running = box.start(["sh", "-c", "trap 'echo heard; exit 5' TERM; echo ready; while :; do sleep 0.05; done"])
    eventually(lambda: b"ready" in running.stdout)
    running.signal(signal.SIGTERM)
    ended = running.wait()
    assert (ended.rc, ended.stdout) == (5, b"ready\nheard\n")
    shown = box.run(Job(argv=("python3", "-c", "import os; print(os.isatty(0), os.ttyname is not None)"),
                        terminal=True))  # fmt: skip
    assert shown.stdout.startswith(b"True"), shown
    cut = python(box, "print('x' * 100000)", on_output=None)
    assert cut.ok and len(cut.stdout) == 100001


def test_the_deadline_is_of_one_visit_and_of_all_its_processes(box: Box) -> None:
    beside = box.start(["sh", "-c", "read line; echo $line"])
    daemon = "import os, signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\n" \
             "if os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n  for n in range(600):\n" \
             "   open('alive', 'a').write('.'); time.sleep(0.05)\n os._exit(0)\ntime.sleep(60)"  # fmt: skip
    late = python(box, daemon, timeout=1.5)
    assert late.status is Status.TIMEOUT, late
    size = len(box.get("alive"))
    time.sleep(0.3)
    assert 0 < size == len(box.get("alive"))
    beside.write(b"hello\n")
    assert beside.wait().stdout == b"hello\n" and not box.ended


def test_pid_1_holds_the_deadline_when_the_caller_does_not() -> None:
    with ringfence.open(POLICY.with_changes(wall_time_s=1)) as box:
        assert box.run(["sleep", "60"]).status is Status.TIMEOUT
        assert box.run(["true"]).ok


STOPS = "import os, signal, time\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(60)"
KILLS = "import os, signal, time\nif os.fork() == 0:\n os.setsid()\n os.kill({reaper}, signal.SIGKILL)\n" \
        " time.sleep(1)\n open('ESCAPED', 'w').close()\n os._exit(0)\ntime.sleep(60)"  # fmt: skip


def test_who_stops_or_kills_the_reaper_is_ended_and_others_are_not(box: Box) -> None:
    beside = box.start(["sh", "-c", "read line; echo $line"])
    assert python(box, STOPS, timeout=1).status is Status.TIMEOUT
    lost = python(box, "import os\nreaper = os.getppid()\n" + KILLS.format(reaper="reaper"))
    assert lost.status is Status.KILLED_KILL and "reaper" in lost.reason
    time.sleep(1.2)
    assert not box.run(["sh", "-c", "[ -e ESCAPED ]"]).ok
    beside.write(b"hello\n")
    assert beside.wait().stdout == b"hello\n" and not box.ended


def test_the_control_of_that(tmp_path: Path) -> None:
    """A process whose parent is killed goes on where nobody looks for it."""
    code = "import os\nreaper = os.getpid()\n" + KILLS.format(reaper="reaper")
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    eventually((tmp_path / "ESCAPED").exists)


TO_PID_1 = """
import os, signal, socket, sys
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    os.kill(1, number)
for path in ('/proc/1/fd', '/proc/1/mem', '/proc/1/environ', f'/proc/{os.getppid()}/fd', f'/proc/{os.getppid()}/mem'):
    try:
        print('ESCAPED', path, os.listdir(path) if path.endswith('fd') else open(path, 'rb').read(1))
    except OSError:
        pass
for kind in (socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
    try:
        socket.socket(socket.AF_UNIX, kind).connect('/ringfence/door/socket'); print('ESCAPED door')
    except OSError:
        pass
for descriptor in range(3, 64):
    try:
        os.fstat(descriptor); print('ESCAPED descriptor', descriptor)
    except OSError:
        pass
try:
    open('/ringfence/visits', 'wb'); print('ESCAPED program')
except OSError:
    pass
print('done')
"""


def test_pid_1_and_its_door_are_out_of_reach(box: Box) -> None:
    outcome = python(box, TO_PID_1)
    assert outcome.stdout == b"done\n", outcome
    assert box.run(["true"]).ok
    own = "import os; print('ESCAPED' if os.listdir(f'/proc/{os.getppid()}/fd') else '')"
    words = ["docker", "run", "--rm", "--network=none", "--user=65534:65534", "python:3.10-slim", "python3", "-c",
             f"import subprocess; subprocess.run(['python3', '-c', {own!r}])"]  # fmt: skip
    assert "ESCAPED" in subprocess.run(words, capture_output=True, text=True, check=False).stdout


def test_files_come_out_only_where_they_are_files(box: Box, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("ESCAPED")
    tmp_path.chmod(0o755)
    made = f"ln -s {tmp_path}/secret link; mkdir folder; touch big; ln -s /etc/passwd own"
    assert box.run(["sh", "-c", made]).ok
    python(box, "import os\nos.mkfifo('pipe')\nos.truncate('big', 1 << 24)")
    assert os.path.exists(tmp_path / "secret"), "the link leads somewhere on the host"
    for name, words in (("link", "No such file"), ("folder", "not a regular file"), ("pipe", "not a regular file"),
                        ("/dev/zero", "not a regular file"), ("nothing", "No such file")):  # fmt: skip
        with pytest.raises(FileError, match=words):
            box.get(name)
    with pytest.raises(FileError, match="larger than 1000 bytes"):
        box.get("big", max_bytes=1000)
    with pytest.raises(FileError, match="Read-only"):
        box.put("/etc/evil", b"x")
    with pytest.raises(FileError, match="directory"):
        box.put("folder", b"x")
    box.put("link", b"ours")  # in place of the link, not through it
    assert box.get("link") == b"ours" and (tmp_path / "secret").read_text() == "ESCAPED"
    assert box.get("own").startswith(b"root:")


BOMB = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
HOG = "blocks = []\nwhile True: blocks.append(bytearray(1 << 24))"
SPIN = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"


def test_limits_hold_for_all_visits_together() -> None:
    policy = POLICY.with_changes(mem_bytes=128 << 20, pids_max=24, disk_bytes=8 << 20)
    with ringfence.open(policy) as box:
        beside = box.start(["sh", "-c", "read line; echo $line"])
        assert python(box, HOG).status is Status.MEM_LIMIT
        bomb = python(box, BOMB, timeout=2)
        assert bomb.status in (Status.TIMEOUT, Status.PIDS_LIMIT) and "pids" in bomb.limits_hit, bomb
        full = python(box, "open('f', 'wb').write(bytes(16 << 20))")
        assert full.status is Status.FAILED and b"No space left" in full.stderr
        refused = python(box, "import os\nfor _ in range(40):\n if os.fork() == 0:\n  import time; time.sleep(30)\n")
        assert refused.status is Status.PIDS_LIMIT, refused
        assert box.run(["true"]).status is Status.PIDS_LIMIT, "what that has left running takes all the room"
        beside.write(b"hello\n")
        assert beside.wait().stdout == b"hello\n"


def test_processor_time_of_all_ends_the_box() -> None:
    with ringfence.open(POLICY.with_changes(cpu_time_s=2)) as box:
        assert box.run(["true"]).ok and not box.ended
        spent = python(box, SPIN)
        assert spent.status is Status.CPU_LIMIT, spent
        eventually(lambda: box.ended or python(box, SPIN) is None)


TOGETHER = "import os, time\ninput()\nfor _ in range(3): os.fork()\nwhile time.process_time() < 0.6: pass\n" \
           "time.sleep(600)"  # fmt: skip
"""More than two seconds for all of them together, and less for each."""


def test_a_box_ends_although_its_pid_1_does_not_get_to_run(engine: Client) -> None:
    with ringfence.open(POLICY.with_changes(cpu_time_s=2, wall_time_s=60)) as box:
        running = box.start(["sh", "-c", f"echo ready; exec python3 -I -S -c '{TOGETHER}'"])
        eventually(lambda: b"ready" in running.stdout)
        os.kill(pid_1(engine), signal.SIGSTOP)
        running.write(b"go\n")
        assert running.wait().status is Status.CPU_LIMIT


def pid_1(engine: Client) -> int:
    """Of the one container of ours, as the host knows it."""
    (ours,) = [each for each in engine.list(orphans.OWNER) if each.labels[orphans.OWNER] == orphans.owner()]
    pids = group_files.members(group_files.locate(ours.id))
    (found,) = [pid for pid in pids if "NSpid" in (said := Path(f"/proc/{pid}/status").read_text())
                and said.partition("NSpid:")[2].splitlines()[0].split()[-1] == "1"]  # fmt: skip
    return found


def test_tight_visits_have_no_processes_and_no_sockets() -> None:
    code = "import os, socket\ntry: os.fork(); print('ESCAPED')\nexcept OSError: print('none')\n" \
           "try: socket.socket(); print('ESCAPED')\nexcept OSError: print('none')"  # fmt: skip
    with ringfence.open(POLICY) as box:
        assert python(box, code).stdout.count(b"ESCAPED") >= 2
    with ringfence.open(POLICY.with_changes(syscall_profile=SyscallProfile.TIGHT)) as box:
        assert python(box, code).stdout == b"none\nnone\n"
        box.put("a", b"1")
        assert box.get("a") == b"1"


def test_a_workspace_is_read_only_unless_the_policy_says_more(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    (tmp_path / "a").write_text("here")
    with ringfence.open(POLICY, tmp_path) as box:
        assert box.run(["cat", "a"]).stdout == b"here"
        assert not box.run(["touch", "b"]).ok
    with ringfence.open(POLICY.with_changes(writable_paths=(str(tmp_path),)), tmp_path) as box:
        assert box.run(["touch", "b"]).ok
        box.put("c", b"3")
    assert (tmp_path / "b").exists() and (tmp_path / "c").read_bytes() == b"3"


def test_ten_visits_at_once_get_each_their_own(box: Box) -> None:
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda n=n: found.append(python(box, f"print({n})").stdout)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(b"%d\n" % n for n in range(10))


def test_a_box_says_that_it_has_no_room_for_another_visit() -> None:
    with ringfence.open(POLICY.with_changes(pids_max=300)) as box:
        for _ in range(visits.MOST_VISITS):
            assert box.run(["sh", "-c", "sleep 600 < /dev/null > /dev/null 2>&1 &"]).ok
        with pytest.raises(SetupError, match="64 visits to this container still have running processes"):
            box.run(["true"])
        assert not box.ended


def test_who_closes_ends_what_runs(engine: Client) -> None:
    box = ringfence.open(POLICY)
    running = box.start(["sleep", "600"])
    box.close()
    assert running.wait().status is Status.KILLED_KILL


def test_a_box_whose_container_is_killed_says_so(engine: Client) -> None:
    with ringfence.open(POLICY) as box:
        running = box.start(["sleep", "600"])
        (ours,) = [each for each in engine.list(orphans.OWNER) if each.labels[orphans.OWNER] == orphans.owner()]
        engine.kill(ours.id)
        assert running.wait().status is Status.KILLED_KILL
        eventually(lambda: box.ended)
        assert box.run(["true"]).status is Status.KILLED_KILL


KILLED = """
import sys, time, ringfence
from ringfence import SandboxPolicy
from ringfence.model.limits import IsolationLevel
box = ringfence.open(SandboxPolicy(isolation=IsolationLevel.CONTAINER))
print(box.start(["sleep", "600"]) and "open", flush=True)
time.sleep(600)
"""


def test_a_box_ends_with_its_caller(engine: Client, tmp_path: Path) -> None:
    caller = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE,
                              env={**os.environ, "TMPDIR": str(tmp_path)})  # fmt: skip
    assert caller.stdout is not None and caller.stdout.readline() == b"open\n"
    owner = orphans.owner(caller.pid)

    def left() -> list[str]:
        return [each.name for each in engine.list(orphans.OWNER) if each.labels[orphans.OWNER] == owner]

    assert len(left()) == 1 and left_in(tmp_path) == []
    caller.kill()
    caller.wait()
    eventually(lambda: left() == [])


@pytest.mark.parametrize(("name", "value", "words"), [
    ("RINGFENCE_PURE", "1", "native parts"), ("RINGFENCE_RUNTIME", "runsc", "gVisor"),
])  # fmt: skip
def test_where_there_can_be_none_that_is_said(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UnavailableError, match=words):
        ringfence.open(POLICY.with_changes(allow_partial=True))


@pytest.mark.parametrize("exchanged", ["by a directory", "by a link", "above it"])
def test_a_folder_that_is_exchanged_before_it_is_mounted_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanged: str
) -> None:
    secret, above = tmp_path / "secret", tmp_path / "above"
    shown = above / "shown"
    for folder in (secret, above, shown):
        folder.mkdir()
    (secret / "a").write_text("ESCAPED")
    (secret / "shown").mkdir()
    (secret / "shown" / "a").write_text("ESCAPED")
    (shown / "a").write_text("shown")
    create, policy = Client.create, POLICY.with_changes(readable_paths=(str(shown),))

    def exchange(client: Client, spec: ContainerSpec, name: str = "") -> str:
        if exchanged == "above it":
            above.rename(tmp_path / "away")
            above.symlink_to(secret)
        else:
            shown.rename(tmp_path / "away")
            shown.symlink_to(secret) if exchanged == "by a link" else secret.rename(shown)
        return create(client, spec, name)

    with ringfence.open(policy) as box:
        assert box.run(["cat", f"{shown}/a"]).stdout == b"shown"
    monkeypatch.setattr(Client, "create", exchange)
    with pytest.raises(SetupError, match="not what was there"):
        ringfence.open(policy)
    monkeypatch.setattr(Client, "create", create)
    monkeypatch.setattr(mounted.Sources, "compare", lambda self, places: None)
    undo(tmp_path, exchanged)
    monkeypatch.setattr(Client, "create", exchange)
    with ringfence.open(policy) as box:
        assert box.run(["cat", f"{shown}/a"]).stdout == b"ESCAPED", "the attack proves nothing"


def undo(tmp_path: Path, exchanged: str) -> None:
    above = tmp_path / "above"
    put = above if exchanged == "above it" else above / "shown"
    put.unlink() if put.is_symlink() else put.rename(tmp_path / "secret")
    (tmp_path / "away").rename(put)


def _come(path: Path) -> None:
    path.write_text("ESCAPED")


def _replace(path: Path) -> None:
    new = path.with_suffix(".new")
    new.write_text("ESCAPED")
    new.replace(path)


def _exchange_its_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_suffix(".old"))
    path.parent.mkdir()
    path.write_text("ESCAPED")


@pytest.mark.parametrize("change", [_come, _replace, _exchange_its_folder])
def test_a_hidden_path_that_comes_or_is_exchanged_is_seen_by_no_later_visit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    key = tmp_path / "shown" / "folder" / "key"
    policy = POLICY.with_changes(readable_paths=(str(tmp_path / "shown"),), hidden_paths=(str(key),))
    key.parent.mkdir(parents=True)
    if change is not _come:
        key.write_text("ESCAPED")
    with ringfence.open(policy) as box, ringfence.open(policy) as unwatched:
        assert all(b"ESCAPED" not in each.run(["cat", str(key)]).stdout for each in (box, unwatched))
        change(key)
        with pytest.raises(UsageError, match=f"hidden path {key} was created"):
            box.run(["cat", str(key)])
        assert box.ended
        with ringfence.open(policy) as another:
            assert another.run(["cat", str(key)]).stdout == b""
        monkeypatch.setattr(HiddenWatch, "exposed", lambda self: "")
        assert unwatched.run(["cat", str(key)]).stdout == b"ESCAPED", "the attack proves nothing"


def test_a_state_folder_that_comes_is_seen_by_no_later_visit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with ringfence.open(POLICY.with_changes(readable_paths=(str(tmp_path),))) as box:
        assert box.run(["true"]).ok
        state_folder.key()
        with pytest.raises(UsageError, match="was created or replaced"):
            box.run(["ls", str(tmp_path / "state" / "ringfence")])
