"""A box of the process level leaves nothing behind when its caller is killed, whatever it is doing then."""

from __future__ import annotations

import glob
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.patience import eventually
from tests.private_folders import left_in

import ringfence
from ringfence import SandboxPolicy
from ringfence.backends import scratch
from ringfence.backends.scratch import lock
from ringfence.kernel.proc import procfs
from ringfence.model import state_folder
from ringfence.model.own.private_place import BOX
from ringfence.roles import scratch_cleaner, spawner
from ringfence.transport import wire

pytestmark = [pytest.mark.system, pytest.mark.privileges]

LEVELS = {
    "process": "SandboxPolicy(isolation='process', wall_time_s=60)",
    "process behind walls": "SandboxPolicy(isolation='process', wall_time_s=60, hidden_paths=['/var/mail'])",
    "strict without namespaces": "SandboxPolicy(isolation='strict', wall_time_s=60, allow_partial=True)",
}
MOMENTS = {
    "opened": "",
    "between visits": "box.run(['sh', '-c', 'mkdir -p deep/er; echo 1 > deep/er/file'])",
    "during a visit": "handle = box.start(['sh', '-c', 'while :; do echo 1 > file$((n = n + 1)); done'])",
}
CALLER = """
import sys, time, ringfence
from ringfence import SandboxPolicy
from ringfence.backends import scratch
from ringfence.sandbox import host
if 'strict' in {policy!r}:
    host.user_namespaces_blocked = lambda: ('they are switched off', 'switch them on')
box = ringfence.open({policy})
{moment}
print(box._box._scratch.path, flush=True)
time.sleep(600)
"""


@contextmanager
def _caller(level: str, moment: str, tmp: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    code = CALLER.format(policy=LEVELS[level], moment=MOMENTS[moment])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                          env=environment | {"TMPDIR": str(tmp)}) as caller:  # fmt: skip
        try:
            assert caller.stdout is not None
            yield caller, Path(caller.stdout.readline().strip())
        finally:
            caller.kill()


