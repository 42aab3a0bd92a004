"""The isolation level container on a real Docker engine: what it gives, what it refuses by name, and attacks on it.

Each attack prints ESCAPED where it gets what it is after. It runs at the level, where it must not, and in a container
that lacks the protection which is tested, where it must: else it would prove nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import eventually
from tests.testable import not_testable_here

import ringfence
from ringfence import Job, Outcome, SandboxPolicy, run
from ringfence.backends import conformance
from ringfence.container import orphans
from ringfence.container.api import Client
from ringfence.container.hardening import ContainerSpec
from ringfence.engine.run import traits_of
from ringfence.errors import SetupError, UnavailableError, UsageError
from ringfence.model.limits import IsolationLevel
from ringfence.model.outcome import Mechanism, Status
from ringfence.model.record import replace

pytestmark = [pytest.mark.system, pytest.mark.unmeasured, pytest.mark.root]

POLICY = SandboxPolicy(isolation=IsolationLevel.CONTAINER)


@pytest.fixture(autouse=True)
def engine(container_client: Client) -> Client:
    return container_client


def python(code: str, policy: SandboxPolicy = POLICY, **also: object) -> Outcome:
    return run(Job(argv=("python3", "-I", "-S", "-c", code), **also), policy)  # type: ignore[arg-type]


def control(code: str, *options: str, words: tuple[str, ...] = ()) -> str:
    start = ("docker", "run", "--rm", "--network=none", *options, "python:3.10-slim", "python3", "-I", "-S", "-c", code)
    return subprocess.run([*start, *words], capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("check", (*conformance.CHECKS, *conformance.APART), ids=lambda check: check.name)
def test_the_promise_holds_in_a_container(check: conformance.Check) -> None:
    level = IsolationLevel.CONTAINER
    finding = conformance.perform_one(run, level, check, traits=traits_of(level))
    assert finding.held and finding.proven, finding.problem


@pytest.mark.long
def test_the_command_says_the_same(ringfence_command: list[str]) -> None:
    done = subprocess.run([*ringfence_command, "selfcheck", "--level", "container"], capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


CAPABILITIES = "print([l for l in open('/proc/self/status') if l.startswith('CapEff') and int(l.split()[1], 16)] and " \
               "'ESCAPED' or '')"  # fmt: skip
CALL = "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
ATTACKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "writes the root": ("open('/etc/evil', 'w').close(); print('ESCAPED')", ()),
    "writes a library": ("import os\nopen(os.path.dirname(os.__file__) + '/os.py', 'a').write('#')\nprint('ESCAPED')",
                         ()),
    "has a capability": (CAPABILITIES, ()),
    "changes the kernel": ("open('/proc/sys/kernel/domainname', 'w').write('evil'); print('ESCAPED')",
                           ("--cap-add=SYS_ADMIN", "--security-opt=systempaths=unconfined")),
    "a set-user-id program": ("import subprocess\nif 'euid=0' in subprocess.run(['setuid-id'], capture_output=True, "
                              "text=True).stdout: print('ESCAPED')", ("--user=65534:65534",)),
    "mounts": (CALL + "print('ESCAPED' if libc.mount(b'none', b'/tmp', b'tmpfs', 0, 0) == 0 else '')",
               ("--cap-add=SYS_ADMIN", "--security-opt=seccomp=unconfined")),
    "a user namespace": (CALL + "print('ESCAPED' if libc.unshare(0x10000000) == 0 else '')",
                         ("--security-opt=seccomp=unconfined",)),
    "makes a device": ("import os\nos.mknod('/tmp/d', 0o20666, 259); print('ESCAPED')", ()),
    "a set-user-id file": ("import os\nopen('/tmp/s', 'w').close(); os.chmod('/tmp/s', 0o4755); print('ESCAPED')", ()),
    "executes what it wrote": ("import os, shutil, subprocess\nshutil.copy('/usr/bin/true', '/tmp/t')\n"
                               "subprocess.run(['/tmp/t'], check=True); print('ESCAPED')", ()),
    "another process' memory": (CALL + "import os, time\npid = os.fork()\nif pid == 0:\n time.sleep(5); os._exit(0)\n"
                                "print('ESCAPED' if libc.ptrace(16, pid, 0, 0) == 0 else '')\nos.kill(pid, 9)",
                                ("--cap-add=SYS_PTRACE", "--security-opt=seccomp=unconfined")),
    "3000 descriptors": ("import os\nfor _ in range(3000): os.open('/dev/null', 0)\nprint('ESCAPED')",
                         ("--ulimit=nofile=4000:4000",)),
    "raw sockets": ("import socket\nsocket.socket(socket.AF_PACKET, socket.SOCK_RAW); print('ESCAPED')", ()),
    "the kernel's log": (CALL + "print('ESCAPED' if libc.klogctl(3, ctypes.create_string_buffer(99), 99) >= 0 else '')",
                         ("--cap-add=SYSLOG", "--security-opt=seccomp=unconfined")),
    "keys": (CALL + "print('ESCAPED' if libc.syscall({keyctl}, 0, -3, 1) != -1 else '')"
             .replace("{keyctl}", "219 if __import__('os').uname().machine == 'aarch64' else 250"),
             ("--security-opt=seccomp=unconfined",)),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_fails_and_its_control_succeeds(name: str) -> None:
    code, options = ATTACKS[name]
    assert "ESCAPED" in control(code, *options), "the attack proves nothing"
    outcome = python(code)
    assert b"ESCAPED" not in outcome.stdout and outcome.status in (Status.OK, Status.FAILED), outcome


HOLDS_UP_PID_1 = CALL + """
import os, resource
ioprio, attr = (30, 274) if os.uname().machine == 'aarch64' else (251, 314)
changed = ctypes.create_string_buffer(bytes([48, 0, 0, 0, 5]), 48)
def asked(number, *values):
    if libc.syscall(number, *values):
        raise OSError(ctypes.get_errno(), 'refused')
