"""A box that opens holds up nobody but who needs it: two locks, taken in one order, and every way to get in between."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S

from ringfence import IsolationLevel, ResourceLimits, SandboxConfig, SandboxContext, SandboxManager, UsageError
from ringfence.checkpoint.transaction import Transaction
from ringfence.engine.box import Box
from ringfence.manager import sandbox as sandboxes

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]

LIMITS = ResourceLimits(max_execution_time=60, max_file_operations=10**6)
LEVELS = [IsolationLevel.STRICT, IsolationLevel.PROCESS]


class Door:
    """Boxes that stand in it, half open, until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self.boxes: list[Box] = []

    def enter(self, *args: Any, **more: Any) -> Box:
        self.reached.set()
        assert self.opened.wait(PATIENCE_S)
        box = Box(*args, **more)
        self.boxes.append(box)
        return box


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    made = Door()
    monkeypatch.setattr(sandboxes, "Box", made.enter)
    yield made
    made.opened.set()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo/a").write_text("one\n")
    return tmp_path / "repo"


@pytest.fixture
def manager(tmp_path: Path, door: Door) -> Iterator[SandboxManager]:
    with SandboxManager(sandbox_root=tmp_path / "sandboxes") as made:
        try:
            yield made
        finally:
            door.opened.set()  # else the manager would wait for it


def opening(manager: SandboxManager, door: Door, repo: Path, level: IsolationLevel) -> SandboxContext:
    config = SandboxConfig(isolation_level=level, allowed_paths=[repo], resource_limits=LIMITS)
    context = manager.create_sandbox(config)
    assert door.reached.wait(PATIENCE_S)
    return context


class Meanwhile:
    """Something that is done in a thread, and what came of it."""

    def __init__(self, deed: Callable[[], object]) -> None:
        self.result: object = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._do, args=(deed,), daemon=True)
        self._thread.start()

    def _do(self, deed: Callable[[], object]) -> None:
        try:
            self.result = deed()
        except BaseException as error:
            self.error = error

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> Any:
        self._thread.join(PATIENCE_S)
        assert not self.waits
        return self.result


def done(deed: Callable[[], object]) -> Any:
    """In a thread of its own, since this one must not stand still for ever."""
    ended = Meanwhile(deed)
    result = ended.end()
    assert ended.error is None, ended.error
    return result


@pytest.mark.parametrize("level", LEVELS)
def test_checkpoints_and_looks_do_not_wait_for_the_box(
    manager: SandboxManager, door: Door, repo: Path, level: IsolationLevel
) -> None:
    context = opening(manager, door, repo, level)
    system = manager.rollback_system
    kept = done(lambda: system.create_checkpoint(context.sandbox_id, {"n": 1}))
    assert [each.checkpoint_id for each in done(lambda: system.list_checkpoints(context.sandbox_id))] == [
        kept.checkpoint_id
    ]
    assert list(done(lambda: manager.changes(context))) == [] and done(lambda: manager.diff(context)) == ""
    assert (done(lambda: kept.filesystem_snapshot) / "a").read_text() == "one\n"
    done(lambda: system.delete_checkpoint(kept.checkpoint_id))
    assert door.boxes == []


@pytest.mark.parametrize("level", LEVELS)
def test_a_rollback_waits_for_the_box_and_closes_it(
    manager: SandboxManager, door: Door, repo: Path, level: IsolationLevel
) -> None:
    context = opening(manager, door, repo, level)
    kept = done(lambda: manager.rollback_system.create_checkpoint(context.sandbox_id, {}))
    back = Meanwhile(lambda: manager.rollback(context, kept.checkpoint_id))
    commit = Meanwhile(lambda: manager.commit(context))
    done(lambda: manager.changes(context))  # neither holds the transaction while it waits for the box
    assert back.waits and commit.waits and door.boxes == []
    door.opened.set()
    back.end()
    commit.end()
    assert commit.error is None
    assert back.error is None or isinstance(back.error, UsageError)  # the commit has ended the history before it
    assert door.boxes and all(box.ended for box in door.boxes)
    assert manager.run(context, ["cat", "a"]).stdout == "one\n"


@pytest.mark.parametrize("level", LEVELS)
def test_a_sandbox_that_is_destroyed_while_its_box_opens_leaves_nothing(
    manager: SandboxManager, door: Door, repo: Path, level: IsolationLevel
) -> None:
    context = opening(manager, door, repo, level)
    gone = Meanwhile(lambda: manager.destroy_sandbox(context.sandbox_id))
    visit = Meanwhile(lambda: manager.run(context, ["true"]))
    assert gone.waits
    door.opened.set()
    gone.end()
    visit.end()
    assert gone.error is None and all(box.ended for box in door.boxes)
    assert visit.error is None or isinstance(visit.error, UsageError)
    assert manager.stored_sandboxes() == [] and not os.path.exists(context.folder)
    with pytest.raises(UsageError):
        manager.rollback_system.create_checkpoint(context.sandbox_id, {})