@pytest.fixture
def tmp() -> Iterator[Path]:
    """Where private directories are made; as root the job has an id of its own and must get there."""
    with tempfile.TemporaryDirectory(prefix="keeper-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("level", LEVELS)
def test_nothing_is_left_when_the_caller_is_killed(level: str, moment: str, tmp: Path) -> None:
    with _caller(level, moment, tmp) as (caller, folder):
        assert folder.is_dir() and folder.parent.parent == tmp  # the control: it was there
        caller.kill()
    eventually(lambda: not left_in(tmp))
    eventually(lambda: not _working_in(folder))
    eventually(lambda: not glob.glob(f"/sys/fs/cgroup/**/ringfence-*-{caller.pid}-*", recursive=True))


def test_a_guest_that_kills_the_keeper_leaves_its_folder_only_until_the_next_box(
    tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _caller("process", "between visits", tmp) as (caller, folder):
        _keeper_of(caller).kill()
        caller.kill()
    assert folder.is_dir()  # the control: nobody else clears it
    monkeypatch.setenv("TMPDIR", str(tmp))
    with ringfence.open(SandboxPolicy(isolation="process")) as living:
        mine = Path(living._box._scratch.path)  # type: ignore[attr-defined]
        other = folder.parent / f"{BOX}other"
        other.symlink_to(folder)
        for path in (folder, mine):
            os.utime(path, (1, 1))
        with ringfence.open(SandboxPolicy(isolation="process")) as next_one:
            eventually(lambda: not folder.exists())
            assert next_one.run(["true"]).ok and living.run(["true"]).ok
        assert mine.is_dir() and other.is_symlink()
    assert left_in(tmp) == [other]


def test_what_is_young_or_locked_or_somebody_elses_is_no_orphan(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    young, old, locked, foreign = (tmp / f"{BOX}{number}" for number in range(4))
    for folder in (young, old, locked, foreign):
        (folder / "work").mkdir(parents=True)
    for folder in (old, locked, foreign):
        os.utime(folder, (1, 1))
    held = lock(str(locked))
    monkeypatch.setattr(scratch_cleaner, "_CLEAR_WAIT_S", 0)
    found = scratch_cleaner.orphans(str(tmp))
    assert sorted(found) == sorted(map(str, (old, locked, foreign)))
    descriptors = os.listdir("/proc/self/fd")
    scratch_cleaner._clear_all([path for path in found if path != str(foreign)])
    assert not old.exists() and locked.is_dir() and young.is_dir()
    os.close(held)
    scratch_cleaner._clear_all([str(locked), str(tmp / "none")])
    assert not locked.exists() and len(os.listdir("/proc/self/fd")) == len(descriptors) - 1
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert scratch_cleaner.orphans(str(tmp)) == []


def test_nothing_is_removed_while_a_leader_may_still_be_ending_what_ran_there(
    tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan = tmp / f"{BOX}orphan"
    orphan.mkdir()
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", lambda seconds: waited.append(seconds) if orphan.is_dir() else None)
    scratch_cleaner._clear_all([str(orphan)])
    assert waited == [scratch_cleaner._CLEAR_WAIT_S] and not orphan.exists()


def test_a_caller_that_finds_locked_directories_goes_on_at_once_and_keeps_no_descriptor(
    tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp))
    place = Path(state_folder.private_place())
    held = []
    for number in range(40):
        (place / f"{BOX}{number}").mkdir()
        held.append(lock(str(place / f"{BOX}{number}")))
        os.utime(place / f"{BOX}{number}", (1, 1))
    assert ringfence.run(["true"]).ok
    before = len(os.listdir("/proc/self/fd"))
    scratch._swept.clear()
    assert ringfence.run(["true"]).ok
    assert scratch._swept and len(os.listdir("/proc/self/fd")) <= before
    assert len(left_in(tmp)) == 40
    for each in held:
        os.close(each)


_KILLED_EARLY = """
import os, signal
from ringfence import Job
from ringfence.backends.scratch import Scratch
scratch = Scratch()
scratch.prepare(Job(argv=("true",), files={"secret": b"the caller's"}))
print(scratch.path, flush=True)
signal.pause()
"""


@pytest.mark.parametrize("isolation", ["strict", "process"])
def test_what_a_caller_left_that_was_killed_as_it_began_is_removed_by_a_later_one(isolation: str, tmp: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp)}
    later = f"import ringfence; print(ringfence.run(['true'], ringfence.SandboxPolicy(isolation='{isolation}')).ok)"

    def another() -> None:
        assert subprocess.check_output([sys.executable, "-c", later], env=environment) == b"True\n"

    begun = subprocess.Popen([sys.executable, "-c", _KILLED_EARLY], env=environment, stdout=subprocess.PIPE, text=True)
    with begun as caller:
        assert caller.stdout is not None
        left = Path(caller.stdout.readline().strip())
        if os.geteuid() == 0:
            os.chown(left, 12345678, 12345678)  # as the leader gives it to the job
        os.utime(left, (1, 1))
        another()
        assert (left / "work" / "secret").exists()  # the control: its caller lives
        caller.kill()
    another()
    eventually(lambda: not left_in(tmp))


class _Process:
    def __init__(self, pid: int) -> None:
        self.pidfd = os.pidfd_open(pid)

    def kill(self) -> None:
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        assert wire.is_readable(self.pidfd, 30)
        os.close(self.pidfd)


def _keeper_of(caller: subprocess.Popen[str]) -> _Process:
    """The only one that its spawner has forked between visits."""
    (its_spawner,) = procfs.children(caller.pid)
    eventually(lambda: len(procfs.children(its_spawner)) == 1)  # the leader of the visit is on its way out
    return _Process(procfs.children(its_spawner)[0])


def _working_in(folder: Path) -> list[int]:
    """Processes that work in there."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            found += [int(name)] if os.readlink(f"/proc/{name}/cwd").startswith(str(folder)) else []
        except OSError:
            continue
    return found


def test_a_box_that_is_closed_leaves_no_keeper(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp))
    ringfence.run(["true"])
    before = set(procfs.children(spawner.pid()))
    with ringfence.open(SandboxPolicy(isolation="process")) as box:
        assert box.run(["true"]).ok
        eventually(lambda: len(set(procfs.children(spawner.pid())) - before) == 1)
        assert len(left_in(tmp)) == 1
    eventually(lambda: not set(procfs.children(spawner.pid())) - before)
    assert not left_in(tmp)


def test_the_folder_of_a_living_caller_outlives_the_spawner(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp))
    with ringfence.open(SandboxPolicy(isolation="process")) as box:
        box.put("kept", b"kept")
        killed = spawner.pid()
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: procfs.stat(killed) is None or procfs.stat(killed).zombie)  # type: ignore[union-attr]
        assert box.get("kept") == b"kept" and spawner.pid() != killed
    assert not left_in(tmp)


@pytest.mark.parametrize("word", [b"\x09", b""], ids=["asked", "gone"])
def test_the_cleaner_clears_only_what_its_caller_can_not(tmp: Path, word: bytes) -> None:
    scratch = tmp / "ringfence-1"
    scratch.mkdir()
    commands, to_commands = os.pipe()
    reports, to_reports = os.pipe()
    owner = os.pidfd_open(os.getpid())
    os.write(to_commands, wire.encode_request({"scratch": str(scratch), "cgroups": []}) + word)
    os.close(to_commands)
    scratch_cleaner.clean(commands, to_reports, owner)
    assert os.read(reports, 99) == wire.started_frame(os.getpid())
    assert scratch.exists() is bool(word)
    for descriptor in (commands, reports, to_reports, owner):
        os.close(descriptor)