def limited():
    resource.prlimit(1, resource.RLIMIT_CORE, (0, 0))
def grouped():
    try: os.setpgid(0, 1)
    except OSError: pass  # it is its own already
    os.setpriority(os.PRIO_PGRP, 1, 5)
for name, way in {
    'affinity': lambda: os.sched_setaffinity(1, {min(os.sched_getaffinity(0))}), 'limit': limited,
    'priority': lambda: os.setpriority(os.PRIO_PROCESS, 1, 5), 'of the group': grouped,
    'of the user': lambda: os.setpriority(os.PRIO_USER, 0, 6), 'disks': lambda: asked(ioprio, 1, 1, 3 << 13),
    'parameter': lambda: os.sched_setparam(1, os.sched_param(0)), 'attributes': lambda: asked(attr, 1, changed, 0),
    'scheduler': lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)),
}.items():
    try:
        way(); print('ESCAPED', name)
    except OSError:
        pass
os.setpriority(os.PRIO_PROCESS, 0, 7); os.sched_setaffinity(os.getpid(), os.sched_getaffinity(0))
print(resource.prlimit(1, resource.RLIMIT_CORE) and 'done')
"""


def test_no_job_holds_pid_1_up_which_ends_it() -> None:
    """Pid 1 has the job's user: as SCHED_IDLE beside a busy job it hardly ran, and the job outlived its deadline."""
    assert control(HOLDS_UP_PID_1, "--user=65534:65534").count("ESCAPED") == 9, "the attack proves nothing"
    outcome = python(HOLDS_UP_PID_1)
    assert outcome.stdout == b"done\n", outcome


def test_a_job_whose_engine_does_not_end_it_is_ended_by_its_control_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "kill", lambda *_: True)
    late = run(Job(argv=("sleep", "600")), POLICY.with_changes(wall_time_s=1))
    assert (late.status, late.reason) == (Status.TIMEOUT, "still running after 1 s (wall clock)"), late
    assert "control group" in late.enforced["wall_time"].details