@pytest.mark.parametrize("level", LEVELS)
def test_a_sandbox_that_is_detached_while_its_box_opens_can_be_attached(
    manager: SandboxManager, door: Door, repo: Path, level: IsolationLevel
) -> None:
    context = opening(manager, door, repo, level)
    kept = done(lambda: manager.rollback_system.create_checkpoint(context.sandbox_id, {}))
    away = Meanwhile(lambda: manager.detach(context.sandbox_id))
    assert away.waits
    door.opened.set()
    away.end()
    assert away.error is None and all(box.ended for box in door.boxes)
    again = manager.attach(context.sandbox_id)
    assert manager.run(again, ["sh", "-c", "echo two > a; cat a"]).stdout == "two\n"
    assert manager.rollback(again, kept.checkpoint_id).success
    assert manager.run(again, ["cat", "a"]).stdout == "one\n"


def test_a_box_that_can_not_be_opened_is_told_to_who_needs_it_and_nobody_else(
    manager: SandboxManager, door: Door, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Box:
        door.reached.set()
        raise UsageError("no box today")

    monkeypatch.setattr(sandboxes, "Box", broken)
    context = opening(manager, door, repo, IsolationLevel.STRICT)
    assert manager.rollback_system.create_checkpoint(context.sandbox_id, {}).checkpoint_id
    with pytest.raises(UsageError, match="no box today"):
        manager.run(context, ["true"])


def test_nobody_uses_the_transaction_while_an_opening_box_changes_it(
    tmp_path: Path, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has to be hidden may be more when the box opens than when the sandbox was made."""
    taken: list[bool] = []
    living: list[sandboxes.Sandbox] = []
    start, hide = sandboxes.Sandbox.__init__, Transaction.hide

    def begun(self: sandboxes.Sandbox, *args: Any) -> None:
        start(self, *args)
        living.append(self)

    def hidden(self: Transaction, paths: Any) -> None:
        def try_it() -> None:
            lock = living[0]._transaction_lock
            taken.append(lock.acquire(blocking=False))
            if taken[-1]:
                lock.release()

        done(try_it)
        hide(self, paths)

    monkeypatch.setattr(sandboxes.Sandbox, "__init__", begun)
    monkeypatch.setattr(Transaction, "hide", hidden)
    config = SandboxConfig(isolation_level=IsolationLevel.STRICT, allowed_paths=[repo], resource_limits=LIMITS)
    with SandboxManager(sandbox_root=tmp_path / "sandboxes") as manager, manager.sandbox(config) as context:
        manager.run(context, ["true"])
    assert taken and not any(taken)


class Ordered:
    """A lock that must not be taken by who has the other one already."""

    def __init__(self, other: threading.RLock | None, wrong: list[str]) -> None:  # type: ignore[valid-type]
        self._lock, self.other, self.wrong = threading.RLock(), other, wrong

    def __enter__(self) -> None:
        mine, other = self._lock._is_owned(), self.other._is_owned() if self.other else False  # type: ignore[attr-defined]
        if other and not mine:
            self.wrong.append(threading.current_thread().name)
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("level", LEVELS)
def test_fifty_threads_take_the_locks_in_one_order(
    tmp_path: Path, repo: Path, level: IsolationLevel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two orders would be two threads that wait for each other for ever, once in a thousand runs."""
    wrong: list[str] = []
    start = sandboxes.Sandbox.__init__

    def ordered(self: sandboxes.Sandbox, *args: Any) -> None:
        start(self, *args)
        self._box_lock = Ordered(self._transaction_lock, wrong)  # type: ignore[assignment]

    monkeypatch.setattr(sandboxes.Sandbox, "__init__", ordered)
    config = SandboxConfig(isolation_level=level, allowed_paths=[repo], resource_limits=LIMITS)
    with SandboxManager(sandbox_root=tmp_path / "sandboxes") as manager:
        contexts = [manager.create_sandbox(config) for _ in range(2)]
        system = manager.rollback_system
        deeds: list[Callable[[SandboxContext], object]] = [
            lambda context: system.create_checkpoint(context.sandbox_id, {}),
            lambda context: manager.run(context, ["true"]),
            lambda context: manager.rollback(context),
            lambda context: system.auto_rollback_on_violation(context.sandbox_id, "a test"),
            lambda context: manager.changes(context),
        ]
        crowd = [Meanwhile(partial(deeds[number % len(deeds)], contexts[number % 2])) for number in range(50)]
        for each in crowd:
            each.end()
        assert [each.error for each in crowd if each.error and not isinstance(each.error, UsageError)] == []
        manager.commit(contexts[0])
        system.discard(manager._of(contexts[1]))
    assert wrong == []
