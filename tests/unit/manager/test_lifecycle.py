"""Sandboxes come and go: after a restart, under a lock, with a killed caller, when they are old, and when they end."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.patience import eventually

from ringfence import (
    BusyError,
    CheckpointError,
    IsolationLevel,
    Outcome,
    SandboxConfig,
    SandboxError,
    SandboxManager,
    SetupError,
    UsageError,
)
from ringfence.checkpoint.workspace import Workspace
from ringfence.engine.box import Box
from ringfence.engine.handle import Handle
from ringfence.kernel.proc import procfs
from ringfence.manager.registry import MAX_METADATA_BYTES, METADATA, Damaged, Registry

pytestmark = [pytest.mark.system, pytest.mark.privileges]

SLEEP_S = str(10**9 + int.from_bytes(os.urandom(3), "big"))
"""Nobody else on this machine sleeps for as long."""
LEVELS = (IsolationLevel.STRICT, IsolationLevel.PROCESS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "sandboxes"


@pytest.fixture
def manager(root: Path) -> Iterator[SandboxManager]:
    with SandboxManager(sandbox_root=root) as made:
        yield made


def config(level: IsolationLevel = IsolationLevel.PROCESS, **more: object) -> SandboxConfig:
    more = {"allow_partial": level is IsolationLevel.NONE, **more}
    return SandboxConfig(isolation_level=level, **more)  # type: ignore[arg-type]


def aged(root: Path, sandbox_id: str, hours: float) -> None:
    os.utime(root / sandbox_id / METADATA, (time.time() - hours * 3600,) * 2)


@pytest.mark.parametrize("level", LEVELS)
def test_a_sandbox_is_found_again_with_its_files_checkpoints_and_state(root: Path, level: IsolationLevel) -> None:
    with SandboxManager(sandbox_root=root) as first:
        context = first.create_sandbox(config(level, environment_vars={"A": "b"}))
        first.run(context, ["sh", "-c", "echo kept > file"])
        context.state_data["step"] = 3
        made = first.rollback_system.create_checkpoint(context.sandbox_id, {"why": "end"})
        first.run(context, ["sh", "-c", "echo later > file"])
    with SandboxManager(SandboxConfig(environment_vars={"A": "b"}), sandbox_root=root) as second:
        assert second.list_active_sandboxes() == []
        (stored,) = second.stored_sandboxes()
        found = second.attach(stored.sandbox_id)
        assert found.sandbox_id == context.sandbox_id and found.config == context.config
        assert found.state_data == {"step": 3} and found.environment_vars == {"A": "b"}
        assert second.run(found, ["cat", "file"]).stdout == "later\n"
        assert second.rollback_system.rollback_to_checkpoint(made.checkpoint_id).success
        assert second.run(found, ["cat", "file"]).stdout == "kept\n"
        assert second.attach(stored.sandbox_id) is found
        second.destroy_sandbox(stored.sandbox_id)
    assert os.listdir(root) == []


def test_two_managers_do_not_fight_over_one(manager: SandboxManager, root: Path) -> None:
    context = manager.create_sandbox(config())
    with SandboxManager(sandbox_root=root) as other:
        with pytest.raises(BusyError) as error:
            other.attach(context.sandbox_id)
        assert error.value.pid == os.getpid()
        with pytest.raises(BusyError):
            other.destroy_sandbox(context.sandbox_id)
        assert manager.run(context, ["true"]).success
        manager.detach(context.sandbox_id)
        other.attach(context.sandbox_id)
        with pytest.raises(UsageError, match="open here"):
            manager.run(context, ["true"])
        other.destroy_sandbox(context.sandbox_id)


def test_a_damaged_one_is_a_clear_error_and_does_not_stop_the_others(manager: SandboxManager, root: Path) -> None:
    good, bad = (manager.create_sandbox(config()).sandbox_id for _ in range(2))
    manager.close()
    (root / bad / METADATA).write_text("{")
    with SandboxManager(sandbox_root=root) as other:
        assert {type(each) is Damaged for each in other.stored_sandboxes()} == {True, False}
        other.attach(good)
        with pytest.raises(SandboxError, match=METADATA):
            other.attach(bad)
        other.destroy_sandbox(bad)
        assert os.listdir(root) == [good]


def test_a_config_that_was_tampered_with_is_refused(manager: SandboxManager, root: Path) -> None:
    sandbox_id = manager.create_sandbox(config()).sandbox_id
    manager.close()
    place = root / sandbox_id / METADATA
    place.write_text(place.read_text().replace('"process"', '"everything"'))
    with pytest.raises(SandboxError):
        manager.attach(sandbox_id)


def test_only_old_ones_that_nobody_uses_are_cleaned_up(manager: SandboxManager, root: Path) -> None:
    made = {name: manager.create_sandbox(config(**more)).sandbox_id for name, more in {
        "used": {"cleanup_age_hours": 1}, "old": {"cleanup_age_hours": 1}, "young": {"cleanup_age_hours": 3},
        "kept": {"auto_cleanup": False, "cleanup_age_hours": 1}, "damaged": {},
    }.items()}  # fmt: skip
    for name in ("old", "young", "kept", "damaged"):
        manager.detach(made[name])
    for sandbox_id in made.values():
        aged(root, sandbox_id, hours=2)
    (root / made["damaged"] / METADATA).write_text("{")
    aged(root, made["damaged"], hours=1000)
    treasure = root.parent / "treasure"
    treasure.mkdir()
    (treasure / METADATA).write_text((root / made["old"] / METADATA).read_text())
    aged(root.parent, "treasure", hours=1000)
    (root / "linked").symlink_to(treasure)
    SandboxManager(sandbox_root=root).close()
    left = {name for name, sandbox_id in made.items() if (root / sandbox_id).exists()}
    assert left == {"used", "young", "kept", "damaged"}
    assert (treasure / METADATA).exists() and (root / "linked").is_symlink()
    assert manager.run(manager.list_active_sandboxes()[0], ["true"]).success


def test_one_that_may_be_in_the_making_is_never_cleaned_up(manager: SandboxManager, root: Path) -> None:
    sandbox_id = manager.create_sandbox(config(IsolationLevel.NONE, cleanup_age_hours=0)).sandbox_id
    manager.close()
    for hours, left in ((0.05, [sandbox_id]), (0.2, [])):
        aged(root, sandbox_id, hours)
        SandboxManager(sandbox_root=root)
        assert os.listdir(root) == left


@pytest.mark.parametrize("base_is_there", (True, False))
def test_cleaning_up_finishes_no_commit_that_was_broken_off_and_destroying_does(
    base_is_there: bool, manager: SandboxManager, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "base").mkdir()
    context = manager.create_sandbox(config(cleanup_age_hours=1, allowed_paths=[str(tmp_path / "base")]))
    manager.run(context, ["sh", "-c", "echo new > file"])
    monkeypatch.setattr(Workspace, "_finish_commit", _fail)
    with pytest.raises(CheckpointError):
        manager.commit(context)
    monkeypatch.undo()
    manager.detach(context.sandbox_id)
    aged(root, context.sandbox_id, hours=2)
    if not base_is_there:
        (tmp_path / "base").rename(tmp_path / "away")
    with SandboxManager(sandbox_root=root) as other:
        assert (root / context.sandbox_id).exists() and not (tmp_path / "base/file").exists()
        other.destroy_sandbox(context.sandbox_id)
    assert not (root / context.sandbox_id).exists()
    if base_is_there:
        assert (tmp_path / "base/file").read_text() == "new\n"


def _fail(*_: object) -> None:
    raise OSError(errno.EIO, "pulled out")


def test_use_keeps_a_sandbox_young(manager: SandboxManager, root: Path) -> None:
    context = manager.create_sandbox(config(cleanup_age_hours=1))
    aged(root, context.sandbox_id, hours=2)
    manager.run(context, ["true"])
    manager.detach(context.sandbox_id)
    SandboxManager(sandbox_root=root).close()
    assert (root / context.sandbox_id).exists()


def test_a_sandbox_of_another_door_is_attached_and_never_cleaned_up(manager: SandboxManager, root: Path) -> None:
    context = manager.create_sandbox(config())
    manager.detach(context.sandbox_id)
    registry = Registry(root)
    registry.write(replace(registry.read(context.sandbox_id), config={}, command=("make",)))
    aged(root, context.sandbox_id, hours=10_000)
    with SandboxManager(sandbox_root=root) as other:
        found = other.attach(context.sandbox_id)
        assert found.isolation_level is IsolationLevel.PROCESS and other.run(found, ["true"]).success


def test_a_linked_sandbox_is_not_destroyed_through_its_link(manager: SandboxManager, root: Path) -> None:
    elsewhere = root.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / METADATA).write_text("{}")
    root.mkdir(exist_ok=True)
    (root / "sandbox_x").symlink_to(elsewhere)
    with pytest.raises(UsageError):
        manager.destroy_sandbox("sandbox_x")
    assert (elsewhere / METADATA).exists()
    with pytest.raises(UsageError):
        manager.destroy_sandbox("../elsewhere")


def test_a_folder_that_is_no_sandbox_is_never_removed(manager: SandboxManager, root: Path) -> None:
    for name, files in {"documents": ["letter"], "project": [METADATA], "other": [METADATA, "lock"]}.items():
        (root / name).mkdir(parents=True)
        for file in files:
            (root / name / file).write_text("{}")
        with pytest.raises(UsageError, match="not a sandbox"):
            manager.destroy_sandbox(name)
        assert sorted(os.listdir(root / name)) == sorted(files)


@pytest.mark.parametrize("wrong", [None, [], {}, 7, "..", "a/b", ""])
def test_what_can_be_no_id_or_context_is_an_error_that_says_so(manager: SandboxManager, wrong: Any) -> None:
    for use in (manager.destroy_sandbox, manager.attach, manager.detach, manager.rollback_system.list_checkpoints):
        with pytest.raises(UsageError):
            use(wrong)
    for use in (manager.diff, manager.commit, manager.rollback, lambda each: manager.execute_in_sandbox(each, int)):
        with pytest.raises(UsageError, match="not a SandboxContext"):
            use(wrong)


def test_what_is_no_config_or_function_is_an_error_that_says_so(manager: SandboxManager) -> None:
    for make in (manager.create_sandbox, SandboxManager):
        with pytest.raises(UsageError, match="not a SandboxConfig"):
            make({"isolation_level": "strict"})  # type: ignore[arg-type]
    for root in (5, "a\0b"):
        with pytest.raises(UsageError, match="not a valid sandbox root"):
            SandboxManager(sandbox_root=root)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="can't be called"):
        manager.execute_in_sandbox(manager.create_sandbox(config()), 7)  # type: ignore[arg-type]


HOSTILE = {
    "a limit that no float holds": lambda place: _rewrite(place, "max_execution_time", 10**400),
    "hours that no float holds": lambda place: _rewrite(place, "cleanup_age_hours", 10**400),
    "a lock that is a directory": lambda place: _replaced(place / "lock", os.mkdir),
    "a lock that is a link": lambda place: _replaced(place / "lock", lambda path: os.symlink("/etc/passwd", path)),
    "a lock that is a pipe": lambda place: _replaced(place / "lock", os.mkfifo),
    "a lock with a number of many digits": lambda place: (place / "lock").write_text("9" * 5000),
}


def _rewrite(place: Path, field: str, value: object) -> None:
    kept = json.loads((place / METADATA).read_text())
    limits = kept["config"]["resource_limits"]
    (limits if field in limits else kept["config"])[field] = value
    (place / METADATA).write_text(json.dumps(kept))


def _replaced(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


@pytest.mark.parametrize("how", HOSTILE)
def test_a_hostile_sandbox_stops_no_manager(manager: SandboxManager, root: Path, how: str) -> None:
    good, bad = (manager.create_sandbox(config(IsolationLevel.NONE)).sandbox_id for _ in range(2))
    manager.close()
    HOSTILE[how](root / bad)
    for sandbox_id in (good, bad):
        aged(root, sandbox_id, hours=1000)
    with SandboxManager(sandbox_root=root) as other:
        assert good not in os.listdir(root)  # the clean-up went on behind it
        assert other.run(other.create_sandbox(config(IsolationLevel.NONE)), ["true"]).success


def test_state_that_could_not_be_read_again_is_refused(manager: SandboxManager) -> None:
    context = manager.create_sandbox(config(IsolationLevel.NONE))
    context.state_data["much"] = "x" * (MAX_METADATA_BYTES + 1)
    with pytest.raises(UsageError, match="never be read") as error:
        manager.detach(context.sandbox_id)
    assert "state_data" in error.value.hint
    assert manager.attach(context.sandbox_id).state_data == {}


def test_a_gone_sandbox_says_so(manager: SandboxManager) -> None:
    context = manager.create_sandbox(config())
    manager.destroy_sandbox(context.sandbox_id)
    for use in (lambda: manager.run(context, ["true"]), lambda: manager.destroy_sandbox(context.sandbox_id)):
        with pytest.raises(UsageError):
            use()


CALLER = """
import os, sys, time
from ringfence import IsolationLevel, SandboxConfig, SandboxManager
manager = SandboxManager(sandbox_root=sys.argv[1])
context = manager.create_sandbox(SandboxConfig(isolation_level=IsolationLevel(sys.argv[2])))
manager.run(context, ["sh", "-c", "echo kept > file"])
handle = manager.start(context, ["sh", "-c", "echo up; exec sleep SLEEP_S"])
while not handle.stdout: time.sleep(0.01)
print(context.sandbox_id, flush=True)
{how}
"""


@contextmanager
def start_caller(root: Path, level: IsolationLevel, how: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", CALLER.replace("{how}", how).replace("SLEEP_S", SLEEP_S), str(root), str(level)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as caller:
        try:
            yield caller
        finally:
            caller.kill()


def sleepers() -> list[str]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        line = procfs._command_line(int(name))
        found += [name] if SLEEP_S in line and line.startswith("sleep") else []
    return found


@pytest.mark.parametrize("level", LEVELS)
def test_after_kill_9_of_the_caller_nothing_runs_on_and_the_sandbox_can_be_attached(
    root: Path, level: IsolationLevel
) -> None:
    with start_caller(root, level, "time.sleep(600)") as caller:
        assert caller.stdout is not None
        sandbox_id = caller.stdout.readline().strip()
        eventually(sleepers)
        with SandboxManager(sandbox_root=root) as manager, pytest.raises(BusyError):
            manager.attach(sandbox_id)
        caller.kill()
    eventually(lambda: not sleepers())
    with SandboxManager(sandbox_root=root) as manager:
        context = manager.attach(sandbox_id)
        assert manager.run(context, ["cat", "file"]).stdout == "kept\n"
        manager.destroy_sandbox(sandbox_id)
    assert os.listdir(root) == []


def test_ctrl_c_in_an_execution_ends_it_and_cleans_up(root: Path) -> None:
    how = """