CONNECTS = """
import os, socket, sys
ours, theirs = socket.socketpair()
ours.send(b'pair'); print(theirs.recv(9))
for folder in sys.argv[1:]:
    os.chdir(folder)
    try:
        talk = socket.socket(socket.AF_UNIX); talk.connect('service'); talk.recv(9); print('ESCAPED', folder)
    except OSError as error:
        print(error.errno)
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Path]:
    """A directory with the socket of a service of the host, which answers everybody."""
    tmp_path.chmod(0o777)
    with socket.socket(socket.AF_UNIX) as listening:
        with contextlib.chdir(tmp_path):
            listening.bind("service")
        (tmp_path / "service").chmod(0o777)
        listening.listen()
        threading.Thread(target=_answer_everybody, args=(listening,), daemon=True).start()
        yield tmp_path
        listening.shutdown(socket.SHUT_RDWR)


def _answer_everybody(listening: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            listening.accept()[0].sendall(b"secret")


SIGNALS = """
import os, ctypes, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
libc = ctypes.CDLL(None, use_errno=True)
queued = next(n for n in range(1 << 17) if libc.sigqueue(os.getpid(), int(signal.SIGRTMIN), ctypes.c_void_p(0)))
print('ESCAPED' if queued > 1024 else 'refused')
"""


def test_a_job_queues_no_more_than_a_share_of_its_users_signals() -> None:
    assert "ESCAPED" in control(SIGNALS, "--user=65534:65534"), "the attack proves nothing"
    assert python(SIGNALS).stdout == b"refused\n"


@pytest.mark.parametrize("place", ["readable_paths", "writable_paths", "workspace"])
def test_no_socket_of_the_host_answers_in_a_shown_directory(place: str, service: Path) -> None:
    here = str(service)
    words = ("python3", "-I", "-S", "-c", CONNECTS, here)
    said = control(CONNECTS, f"--volume={here}:{here}:ro", "--user=65534:65534", words=(here,))
    assert "ESCAPED" in said, "the attack proves nothing"
    policy = POLICY if place == "workspace" else POLICY.with_changes(**{place: (here,)})
    folder = here if place == "workspace" else None
    alone = run(Job(argv=words, cwd=folder), policy)
    assert alone.ok and alone.stdout == b"b'pair'\n1\n", alone
    with ringfence.open(policy, folder) as box:
        visit = box.run(list(words))
    assert visit.ok and visit.stdout == b"b'pair'\n13\n", visit


def test_without_the_host_programs_have_unix_sockets_of_their_own() -> None:
    served = "import os, socket\nos.chdir('/tmp')\nheard = socket.socket(socket.AF_UNIX); heard.bind('own'); " \
             "heard.listen()\nsocket.socket(socket.AF_UNIX).connect('own'); print('own')"  # fmt: skip
    assert python(served).stdout == b"own\n"
    with ringfence.open(POLICY) as box:
        assert box.run(["python3", "-I", "-S", "-c", served]).stdout == b"own\n"


def test_of_the_host_nothing_is_there_but_what_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "secret").write_text("ESCAPED")
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "a").write_text("shown")
    (tmp_path / "shown" / "hidden").write_text("ESCAPED")
    (tmp_path / "shown" / "dark").mkdir()
    (tmp_path / "shown" / "dark" / "b").write_text("ESCAPED")
    code = "for name in ('secret', 'shown/a', 'shown/hidden', 'shown/dark/b'):\n" \
           f" try: print(open('{tmp_path}/' + name).read())\n except OSError as error: print(type(error).__name__)\n" \
           f"try: open('{tmp_path}/shown/new', 'w')\nexcept OSError as error: print(error.errno)"  # fmt: skip
    assert control(code, f"--volume={tmp_path}:{tmp_path}").count("ESCAPED") == 3
    policy = POLICY.with_changes(
        readable_paths=(str(tmp_path / "shown"),),
        hidden_paths=(str(tmp_path / "shown" / "hidden"), str(tmp_path / "shown" / "dark")),
    )
    found = python(code, policy).stdout.decode()
    assert found.split() == ["FileNotFoundError", "shown", "FileNotFoundError", "30"]


def test_the_workspace_is_read_only_unless_the_policy_says_more(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    code = "open('new', 'w').write('of the job')"
    assert python(code, cwd=str(tmp_path)).status is Status.FAILED and not (tmp_path / "new").exists()
    assert python(code, POLICY.with_changes(writable_paths=(str(tmp_path),)), cwd=str(tmp_path)).ok
    assert (tmp_path / "new").read_text() == "of the job"


def test_a_set_user_id_file_does_not_get_out(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    code = "import os\nfd = os.open('s', os.O_CREAT | os.O_WRONLY, 0o4755); os.close(fd); os.chmod('s', 0o4755)"
    control(code, f"--volume={tmp_path}:/mnt", "--workdir=/mnt")
    assert (tmp_path / "s").stat().st_mode & stat.S_ISUID, "the attack proves nothing"
    (tmp_path / "s").unlink()
    python(code, POLICY.with_changes(writable_paths=(str(tmp_path),)), cwd=str(tmp_path))
    assert not any(path.stat().st_mode & stat.S_ISUID for path in tmp_path.iterdir())


def test_there_is_no_network_not_even_the_hosts_loopback() -> None:
    code = "import socket, sys\ntry: socket.create_connection(('127.0.0.1', int(sys.argv[1])), 3); print('ESCAPED')\n" \
           "except OSError: pass\nprint(sorted(name for _, name in socket.if_nameindex()))"  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        plain = subprocess.run(["python3", "-c", code, port], capture_output=True, text=True, check=True).stdout
        assert "ESCAPED" in plain
        outcome = run(Job(argv=("python3", "-c", code, port)), POLICY)
    assert outcome.stdout == b"['lo']\n"


def test_the_engines_socket_is_out_of_reach(docker_address: str) -> None:
    path = docker_address.removeprefix("unix://")
    code = f"import socket\nsocket.socket(socket.AF_UNIX).connect({path!r}); print('ESCAPED')"
    assert "ESCAPED" in control(code, f"--volume={path}:{path}")
    assert python(code).status is Status.FAILED
    for shown in (path, os.path.dirname(path)):
        with pytest.raises(UsageError, match="engine's socket"):
            python(code, POLICY.with_changes(readable_paths=(shown,), allow_partial=True))
    with pytest.raises(UsageError, match="engine's socket"):
        python(code, cwd=os.path.dirname(path))


MORE = "import time\nx = []\nfor _ in range(30): x.append(bytearray(8 << 20)); time.sleep(0.01)\nprint('ESCAPED')"
BOMB = ("import os, time\ntry:\n for _ in range(60):\n  if os.fork() == 0: time.sleep(3); os._exit(0)\n"
        " print('ESCAPED')\nexcept OSError:\n time.sleep(2); raise")  # fmt: skip
"""It stays a while: the count of what was refused goes with the container."""


@pytest.mark.parametrize(("code", "limit", "status"), [
    (MORE, {"mem_bytes": 64 << 20}, Status.MEM_LIMIT),
    (BOMB, {"pids_max": 16}, Status.PIDS_LIMIT),
    ("while True: pass", {"cpu_time_s": 0.3}, Status.CPU_LIMIT),
    ("import time; time.sleep(60)", {"wall_time_s": 0.5}, Status.TIMEOUT),
    ("import os\nwhile True: os.write(1, b'x' * 9999)", {"on_output_limit": "kill"}, Status.OUTPUT_LIMIT),
    ("import os; os.kill(os.getpid(), 11)", {}, Status.CRASHED), ("import os; os.abort()", {}, Status.CRASHED),
    ("import os; os.kill(os.getpid(), 15)", {}, Status.KILLED_TERM), ("import sys; sys.exit(7)", {}, Status.FAILED),
    ("import os; os.kill(os.getpid(), 9)", {}, Status.KILLED_KILL), ("print('ESCAPED' * 0)", {}, Status.OK),
    ("import resource, signal\nsignal.signal(25, signal.SIG_DFL)\nopen('f', 'wb').write(bytes(1 << 16))",
     {"file_bytes": 4096}, Status.FILE_SIZE_LIMIT),
])  # fmt: skip
def test_the_end_is_told_by_facts(code: str, limit: dict[str, object], status: Status) -> None:
    if status in (Status.MEM_LIMIT, Status.PIDS_LIMIT):
        assert "ESCAPED" in control(code)
    outcome = python(code, POLICY.with_changes(**limit))
    assert outcome.status is status, outcome.reason
    assert b"ESCAPED" not in outcome.stdout


def test_words_decide_nothing() -> None:
    outcome = python("import sys; sys.stderr.write('MemoryError\\nToo many open files'); sys.exit(137)")
    assert outcome.status is Status.FAILED and not outcome.limits_hit


@pytest.mark.parametrize("code", [129, 137, 139, 143, 153, 159, 192])
def test_an_exit_status_is_no_signal(code: int) -> None:
    """As a shell has it whose program crashed; a signal of the same number is told above."""
    outcome = run(["sh", "-c", f"echo out; echo err >&2; sleep 1000 & exit {code}"], POLICY)
    assert (outcome.status, outcome.rc, outcome.reason) == (Status.FAILED, code, f"exit code {code}")
    assert (outcome.stdout, outcome.stderr) == (b"out\n", b"err\n")


def test_who_says_the_word_itself_is_still_killed() -> None:
    from ringfence.container.first_process import WORD

    code = f"import os; os.write(2, {WORD!r}); "
    assert python(code + "import time; time.sleep(60)", POLICY.with_changes(wall_time_s=0.5)).status is Status.TIMEOUT
    assert python(code + MORE.replace("time, ", ""), POLICY.with_changes(mem_bytes=64 << 20)).status is Status.MEM_LIMIT
    outcome = python(code + "os.write(2, b'more')")
    assert outcome.ok and outcome.stderr == WORD + b"more"


@pytest.mark.parametrize("name", ["folder", "absent"])
def test_a_first_process_that_does_not_start_is_the_engines(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ringfence.kernel.calls import native

    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(native, "first_path", lambda: f"{tmp_path}/{name}")
    monkeypatch.setattr(os, "access", lambda *_: True)  # as if only the engine did not see it
    first = python("print(open('/proc/1/cmdline').read())").stdout
    assert b"docker-init" in first and b"ringfence" not in first


def test_our_first_process_keeps_to_itself() -> None:
    """The job is whom it is, too, but can neither look into it nor end it."""
    if not os.access(native_first(), os.X_OK):
        pytest.skip("not testable here: no compiler has made it")
    code = ("import os, signal\nprint(open('/proc/1/cmdline').read().split(chr(0))[0], os.getppid())\n"
            "for name in ('mem', 'environ', 'maps'):\n"
            " try: open('/proc/1/' + name, 'rb').read(1); print('ESCAPED')\n except OSError: pass\n"
            "os.kill(1, signal.SIGKILL); print('alive')")  # fmt: skip
    assert python(code).stdout == b"/ringfence/first 1\nalive\n"


def native_first() -> str:
    from ringfence.kernel.calls import native

    return native.first_path()


def test_output_is_cut_and_input_goes_in_whole() -> None:
    small = POLICY.with_changes(output_bytes=999)
    flood = python("import sys\nfor _ in range(300): sys.stdout.write('x' * 100_000)", small)
    assert flood.ok and len(flood.stdout) < 2000 and flood.stdout_dropped == 30_000_000 - 999
    given = os.urandom(3 << 20)
    back = python("import shutil, sys; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)",
                  POLICY.with_changes(output_bytes=4 << 20), stdin=given)  # fmt: skip
    assert back.stdout == given
    assert python("pass", stdin=bytes(20 << 20)).ok


def test_files_environment_and_place_are_as_asked(tmp_path: Path) -> None:
    job = Job(argv=("python3", "-c", "import os; print(open('a/b').read(), os.environ['X'], os.getcwd(), os.getuid())"),
              files={"a/b": b"given"}, environment={"X": "1"})  # fmt: skip
    assert run(job, POLICY).stdout == b"given 1 /tmp 65534\n"
    names = python("import os; print(*sorted(os.environ))").stdout.decode().split()
    assert names == ["HOME", "HOSTNAME", "LANG", "PATH", "TMPDIR"]
    place = run(["python3", "-c", "import os; print(os.getcwd())"], POLICY, cwd=tmp_path).stdout
    assert place.decode() == f"{tmp_path}\n"


def test_what_is_enforced_is_read_back() -> None:
    outcome = python("pass", POLICY.with_changes(cpu_share=0.5, disk_bytes=4 << 20))
    assert all(entry.applied for entry in outcome.enforced.values()) and not outcome.partial
    assert outcome.enforced["memory"].by == (Mechanism.CGROUP,)
    assert "control group's own files" in outcome.enforced["memory"].details


def test_what_the_engine_does_not_apply_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    from ringfence.container import hardening

    whole = hardening._host_config
    for lost, name in (("Memory", "memory"), ("CapDrop", "capabilities"), ("Ulimits", "nofile")):
        monkeypatch.setattr(hardening, "_host_config", lambda spec, lost=lost: {**whole(spec), lost: None})
        if lost == "Memory":
            monkeypatch.setattr(hardening, "_host_config", lambda spec: {**whole(spec), "Memory": 0, "MemorySwap": 0})
        with pytest.raises(UnavailableError, match=name):
            python("pass")
    monkeypatch.setattr(hardening, "_host_config", lambda spec: {**whole(spec), "Memory": 0, "MemorySwap": 0})
    outcome = python("pass", POLICY.with_changes(allow_partial=True))
    assert outcome.partial and not outcome.enforced["memory"].applied


def test_what_the_level_has_not_is_refused_by_name() -> None:
    with pytest.raises(UnavailableError, match="network needs"):
        run(["true"], POLICY.with_changes(network="host"))
    with pytest.raises(SetupError, match="find the image"):
        run(["true"], POLICY.with_changes(image="no-such-image:1"))
    with pytest.raises(UnavailableError, match="does not answer"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", "unix:///nonexistent")
        run(["true"], POLICY)


def test_ten_at_once_get_each_their_own() -> None:
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda n=n: found.append(python(f"print({n})").stdout)) for n in range(10)]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, found)) == list(range(10))


def test_the_command_line_runs_one(ringfence_command: list[str], tmp_path: Path) -> None:
    words = [*ringfence_command, "run", "--isolation", "container", "--image", "python:3.10-slim", "--json", "--",
             "python3", "-c", "print(1)"]  # fmt: skip
    ran = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, stdin=subprocess.DEVNULL, check=False)
    told = json.loads(ran.stdout)
    assert (told["status"], told["stdout"], ran.returncode) == ("OK", "1\n", 0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_container_ends_with_its_caller(
    engine: Client, ringfence_command: list[str], tmp_path: Path, number: signal.Signals
) -> None:
    words = [*ringfence_command, "run", "--isolation", "container", "--wall", "300", "--", "sleep", "250"]
    caller = subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)  # fmt: skip

    def running() -> list[str]:
        owned = (each for each in engine.list(orphans.OWNER) if each.labels[orphans.OWNER].startswith(f"{caller.pid}:"))
        return [each.id for each in owned if each.state == "running"]

    try:
        eventually(running)
        caller.send_signal(number)
        caller.wait()
        eventually(lambda: not running())
    finally:
        with contextlib.suppress(ProcessLookupError):
            caller.kill()
        caller.wait()


def test_a_caller_that_stands_still_does_not_keep_its_container(
    engine: Client, ringfence_command: list[str], tmp_path: Path
) -> None:
    """The guardian holds the deadline of one that was stopped."""
    words = [*ringfence_command, "run", "--isolation", "container", "--wall", "1", "--", "sleep", "250"]
    caller = subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)  # fmt: skip

    def owned() -> list[str]:
        return [each.state for each in engine.list(orphans.OWNER)
                if each.labels[orphans.OWNER].startswith(f"{caller.pid}:")]  # fmt: skip

    try:
        eventually(lambda: "running" in owned())
        caller.send_signal(signal.SIGSTOP)
        eventually(lambda: not owned())
    finally:
        caller.kill()
        caller.wait()


def test_python_starts_under_the_tight_profile_and_closes_the_rest_by_itself(engine: Client) -> None:
    from ringfence.container.seccomp_profile import closing

    tight = POLICY.with_changes(syscall_profile="tight")
    tries = {
        "fork": "os.fork()", "socket": "socket.socket()", "thread": "threading.Thread(target=print).start()",
        "exec": "os.execv('/usr/bin/true', ['true'])", "open": "open('/tmp/x', 'w').close()",
    }  # fmt: skip
    start = "import os, socket, threading\n"
    code = "try:\n {};print({!r})\nexcept OSError as error: print({!r}, error.errno)\n"
    parts = [code.format(text, name, f"no {name}") for name, text in tries.items() if name != "exec"]
    first = python(start + "".join(parts), tight)
    assert first.stdout.decode().split("\n")[:-1] == ["no fork 1", "no socket 13", "", "thread", "open"], first
    machine = str(engine.info()["Architecture"])
    execute = code.format(tries["exec"], "exec", "no exec")
    second = python(f"{start}{closing(machine)}close_the_rest()\n{execute}", tight)
    assert second.stdout == b"no exec 1\n", second
    assert python(start + execute, tight).stdout == b""


def test_cleanup_removes_orphans_and_leaves_what_somebody_owns(engine: Client, ringfence_command: list[str]) -> None:
    dead = orphans.owner().replace(str(os.getpid()), "4194305", 1)
    spec = ContainerSpec(argv=("sleep", "300"), labels={orphans.OWNER: dead, orphans.KIND: "job"})
    stranger = engine.create(spec)  # as of an image with our labels, which somebody else runs
    ours = engine.create(replace(spec, labels=orphans.labels("job")))

    def cleaned(*words: str) -> str:
        command = [*ringfence_command, "cleanup", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def lost_and_told(*words: str) -> tuple[str, str]:
        """An orphan is anybody's to remove, and so the sandboxes of tests beside this one may be quicker."""
        for _ in range(10):
            lost = engine.create(spec, orphans.new_name())
            engine.start(lost)
            if lost[:12] in (told := cleaned(*words)):
                return lost, told
        raise AssertionError("no orphan was told of")

    try:
        assert ours[:12] not in lost_and_told("--dry-run")[1]
        lost, ran = lost_and_told("--json")
        told = {row["id"]: row["removed"] for row in json.loads(ran)["orphans"]}
        assert told[lost] and ours not in told
        left = {each.id for each in engine.list(orphans.OWNER)}
        assert left & {lost, ours, stranger} == {ours, stranger}
        assert lost[:12] not in cleaned()
    finally:
        engine.remove(ours)
        engine.remove(stranger)


