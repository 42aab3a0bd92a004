"""What a strict job may have of what the kernel counts for its user or for the whole host, and what still works."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.patience import eventually
from tests.testable import not_testable_here

import ringfence
from ringfence import Job, Outcome, SandboxPolicy, Status, Transaction, run
from ringfence.kernel.cgroup import group as cgroups

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]

STRICT = SandboxPolicy(isolation="strict", wall_time_s=40)
_UNDER_WAY = """
import array, select, socket
keep, none = [], array.array("i", [0] * 253)
def fill():
    try:
        while len(keep) < 400:
            near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            keep.extend((near, far))
            for _ in range(8): near.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, none)])
    except OSError: pass
fill()
print("ready", flush=True)
while not select.select([0], [], [], 0.05)[0]: fill()  # others of this user may have had some under way, and left
"""
_SEND_ONE = """
import array, resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
near, far = socket.socketpair()
near.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))])
"""


def _sent_one() -> bytes:
    return subprocess.run([sys.executable, "-c", _SEND_ONE], capture_output=True, check=False).stderr


def python(source: str, policy: SandboxPolicy = STRICT) -> Outcome:
    return run([sys.executable, "-c", source], policy)


def test_a_sandbox_starts_while_another_of_its_user_keeps_descriptors_under_way() -> None:
    reader, writer = os.pipe()
    ready, ended = threading.Event(), []

    def listen(stream: str, piece: bytes) -> None:
        ready.set()

    def hold() -> None:
        ended.append(run(Job(argv=(sys.executable, "-c", _UNDER_WAY), stdin=reader), STRICT, on_output=listen))

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert ready.wait(40)
        if os.geteuid() != 0:  # root's sandboxes have ids of their own
            eventually(lambda: b"Too many references" in _sent_one())
        assert run(["true"], STRICT).ok
    finally:
        os.write(writer, b"\n")
        os.close(writer)
        thread.join()
        os.close(reader)
    assert ended[0].ok, ended[0].stderr


def test_a_job_has_a_share_of_what_its_user_may_have() -> None:
    names = ("SIGPENDING", "MSGQUEUE", "MEMLOCK", "RTPRIO", "NICE", "NOFILE")
    outcome = python(f"import resource as r\nprint([r.getrlimit(getattr(r, 'RLIMIT_' + n)) for n in {names}])")
    assert outcome.stdout.decode().strip() == str([(n, n) for n in (1024, 131072, 262144, 0, 0, 512)])


def test_programs_that_reserve_room_write_it_instead() -> None:
    source = "import os\nf = os.open('f', os.O_CREAT | os.O_RDWR)\nos.posix_fallocate(f, 0, 1 << 20)\n"
    source += "s = os.fstat(f)\nprint(s.st_size, s.st_blocks * 512 >= 1 << 20)\n"
    outcome = python(source)
    assert outcome.stdout == b"1048576 True\n", outcome.stderr


def test_programs_that_sync_or_refuse_cores_go_on() -> None:
    outcome = run(["sh", "-ec", "sync; ulimit -c 0; echo done"], STRICT)
    assert outcome.ok and outcome.stdout == b"done\n", outcome.stderr


def test_the_disk_is_bounded_unless_the_policy_says_otherwise() -> None:
    bounded = run(["true"], STRICT).enforced["disk"]
    assert bounded.applied and bounded.requested == 10 << 30
    free = run(["true"], SandboxPolicy.from_dict({"isolation": "strict", "disk_bytes": "unlimited"}))
    assert free.ok and free.enforced["disk"].requested == 2**62


def test_files_without_a_byte_in_them_count(tmp_path: Path) -> None:
    """The limited job stays until it is ended: one that ends by itself may be gone before the next look."""
    make = "import os, sys, time\nfor n in range(12000): os.mknod(f'empty-{n}')\nos.sync()\n"
    make += "time.sleep(int(sys.argv[1]))\n"

    def job(stays_s: int) -> Job:
        return Job(argv=(sys.executable, "-c", make, str(stays_s)), cwd=str(tmp_path))

    control = run(job(0), STRICT)
    if control.usage.written_bytes < 1 << 20:
        not_testable_here("the private directory lies on a file system that counts no names")
    assert control.ok
    assert run(job(30), STRICT.with_changes(disk_bytes=1 << 20)).status is Status.DISK_LIMIT


_BIDE = "import sys; print('begun', flush=True); sys.stdin.read(1)"


@pytest.mark.parametrize("kept", [False, True], ids=["base", "kept layer"])
def test_what_others_wrote_and_earlier_jobs_left_is_not_the_jobs(tmp_path: Path, kept: bool) -> None:
    """A job that writes nothing, in a directory that holds more than it may write, while somebody else writes as
    much."""
    base = tmp_path / "base"
    base.mkdir()
    (base / "large").write_bytes(os.urandom(6 << 20))
    policy = STRICT.with_changes(disk_bytes=4 << 20)
    with Transaction.create(tmp_path / "layers", [base]) as transaction:
        if kept:
            grown = run(["cp", "large", "copy"], STRICT, transaction=transaction, cwd=str(base))
            assert grown.ok, grown.stderr
            time.sleep(0.3)  # stamps of files go in steps
        with ringfence.open(policy, transaction=transaction) as place:
            visit = place.start([sys.executable, "-c", _BIDE])
            eventually(lambda: b"begun" in visit.stdout)
            (tmp_path / "somebody's").write_bytes(os.urandom(12 << 20))
            time.sleep(0.3)  # some looks
            visit.write(b"x")
            assert visit.wait(40).status is Status.OK


_UNWAITED = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # their end is told to nobody, and nobody has their time
for _ in range(150):
    if os.fork() == 0:
        while time.process_time() < 0.008: pass
        os._exit(0)
    try: os.wait()
    except ChildProcessError: pass
print('all')
"""


def test_short_children_whose_end_nobody_is_told_of_use_the_jobs_processor_time() -> None:
    if cgroups.probe().missing("cpu_usage"):
        not_testable_here("no control group counts processor time for this user")
    assert run([sys.executable, "-S", "-c", _UNWAITED], STRICT).stdout == b"all\n"
    limited = STRICT.with_changes(cpu_time_s=0.2)
    assert run([sys.executable, "-S", "-c", _UNWAITED], limited).status is Status.CPU_LIMIT


def test_commands_of_a_shown_environment_are_found_by_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = os.path.dirname(sys.executable)
    monkeypatch.setenv("PATH", f"{folder}:relative::/nowhere:/usr/bin")
    source = "import os, sys; print(os.environ['PATH'], sys.executable)"
    outcome = run([os.path.basename(sys.executable), "-c", source], STRICT)
    path, executable = outcome.stdout.decode().split()
    assert executable == sys.executable and path == f"{folder}:/usr/bin:/usr/local/bin:/bin"


def test_a_path_that_is_asked_for_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"/nowhere:{os.environ['PATH']}")
    outcome = run(["/bin/sh", "-c", "echo $PATH"], STRICT.with_changes(pass_environment=("PATH",)))
    assert outcome.stdout.startswith(b"/nowhere:")