try:
    with manager.sandbox(SandboxConfig(isolation_level=IsolationLevel.STRICT)) as other:
        print(other.sandbox_id, flush=True)
        manager.run(other, ["sh", "-c", "echo up; exec sleep SLEEP_S"], on_output=lambda *_: print("up", flush=True))
finally:
    manager.close()
"""
    with start_caller(root, IsolationLevel.STRICT, how) as caller:
        assert caller.stdout is not None
        first, other = caller.stdout.readline().strip(), caller.stdout.readline().strip()
        assert caller.stdout.readline() == "up\n"
        caller.send_signal(signal.SIGINT)
        assert caller.wait(30) != 0
    assert os.listdir(root) == [first] and first != other
    eventually(lambda: not sleepers())


def test_destroying_while_it_works_leaves_nothing(manager: SandboxManager, root: Path) -> None:
    context = manager.create_sandbox(config(IsolationLevel.STRICT))
    handle = manager.start(context, ["sh", "-c", "while :; do mkdir -p a/b/c; echo x > a/b/c/d; rm -r a; done"])
    manager.destroy_sandbox(context.sandbox_id)
    handle.join(20)
    assert handle.done and os.listdir(root) == []


def test_where_each_config_says_its_root_is_used(tmp_path: Path) -> None:
    with SandboxManager(SandboxConfig(sandbox_root=tmp_path / "default")) as manager:
        one = manager.create_sandbox()
        two = manager.create_sandbox(config(sandbox_root=tmp_path / "other"))
        assert one.folder.parent == tmp_path / "default" and two.folder.parent == tmp_path / "other"
        assert {"workspace", "checkpoints", METADATA} <= set(os.listdir(one.folder))
        for context in (one, two):
            manager.destroy_sandbox(context.sandbox_id)


def in_a_fork(work: Callable[[], object]) -> int:
    """The exit code of a forked copy of this process in which it is done."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_copy_of_the_caller_destroys_nothing(manager: SandboxManager, root: Path) -> None:
    place = manager.sandbox(config())
    context = place.__enter__()

    def misuse() -> None:
        for use in (manager.create_sandbox, lambda: manager.destroy_sandbox(context.sandbox_id)):
            with pytest.raises(UsageError, match="process that made it"):
                use()
        place.__exit__(None, None, None)
        manager.close()

    assert in_a_fork(misuse) == 0
    assert manager.run(context, ["true"]).success
    place.__exit__(None, None, None)
    assert os.listdir(root) == []


