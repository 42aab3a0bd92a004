"""Checkpoints with running processes: they go on where they were, held by all that held them; or it is said why not."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import criu_program

from ringfence import (
    CheckpointError,
    IsolationLevel,
    LateAttemptError,
    SandboxConfig,
    SandboxManager,
    UnavailableError,
    UsageError,
)
from ringfence.engine.handle import Handle
from ringfence.kernel.criu import criu
from ringfence.kernel.proc import procfs
from ringfence.manager import live_state
from ringfence.manager.context import SandboxContext
from ringfence.model.record import replace

pytestmark = [pytest.mark.system, pytest.mark.unmeasured]

PYTHON = os.path.realpath(sys.executable)
PATIENCE_S = 60.0
LINES = 3

# Memory and file say the same number at every moment at which the process does not run.
COUNT = """
import time
number, file = 0, open('numbers', 'a')
while True:
    number += 1
    file.write(f'{number}\\n')
    file.flush()
    print(number, flush=True)
    time.sleep(0.02)
"""


@pytest.fixture(scope="module", autouse=True)
def _criu() -> None:
    criu_program.install()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "count.py").write_text(COUNT)
    return folder


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[SandboxManager]:
    with SandboxManager(sandbox_root=tmp_path / "sandboxes") as made:
        yield made


@pytest.fixture
def context(manager: SandboxManager, repo: Path) -> SandboxContext:
    return manager.create_sandbox(SandboxConfig(isolation_level=IsolationLevel.STRICT, allowed_paths=[repo]))


def until(what: Callable[[], Any]) -> Any:
    give_up = time.monotonic() + PATIENCE_S
    while True:
        found = what()
        if found or time.monotonic() > give_up:
            assert found, "it did not come to pass"
            return found
        time.sleep(0.01)


def start(manager: SandboxManager, context: SandboxContext, *argv: str) -> Handle:
    """Started, and past its first lines."""
    handle = manager.start(context, [PYTHON, *argv])
    until(lambda: handle.stdout.count(b"\n") >= LINES or handle.done)
    assert not handle.done, handle.stderr
    return handle


def first_number(output: bytes) -> int:
    return int(output.split()[0])


def numbers_in(manager: SandboxManager, context: SandboxContext) -> list[int]:
    done = manager.run(context, ["cat", "numbers"])
    return [int(line) for line in done.stdout.split("\n") if line]


def checkpoint(manager: SandboxManager, context: SandboxContext) -> Any:
    return manager.rollback_system.create_checkpoint(context.sandbox_id, processes=True)


def back(manager: SandboxManager, context: SandboxContext, checkpoint_id: str) -> Any:
    """Rolled back, and the restored process past its first output."""
    done = manager.rollback_system.rollback_to_checkpoint(checkpoint_id)
    assert done.success, done.error
    (tree,) = manager.restored(context)
    until(lambda: b"\n" in tree.stdout or tree.done)
    assert not tree.done, tree.stderr
    return tree


# ---- going on


def test_a_process_goes_on_where_it_was_with_the_file_of_the_restored_layer(
    manager: SandboxManager, context: SandboxContext
) -> None:
    handle = start(manager, context, "count.py")
    made = checkpoint(manager, context)
    assert [command.partition(" ")[2] for command in made.processes] == [f"{PYTHON} count.py"]
    later = numbers_in(manager, context)[-1]
    until(lambda: handle.stdout.count(b"\n") > later + 5)  # it was left running
    done = manager.rollback_system.rollback_to_checkpoint(made.checkpoint_id)
    assert (done.success, done.rollback_type, done.error) == (True, "full", None)
    assert done.processes_restored == made.processes and len(done.processes_ended) == 1
    assert handle.wait(PATIENCE_S).rc
    (tree,) = manager.restored(context)
    until(lambda: len(tree.stdout.split()) > 3)
    number = first_number(tree.stdout)
    assert LINES < number <= later + 1, "it goes on, neither from the beginning nor from where it was ended"
    found = numbers_in(manager, context)
    assert found == list(range(1, len(found) + 1)), "memory and file are of the same moment"
    assert len(found) > number
    again = back(manager, context, made.checkpoint_id)
    assert first_number(again.stdout) == number


def test_a_later_manager_restores_them_too(manager: SandboxManager, context: SandboxContext) -> None:
    handle = start(manager, context, "count.py")
    made = checkpoint(manager, context)
    manager.detach(context.sandbox_id)
    assert handle.done
    with SandboxManager(sandbox_root=context.folder.parent) as later:
        again = later.attach(context.sandbox_id)
        (listed,) = later.rollback_system.list_checkpoints(context.sandbox_id)
        assert listed.processes == made.processes
        assert first_number(back(later, again, made.checkpoint_id).stdout) > LINES
        found = numbers_in(later, again)
        assert found == list(range(1, len(found) + 1))


def test_a_restored_process_goes_on_reading_its_input(manager: SandboxManager, context: SandboxContext) -> None:
    handle = manager.start(context, ["cat"])
    handle.write(b"before\n")
    until(lambda: handle.stdout == b"before\n")
    made = checkpoint(manager, context)
    assert manager.rollback_system.rollback_to_checkpoint(made.checkpoint_id).success
    (tree,) = manager.restored(context)
    tree.write(b"after\n")
    until(lambda: tree.stdout == b"after\n")
    manager.rollback_system.discard(manager._find(context.sandbox_id))
    assert tree.done
    with pytest.raises(UsageError):
        tree.write(b"too late\n")


def test_what_was_restored_can_be_kept_again(manager: SandboxManager, context: SandboxContext) -> None:
    start(manager, context, "count.py")
    tree = back(manager, context, checkpoint(manager, context).checkpoint_id)
    until(lambda: len(tree.stdout.split()) > 5)
    second = checkpoint(manager, context)
    assert first_number(back(manager, context, second.checkpoint_id).stdout) >= first_number(tree.stdout) + 5
    found = numbers_in(manager, context)
    assert found == list(range(1, len(found) + 1))


def test_sockets_threads_children_pipes_and_removed_files_are_there_again(
    manager: SandboxManager, context: SandboxContext, repo: Path
) -> None:
    (repo / "all.py").write_text("""