def test_what_is_mounted_in_a_read_only_folder_is_read_only_too(tmp_path: Path) -> None:
    if not os.path.ismount("/dev/shm"):
        not_testable_here("nothing is mounted on /dev/shm")
    (tmp_path / "devices").symlink_to("/dev")
    name = f"ringfence-test-{os.getpid()}"
    write = f"open('{{0}}/shm/{name}', 'w').close(); print('ESCAPED')"
    try:
        found = control(write.format("/shown"), "--volume=/dev:/shown:ro", "--user=65534")
        assert "ESCAPED" in found and os.path.exists(f"/dev/shm/{name}"), "an engine by itself lets it"
        os.unlink(f"/dev/shm/{name}")
        shown = POLICY.with_changes(readable_paths=(f"{tmp_path}/devices",))
        assert b"ESCAPED" not in python(write.format(f"{tmp_path}/devices"), shown).stdout
        assert not os.path.exists(f"/dev/shm/{name}")
        listed = python(f"import os; print(os.path.ismount('{tmp_path}/devices/shm'))", shown).stdout
        assert listed == b"True\n", "and it is there to be read"
    finally:
        Path(f"/dev/shm/{name}").unlink(missing_ok=True)


def test_what_is_hidden_is_hidden_behind_a_link_too(tmp_path: Path) -> None:
    (tmp_path / "home" / "keys").mkdir(parents=True)
    (tmp_path / "home" / "keys" / "key").write_text("SECRET")
    (tmp_path / "link").symlink_to("home")
    tmp_path.chmod(0o755)
    code = f"print(open('{tmp_path}/link/keys/key').read())"
    shown = POLICY.with_changes(readable_paths=(f"{tmp_path}/link",))
    assert python(code, shown).stdout == b"SECRET\n"
    assert python(code, shown.with_changes(hidden_paths=(f"{tmp_path}/home/keys",))).stdout == b""


def test_an_image_with_volumes_is_refused(engine: Client) -> None:
    made = subprocess.run(["docker", "build", "--quiet", "-"], input=b"FROM python:3.10-slim\nVOLUME /var\n",
                          capture_output=True, check=True)  # fmt: skip
    image = made.stdout.decode().strip()
    try:
        with pytest.raises(UnavailableError, match="volumes, which can be written: /var"):
            python("print(1)", POLICY.with_changes(image=image))
        assert python("print(1)").stdout == b"1\n", "without volumes it runs"
    finally:
        subprocess.run(["docker", "rmi", "--force", image], capture_output=True, check=True)