def test_state_that_cannot_be_kept_does_not_keep_a_sandbox_open(manager: SandboxManager, root: Path) -> None:
    context = manager.create_sandbox(config())
    context.state_data["bad"] = object()
    with pytest.raises(UsageError, match="state_data"):
        manager.detach(context.sandbox_id)
    assert manager.attach(context.sandbox_id).state_data == {}


def test_threads_that_attach_one_sandbox_get_the_same(manager: SandboxManager) -> None:
    sandbox_id = manager.create_sandbox(config()).sandbox_id
    manager.detach(sandbox_id)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: manager.attach(sandbox_id), range(8)))
    assert len(set(map(id, found))) == 1


def test_a_sandbox_whose_making_was_broken_off_can_be_destroyed(manager: SandboxManager, root: Path) -> None:
    sandbox_id = manager.create_sandbox(config()).sandbox_id
    manager.detach(sandbox_id)
    os.unlink(root / sandbox_id / "transaction.json")
    with pytest.raises(SandboxError, match="not a transaction"):
        manager.attach(sandbox_id)
    manager.destroy_sandbox(sandbox_id)
    assert os.listdir(root) == []


def test_a_box_that_ends_at_the_wrong_moment_is_replaced(
    manager: SandboxManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = manager.create_sandbox(config())
    start, wait = Box.start, Handle.wait
    gone = iter([True, False, True, False])

    def sometimes(self: Box, *args: Any, **more: Any) -> Handle:
        if next(gone, False):
            raise SetupError("enter the box", "Broken pipe")
        return start(self, *args, **more)

    monkeypatch.setattr(Box, "start", sometimes)
    assert manager.run(context, ["echo", "1"]).stdout == "1\n"
    late = iter([True])

    def told_late(self: Handle, *args: Any) -> Outcome:
        if next(late, False):
            raise SetupError("enter the box", "Broken pipe")
        return wait(self, *args)

    monkeypatch.setattr(Handle, "wait", told_late)
    assert manager.run(context, ["echo", "2"]).stdout == "2\n"
    gone = iter([True] * 100)
    with pytest.raises(SandboxError, match="does not stay open"):
        manager.run(context, ["true"])
    monkeypatch.undo()
    with pytest.raises(SetupError):
        manager.run(context, ["no-such-program"])


def test_a_box_that_has_ended_unnoticed_is_replaced(manager: SandboxManager, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of all that is in it ends a box a moment after the execution that passed it."""
    context = manager.create_sandbox(config(IsolationLevel.STRICT))
    assert manager.run(context, ["echo", "1"]).stdout == "1\n"
    box = manager._find(context.sandbox_id).box()._box
    leader = box._supervisor.visit.leader  # type: ignore[attr-defined]
    (pid_1,) = procfs.children(leader)
    ended = type(box).ended
    unnoticed = iter([True])
    os.kill(pid_1, signal.SIGKILL)
    eventually(lambda: (row := procfs.stat(pid_1)) is None or row.zombie)
    monkeypatch.setattr(type(box), "ended", lambda self: not next(unnoticed, False) and ended(self))
    assert manager.run(context, ["echo", "2"]).stdout == "2\n"
    assert next(unnoticed, None) is None, "the box was thought to live"