import os, socket, subprocess, threading, time
server = socket.create_server(('127.0.0.1', 8123))
client = socket.create_connection(('127.0.0.1', 8123))
served = server.accept()[0]
one, other = socket.socketpair()
child = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
subprocess.run(['sh', '-c', '(setsid sleep 4321 &)'])
removed = open('removed', 'w+')
removed.write('still here')
removed.flush()
os.unlink('removed')
number = 0
def answer():
    while True:
        connection = server.accept()[0]
        connection.sendall(b'number %d' % number)
        connection.close()
threading.Thread(target=answer, daemon=True).start()
while True:
    number += 1
    served.sendall(b'x')
    one.sendall(b'y')
    child.stdin.write(b'z\\n')
    child.stdin.flush()
    removed.seek(0)
    got = client.recv(1), other.recv(1), child.stdout.readline(), removed.read()
    assert got == (b'x', b'y', b'z\\n', 'still here'), got
    print(number, flush=True)
    time.sleep(0.02)
""")
    start(manager, context, "all.py")
    made = checkpoint(manager, context)
    assert len(made.processes) == 3
    done = manager.rollback_system.rollback_to_checkpoint(made.checkpoint_id)
    assert done.success, done.error
    assert len(done.processes_restored) == 3
    talking = min(manager.restored(context), key=lambda each: each.root)
    until(lambda: len(talking.stdout.split()) > 3)
    assert not talking.done and not talking.stderr
    ask = "import socket; print(socket.create_connection(('127.0.0.1', 8123)).recv(99))"
    assert "number" in manager.run(context, [PYTHON, "-c", ask]).stdout


def test_what_was_written_through_a_mapping_is_of_the_same_moment_too(
    manager: SandboxManager, context: SandboxContext, repo: Path
) -> None:
    (repo / "map.py").write_text("""
import mmap, time
file = open('mapped', 'w+b')
file.truncate(4096)
shared, number = mmap.mmap(file.fileno(), 4096), 0
while True:
    assert int.from_bytes(shared[:8], 'big') == number, 'the file is of another moment'
    number += 1
    shared[:8] = number.to_bytes(8, 'big')
    print(number, flush=True)
    time.sleep(0.02)
""")
    handle = start(manager, context, "map.py")
    made = checkpoint(manager, context)
    seen = handle.stdout.count(b"\n")
    until(lambda: handle.stdout.count(b"\n") > seen + 5)  # by writes that change no page's state
    tree = back(manager, context, made.checkpoint_id)
    until(lambda: tree.stdout.count(b"\n") > 2 or tree.done)
    assert not tree.done, tree.stderr


# ---- held as before

PROBES = """
import ctypes, json, os, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
secret, port, pid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def syscall(*args):
    if libc.syscall(*args) < 0:
        raise OSError(ctypes.get_errno(), '')
