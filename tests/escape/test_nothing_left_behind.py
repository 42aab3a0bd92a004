"""Whatever happens to the caller, no process, descriptor, directory or thread of a job outlives it."""

from __future__ import annotations

import gc
import glob
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence import Job, SandboxPolicy, Status, run
from ringfence.roles import spawner
from tests.escape.attack import PARTIAL, interpreter_for
from tests.patience import PATIENCE_S
from tests.private_folders import left_in

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]

SLEEPER = "import os, sys, time\nif os.fork() == 0:\n os.setsid()\n os.fork()\ntime.sleep(60)  # {tag}"

LEVELS = ("process", "strict")


@pytest.fixture
def private_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Scratch directories of this test only."""
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder


def _processes_with(tag: str) -> list[int]:
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            if tag.encode() in Path(path).read_bytes() and int(path.split("/")[2]) != os.getpid():
                found.append(int(path.split("/")[2]))
        except OSError:
            continue
    return found


def _gone(tag: str, seconds: float = PATIENCE_S) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not _processes_with(tag):
            return True
        time.sleep(0.05)
    return False


def _until(condition: object, seconds: float = PATIENCE_S) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.05)
    return False


CALLERS = {
    "library": "from ringfence import run; run([sys.executable, '-c', code])",
    "library, strict": (
        "from ringfence import run, SandboxPolicy; run([sys.executable, '-c', code], SandboxPolicy(isolation='strict'))"
    ),
    "command line, strict": (
        "from ringfence.cli import main; main(['run', '--strict', '--', sys.executable, '-c', code])"
    ),
    "library, strict without namespaces": (
        "from ringfence import run, SandboxPolicy\nfrom ringfence.sandbox import host\n"
        "host.user_namespaces_blocked = lambda: ('user namespaces', 'none: this is a test')\n"
        f"run(['{interpreter_for(PARTIAL)}', '-c', code], SandboxPolicy(isolation='strict', allow_partial=True))"
    ),
    "command line": "from ringfence.cli import main; main(['run', '--', sys.executable, '-c', code])",
    "after a fork of the caller": (
        # A second process holds copies of every pipe of the caller: its death must be seen all the same.
        "import os, time\nfrom ringfence import run\nimport threading\n"
        "threading.Thread(target=run, args=([sys.executable, '-c', code],)).start()\ntime.sleep(1.0)\n"
        "os.fork()\ntime.sleep(30)  # holder"
    ),
}


@pytest.mark.parametrize("how", CALLERS)
def test_a_killed_caller_takes_the_whole_tree_and_its_folder_along(how: str, private_tmp: Path) -> None:
    tag = f"tag-{os.urandom(6).hex()}"
    code = SLEEPER.format(tag=tag)
    program = f"import sys\ncode = {code!r}\n{CALLERS[how]}"
    caller = subprocess.Popen([sys.executable, "-c", program], start_new_session=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)  # fmt: skip
    try:
        assert _until(lambda: len(_processes_with(tag)) >= 4), "the tree never came up"
        time.sleep(1.2 if "fork" in how else 0)
        os.kill(caller.pid, signal.SIGKILL)
        caller.wait()
        jobs_gone = _until(lambda: not [p for p in _processes_with(tag) if not _is_python_c(p, "holder")])
        assert jobs_gone
        assert _until(lambda: not left_in(private_tmp))
        assert _until(lambda: not _cgroups_of(caller.pid))
    finally:
        for pid in _processes_with(tag):
            os.kill(pid, signal.SIGKILL)


def _cgroups_of(maker: int) -> list[str]:
    """Groups whose name tells that this process made them."""
    return [name for top, names, _ in os.walk("/sys/fs/cgroup") for name in names
            if name.startswith("ringfence-") and f"-{maker}-" in name]  # fmt: skip


def _is_python_c(pid: int, word: str) -> bool:
    try:
        return word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.control
def test_without_the_leader_a_killed_caller_leaves_its_children_behind() -> None:
    """The positive control: this is what a plain subprocess does."""
    tag = f"tag-{os.urandom(6).hex()}"
    program = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {SLEEPER.format(tag=tag)!r}])"
    caller = subprocess.Popen([sys.executable, "-c", program])
    assert _until(lambda: len(_processes_with(tag)) >= 4)
    caller.kill()
    caller.wait()
    time.sleep(0.5)
    left = _processes_with(tag)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left


@pytest.mark.parametrize("level", LEVELS)
def test_ctrl_c_in_the_library_ends_the_job_and_is_raised(level: str, private_tmp: Path) -> None:
    tag = f"tag-{os.urandom(6).hex()}"
    timer = threading.Timer(0.7, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run([sys.executable, "-c", SLEEPER.format(tag=tag)], SandboxPolicy(isolation=level))
    timer.join()
    assert _gone(tag)
    assert _until(lambda: not left_in(private_tmp))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_to_the_command_line_reach_the_job(number: int, level: str, ringfence_command: list[str]) -> None:
    code = (
        "import os, signal, sys, time\n"
        f"signal.signal({int(number)}, lambda n, f: (os.write(1, b'got %d\\n' % n), os._exit(7)))\n"
        "print('ready', flush=True)\ntime.sleep(30)"
    )
    command = [*ringfence_command, "run", "--isolation", level, "--", sys.executable, "-c", code]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    assert process.stdout.read() == b"got %d\n" % number
    assert process.wait() == 7


@pytest.mark.parametrize("level", LEVELS)
def test_the_third_ctrl_c_ends_a_job_that_ignores_the_others(level: str, ringfence_command: list[str]) -> None:
    code = ("import signal, time\nsignal.signal(2, signal.SIG_IGN); signal.signal(15, signal.SIG_IGN)\n"
            "print('ready', flush=True)\ntime.sleep(30)")  # fmt: skip
    command = [*ringfence_command, "run", "--isolation", level, "--", sys.executable, "-c", code]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 137
    assert b"KILLED_KILL" in told


@pytest.mark.parametrize("level", LEVELS)
def test_fifty_threads_at_once_each_get_their_own_result(level: str) -> None:
    results: dict[int, bytes] = {}

    def one(number: int) -> None:
        policy = SandboxPolicy(isolation=level, wall_time_s=120)
        outcome = run(["sh", "-c", f"echo {number}; exit {number % 7}"], policy)
        results[number] = outcome.stdout + bytes(str(outcome.rc), "ascii")

    threads = [threading.Thread(target=one, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: b"%d\n%d" % (number, number % 7) for number in range(50)}


@pytest.mark.parametrize("level", LEVELS)
def test_the_deadline_of_one_thread_does_not_touch_the_job_of_another(level: str) -> None:
    outcomes = {}

    def one(name: str, seconds: float) -> None:
        outcomes[name] = run(["sleep", "1"], SandboxPolicy(isolation=level, wall_time_s=seconds)).status

    threads = [threading.Thread(target=one, args=args) for args in (("short", 0.3), ("long", 60))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == {"short": Status.TIMEOUT, "long": Status.OK}


def _resident_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


# A neighbour that mounts something makes new zygotes necessary, which is no leak; it does not do so all the time.
ROUNDS = 3


MANY = [("process", 150), ("strict", 60), pytest.param("process", 1000, marks=pytest.mark.soak),
        pytest.param("strict", 300, marks=pytest.mark.soak)]  # fmt: skip


@pytest.mark.parametrize(("level", "runs"), MANY)
def test_many_runs_leave_nothing_and_grow_nothing(
    private_tmp: Path, unmeasured_spawner: None, level: str, runs: int
) -> None:
    def state() -> dict[str, int]:
        gc.collect()
        helper = spawner._current.pid if spawner._current else 0
        return {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": threading.active_count(),
            "children": len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
            "spawner's descriptors": len(os.listdir(f"/proc/{helper}/fd")) if os.geteuid() == 0 else 0,
            "spawner's children": len(Path(f"/proc/{helper}/task/{helper}/children").read_text().split()),
            "folders": len(left_in(private_tmp)),
        }

    policy = SandboxPolicy(isolation=level, wall_time_s=60)
    for _ in range(30):
        run(["/bin/true"], policy)
    spawned = spawner._current
    assert spawned is not None
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, _resident_kib(spawned.pid)
    rounds = []
    for _ in range(ROUNDS):
        before = state()
        for number in range(runs // ROUNDS):
            assert run(["/bin/true"] if number % 10 else ["sh", "-c", "echo x; exit 3"], policy).rc in (0, 3)
        rounds.append(_until(lambda before=before: state() == before, 15) or (before, state()))
    assert True in rounds, rounds
    assert spawner._current is spawned
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory[0]
    assert grown < 4096, f"{grown} KiB more resident memory after {runs} runs"
    assert _resident_kib(spawned.pid) - memory[1] < 2048


KILL_LEADER = (
    "import os, signal, time\nleader = os.getppid()\nif os.fork() == 0:\n os.setsid()\n time.sleep(60)\n"
    "time.sleep(0.2)\nos.kill(leader, signal.SIGKILL)\ntime.sleep(60)  # "
)


def test_a_job_that_kills_its_leader_does_not_live_on() -> None:
    """At the process level the job has the caller's user and can do it; what is left must still die."""
    tag = f"tag-{os.urandom(6).hex()}"
    outcome = run([sys.executable, "-c", KILL_LEADER + tag])
    assert outcome.status is Status.KILLED_KILL
    assert "supervising process" in outcome.reason
    assert _gone(tag)