def connect():
    socket.create_connection(('127.0.0.1', port), 5).close()
def write(path):
    os.mkdir(path)
    os.rmdir(path)
def mount():
    try:
        syscall(numbers[1], b'none', b'/no/such/folder', b'tmpfs', 0, None)
    except FileNotFoundError:
        pass  # allowed, and harmless
numbers = {'aarch64': (97, 40, 217), 'x86_64': (272, 165, 248)}[os.uname().machine]
PROBES = {
    'read a file of the host': lambda: open(secret).read(),
    'reach a service of the host': connect,
    'signal a process that is not its own': lambda: os.kill(pid, 0),
    'write beside its places': lambda: write('/var/probe-of-a-restored-process'),
    'make a user namespace': lambda: syscall(numbers[0], 0x10000000),
    'mount': mount,
    'add a key': lambda: syscall(numbers[2], b'user', b'probe', b'x', 1, -2),
    'become another id': lambda: os.setgroups([4]),
}
def passed(probe):
    child = os.fork()
    if child == 0:
        try:
            probe()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0
def look():
    wanted = ('NoNewPrivs', 'Seccomp', 'Seccomp_filters', 'CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'Uid')
    rows = (line.partition(':') for line in open('/proc/self/status'))
    return {name: value.strip() for name, _, value in rows if name in wanted}
def all_of_them():
    return {'passed': [name for name, probe in PROBES.items() if passed(probe)], 'status': look()}
"""
PROBING = PROBES + """
turn = 0
while True:
    turn += 1
    print(json.dumps({'turn': turn} | all_of_them()), flush=True)
    time.sleep(0.1)
"""


@pytest.fixture
def service() -> Iterator[int]:
    """Something of the host's that a sandbox must not reach."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_accept, args=(server,), daemon=True).start()
        yield server.getsockname()[1]


def _accept(server: socket.socket) -> None:
    while True:
        try:
            server.accept()[0].close()
        except OSError:
            return


def test_a_restored_process_can_do_nothing_that_it_could_not_do_before(
    manager: SandboxManager, context: SandboxContext, repo: Path, tmp_path: Path, service: int
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    (repo / "probe.py").write_text(PROBING)
    arguments = (str(secret), str(service), "1")
    handle = start(manager, context, "probe.py", *arguments)
    before = json.loads(handle.stdout.splitlines()[0])
    assert before["passed"] == []
    made = checkpoint(manager, context)
    tree = back(manager, context, made.checkpoint_id)
    after = json.loads(tree.stdout.splitlines()[0])
    assert after["passed"] == [] and after["turn"] > before["turn"]
    assert after["status"] == before["status"]
    assert after["status"]["NoNewPrivs"] == "1" and int(after["status"]["CapEff"], 16) == 0
    # What it tried was recorded, as before.
    until(lambda: {attempt["operation"] for attempt in tree.attempts} >= {"mount", "unshare"})
    # The same probes where nothing holds them.
    alone = f"{PROBES}\nprint(json.dumps(all_of_them()['passed']))"
    said = subprocess.run([PYTHON, "-c", alone, *arguments], capture_output=True, text=True, check=True).stdout
    assert set(json.loads(said)) >= {
        "read a file of the host", "reach a service of the host", "signal a process that is not its own",
        "write beside its places", "make a user namespace", "mount", "become another id",
    }  # fmt: skip


ASKING = """
import os, select
while True:
    print(1, flush=True)
    if select.select([0], [], [], 0.02)[0]:
        os.read(0, 1)
        os.mkdir('made')
        os.path.exists('private/key')
"""


@pytest.mark.parametrize("way", ["the next execution", "a commit"])
def test_what_a_restored_process_tries_is_undone_by(way: str, manager: SandboxManager, repo: Path) -> None:
    (repo / "private").mkdir()
    (repo / "ask.py").write_text(ASKING)
    blocked = [repo / "private"]
    context = manager.create_sandbox(
        SandboxConfig(isolation_level=IsolationLevel.STRICT, allowed_paths=[repo], blocked_paths=blocked)
    )
    start(manager, context, "ask.py")
    made = checkpoint(manager, context)
    tree = back(manager, context, made.checkpoint_id)
    assert manager.run(context, ["true"]).success, "control: as long as it tries nothing"
    tree.write(b"x")
    until(lambda: tree.attempts)
    if way == "a commit":
        with pytest.raises(LateAttemptError, match="private/key"):
            manager.commit(context)
    else:
        done = manager.run(context, ["true"])
        assert not done.success and done.rolled_back and done.violations == ("stat private/key",)
    assert not manager.changes(context)


def test_a_restored_process_is_in_the_groups_namespaces_and_monitor_of_its_new_box(
    manager: SandboxManager, context: SandboxContext
) -> None:
    start(manager, context, "count.py")
    back(manager, context, checkpoint(manager, context).checkpoint_id)
    sandbox = manager._find(context.sandbox_id)
    first = sandbox.box().confinement().first
    (line,) = sandbox.programs()  # found below the leader of the box, where limits are held and usage is counted
    pid = int(line.split()[0])
    for name in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"):
        assert os.readlink(f"/proc/{pid}/ns/{name}") == os.readlink(f"/proc/{first}/ns/{name}"), name
    assert Path(f"/proc/{pid}/cgroup").read_text() == Path(f"/proc/{first}/cgroup").read_text()
    assert "ringfence-" in Path(f"/proc/{pid}/cgroup").read_text()
    manager.destroy_sandbox(context.sandbox_id)
    until(lambda: not os.path.exists(f"/proc/{pid}"))


def test_the_time_of_an_execution_holds_for_what_is_restored(
    manager: SandboxManager, context: SandboxContext
) -> None:
    start(manager, context, "count.py")
    made = checkpoint(manager, context)
    sandbox = manager._find(context.sandbox_id)
    sandbox.policy = replace(sandbox.policy, wall_time_s=1.0)  # of the next box
    assert manager.rollback_system.rollback_to_checkpoint(made.checkpoint_id).success
    (tree,) = manager.restored(context)
    until(lambda: tree.done)
    assert sandbox.programs() == ()


CALLER = """
import sys, time
from pathlib import Path
from ringfence import IsolationLevel, SandboxConfig, SandboxManager
manager = SandboxManager(sandbox_root=Path(sys.argv[1]))
config = SandboxConfig(isolation_level=IsolationLevel.STRICT, allowed_paths=[Path(sys.argv[2])])
context = manager.create_sandbox(config)
manager.start(context, [sys.argv[3], 'count.py'])
made = manager.rollback_system.create_checkpoint(context.sandbox_id, processes=True)
done = manager.rollback_system.rollback_to_checkpoint(made.checkpoint_id)
assert done.success, done.error
print('ready', flush=True)
time.sleep(1000)
"""


def test_a_killed_caller_takes_what_was_restored_along(tmp_path: Path, repo: Path) -> None:
    argv = [sys.executable, "-c", CALLER, str(tmp_path / "sandboxes"), str(repo), PYTHON]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as caller:
        assert caller.stdout is not None and caller.stdout.readline() == b"ready\n"
        below = procfs.descendants(caller.pid)
        assert all(map(_lives, below))
        caller.kill()
    assert len(below) > 4  # the restored one, what drives CRIU, and the box's own
    until(lambda: not any(_lives(process) for process in below))


def _lives(process: procfs.Process) -> bool:
    now = procfs.stat(process.pid)
    return now is not None and now.start == process.start and not now.zombie


# ---- where it can't be done


def _unchanged(manager: SandboxManager, context: SandboxContext, handle: Handle, before: list[Any]) -> None:
    """No checkpoint was made, no image is left, and what ran runs."""
    assert manager.rollback_system.list_checkpoints(context.sandbox_id) == before
    assert not list((context.folder / "processes").glob("*"))
    seen = len(handle.stdout)
    until(lambda: len(handle.stdout) > seen)


@pytest.mark.parametrize(("script", "cause"), (
    ("echo Version: 3.17.1", "3.17.1"),
    ("test $1 = --version && echo Version: 4.2 && exit 0; echo '(00.1) Error (x.c:1): no such kernel' >&2; exit 1",
     "no such kernel"),
))  # fmt: skip
def test_a_criu_that_does_not_work_here_is_refused_with_the_cause(
    manager: SandboxManager, context: SandboxContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    script: str, cause: str,
) -> None:  # fmt: skip
    handle = start(manager, context, "count.py")
    (tmp_path / "criu").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "criu").chmod(0o755)
    monkeypatch.setattr(criu, "_FOLDERS", str(tmp_path))
    with pytest.raises(UnavailableError, match=cause) as error:
        checkpoint(manager, context)
    assert error.value.hint
    _unchanged(manager, context, handle, [])


def test_a_sandbox_that_could_change_criu_is_refused(manager: SandboxManager) -> None:
    folder = Path("/usr/local/lib/criu")
    made = manager.create_sandbox(SandboxConfig(isolation_level=IsolationLevel.STRICT, allowed_paths=[folder]))
    with pytest.raises(UnavailableError, match="changed from inside"):
        checkpoint(manager, made)


UNKEEPABLE = {
    "a named socket": ("import socket; s = socket.socket(socket.AF_UNIX); s.bind('name'); s.listen()", "unix"),
    "a filter of its own": ("""
import ctypes, struct
allow = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7FFF0000))
program = struct.pack('HP', 1, ctypes.addressof(allow))
assert ctypes.CDLL(None).prctl(22, 2, program, 0, 0) == 0
""", "filter of its own"),
    "a file in the box's memory": ("f = open('/tmp/mine', 'w')", "/tmp/mine"),
}


@pytest.mark.parametrize("name", UNKEEPABLE)
def test_a_process_that_cannot_be_kept_is_named_and_goes_on(
    manager: SandboxManager, context: SandboxContext, repo: Path, name: str
) -> None:
    first, cause = UNKEEPABLE[name]
    (repo / "count.py").write_text(f"{first}\n{COUNT}")
    handle = start(manager, context, "count.py")
    with pytest.raises(CheckpointError, match=cause):
        checkpoint(manager, context)
    _unchanged(manager, context, handle, [])


def test_what_an_execution_left_behind_is_kept_too(manager: SandboxManager, context: SandboxContext) -> None:
    assert manager.run(context, ["sh", "-c", "sleep 4321 >/dev/null 2>&1 </dev/null &"]).success
    made = checkpoint(manager, context)
    assert manager.rollback_system.rollback_to_checkpoint(made.checkpoint_id).processes_restored
    (line,) = manager._find(context.sandbox_id).programs()
    assert line.endswith("sleep 4321")


def test_images_that_were_changed_are_not_restored_and_nothing_is(
    manager: SandboxManager, context: SandboxContext
) -> None:
    handle = start(manager, context, "count.py")
    made = checkpoint(manager, context)
    (image,) = (context.folder / "processes").glob("*/0/pages-1.img")
    content = bytearray(image.read_bytes())
    content[100] ^= 1
    image.write_bytes(content)
    done = manager.rollback_system.rollback_to_checkpoint(made.checkpoint_id)
    assert (done.success, done.rollback_type, done.processes_ended) == (False, "failed", ())
    assert "not those that were written" in (done.error or "")
    seen = len(handle.stdout)
    until(lambda: len(handle.stdout) > seen)
    assert manager.rollback_system.rollback_to_checkpoint(made.checkpoint_id, processes=False).success
    assert manager._find(context.sandbox_id).programs() == ()


UNNAMED = {
    "shared": "import mmap; held = mmap.mmap(-1, 40 << 20); held.write(os.urandom(40 << 20))",
    "memory": "held = os.memfd_create('a'); os.write(held, os.urandom(40 << 20))",
    "removed": "held = open('gone', 'wb'); held.write(os.urandom(40 << 20)); os.fsync(held); os.unlink('gone')",
}
FORKS = """
import os, time
data = os.urandom(1 << 20) * 4
for _ in range(7):
    if not os.fork():
        time.sleep(600)
print('a\\nb\\nc', flush=True)
time.sleep(600)
"""


def test_images_that_would_fill_the_disk_are_refused_before_anything_is_written(
    manager: SandboxManager, context: SandboxContext, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forked processes share 4 MiB, which are written for each of the eight."""
    (repo / "forks.py").write_text(FORKS)
    handle = start(manager, context, "forks.py")
    usage = shutil.disk_usage(repo)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=60 << 20))
    with pytest.raises(CheckpointError, match="are free on the disk"):
        checkpoint(manager, context)
    assert not handle.done
    assert os.listdir(os.path.join(context.folder, live_state.FOLDER)) == []
    monkeypatch.undo()
    assert checkpoint(manager, context)


@pytest.mark.parametrize("kind", UNNAMED)
def test_so_are_those_with_memory_and_files_that_have_no_name(
    manager: SandboxManager, context: SandboxContext, repo: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    wait = r"print('a\nb\nc', flush=True); time.sleep(600)"
    (repo / "unnamed.py").write_text(f"import os, time; {UNNAMED[kind]}; os.fork(); {wait}")
    start(manager, context, "unnamed.py")
    usage = shutil.disk_usage(repo)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=75 << 20))
    with pytest.raises(CheckpointError, match="are free on the disk"):
        checkpoint(manager, context)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=200 << 20))
    assert checkpoint(manager, context), "what both hold is written once"


def test_a_restore_that_fails_leaves_the_files_rolled_back_and_says_so(
    manager: SandboxManager, context: SandboxContext, repo: Path
) -> None:
    (repo / "open.txt").write_text("of the base")
    (repo / "count.py").write_text(f"held = open('open.txt')\n{COUNT}")
    start(manager, context, "count.py")
    made = checkpoint(manager, context)
    manager.run(context, ["sh", "-c", "echo later > later"])
    (repo / "open.txt").unlink()  # somebody else's doing, which no layer can undo
    done = manager.rollback_system.rollback_to_checkpoint(made.checkpoint_id)
    assert not done.success and done.rollback_type == "full"
    assert "files were rolled back" in (done.error or "") and "open.txt" in (done.error or "")
    assert done.processes_restored == () and manager.restored(context) == ()
    assert manager._find(context.sandbox_id).programs() == ()
    assert "later" not in manager.run(context, ["ls"]).stdout


# ---- on disk


def test_images_are_roots_count_as_storage_and_go_with_their_checkpoint(
    manager: SandboxManager, context: SandboxContext
) -> None:
    start(manager, context, "count.py")
    first, second, third = (checkpoint(manager, context) for _ in range(3))
    images = context.folder / "processes"
    assert (images.stat().st_mode & 0o777, images.stat().st_uid) == (0o700, 0)
    assert all(path.lstat().st_uid == 0 and path.lstat().st_mode & 0o222 in (0, 0o200) for path in images.rglob("*"))
    assert len(list(images.iterdir())) == 3
    manager.rollback_system.delete_checkpoint(second.checkpoint_id)
    assert len(list(images.iterdir())) == 2
    assert manager.rollback_system.collect(context.sandbox_id, 3 * 2**20) == [first.checkpoint_id]
    assert len(list(images.iterdir())) == 1
    manager.commit(context)  # which ends the history
    assert third.processes and not list(images.iterdir())


def test_after_a_violation_nothing_is_restored(manager: SandboxManager, context: SandboxContext) -> None:
    start(manager, context, "count.py")
    made = checkpoint(manager, context)
    done = manager.rollback_system.auto_rollback_on_violation(context.sandbox_id, "exfiltration")
    assert done.success and done.checkpoint_id == made.checkpoint_id and done.processes_restored == ()
    assert manager._find(context.sandbox_id).programs() == ()


# ---- what a CRIU that was taken over leaves behind


@pytest.mark.parametrize("trap", ["a link to a directory", "a link to a file", "a fifo"])
def test_images_are_taken_over_through_no_link(tmp_path: Path, trap: str) -> None:
    """The same links, followed, would change the host's own."""
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o700)
    (mine / "secret").touch(mode=0o600)
    (tmp_path / "images").mkdir()
    place = tmp_path / "images" / "pages-1.img"
    if trap == "a fifo":
        os.mkfifo(place)
    else:
        place.symlink_to(mine if trap == "a link to a directory" else mine / "secret")
    with pytest.raises(OSError):
        live_state._sealed(str(tmp_path / "images"))
    assert (mine.stat().st_mode & 0o777, (mine / "secret").stat().st_mode & 0o777) == (0o700, 0o600)


def test_images_that_are_files_become_roots(tmp_path: Path) -> None:
    (tmp_path / "images" / "0").mkdir(parents=True)
    (tmp_path / "images" / "0" / "core.img").write_bytes(b"state")
    os.chown(tmp_path / "images" / "0" / "core.img", 65534, 65534)
    assert live_state._sealed(str(tmp_path / "images")) == {"0/core.img": hashlib.sha256(b"state").hexdigest()}
    status = (tmp_path / "images" / "0" / "core.img").stat()
    assert (status.st_uid, status.st_mode & 0o777) == (0, 0o444)