def test_a_job_of_the_command_line_that_kills_its_leader_does_not_live_on(ringfence_command: list[str]) -> None:
    tag = f"tag-{os.urandom(6).hex()}"
    command = [*ringfence_command, "run", "--isolation", "process", "--", sys.executable, "-c", KILL_LEADER + tag]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False, timeout=60)
    assert done.returncode == 137
    assert b"KILLED_KILL" in done.stderr
    assert _gone(tag)


def test_a_job_that_stops_its_leader_is_ended_by_the_caller() -> None:
    tag = f"tag-{os.urandom(6).hex()}"
    code = f"import os, signal, time\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(60)  # {tag}"
    outcome = run([sys.executable, "-c", code], SandboxPolicy(wall_time_s=0.5))
    assert outcome.status is Status.TIMEOUT
    assert _gone(tag)


@pytest.mark.parametrize("level", LEVELS)
def test_a_folder_that_the_job_locked_and_nested_is_removed(level: str, private_tmp: Path) -> None:
    code = (
        "import os\n"
        "for _ in range(1500):\n os.mkdir('d'); os.chdir('d')\n"
        "os.mkfifo('pipe'); os.symlink('/etc', 'link')\n"
        "os.chdir(os.environ['TMPDIR']); os.mkdir('locked'); open('locked/f', 'w').close(); os.chmod('locked', 0)\n"
        "open(b'\\xff\\n', 'w').close()"
    )
    outcome = run([sys.executable, "-c", code], SandboxPolicy(isolation=level))
    assert outcome.status is Status.OK, outcome.stderr
    assert not left_in(private_tmp)
    assert os.path.isdir("/etc")


def test_files_are_put_before_the_start_and_the_input_is_fed() -> None:
    job = Job(argv=("sh", "-c", "cat a/b; cat"), files={"a/b": b"file "}, stdin=b"input" * 50_000)
    outcome = run(job)
    assert outcome.stdout == b"file " + b"input" * 50_000
