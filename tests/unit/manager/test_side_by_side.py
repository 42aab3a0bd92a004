"""Many threads: each in a sandbox of its own, and all together in a few that others roll back, commit and destroy."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ringfence import (
    CheckpointError,
    ConflictError,
    IsolationLevel,
    ResourceLimits,
    SandboxConfig,
    SandboxContext,
    SandboxError,
    SandboxManager,
    UsageError,
)

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]

LIMITS = ResourceLimits(max_execution_time=60, max_file_operations=10**6)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo/a").write_text("one\n")
    return tmp_path / "repo"


def in_threads(count: int, work: Callable[[int], None]) -> list[str]:
    """What went wrong in any of them."""
    problems: list[str] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            problems.append(f"{number}: {error!r}")

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return problems


@pytest.mark.parametrize("level", [IsolationLevel.STRICT, IsolationLevel.PROCESS])
def test_fifty_threads_create_execute_and_destroy(tmp_path: Path, repo: Path, level: IsolationLevel) -> None:
    config = SandboxConfig(isolation_level=level, allowed_paths=[repo], resource_limits=LIMITS)
    with SandboxManager(sandbox_root=tmp_path / "sandboxes") as manager:

        def work(number: int) -> None:
            with manager.sandbox(config) as context:
                done = manager.run(context, ["sh", "-c", f"echo {number} > a; cat a"])
                assert done.stdout == f"{number}\n", (done.error, done.stderr)

        assert in_threads(50, work) == []
        assert manager.list_active_sandboxes() == [] and manager.stored_sandboxes() == []
    assert (repo / "a").read_text() == "one\n" and os.listdir(tmp_path / "sandboxes") == []


class Crowd:
    """Threads that do anything to a few sandboxes, whatever the others do to them."""

    def __init__(self, manager: SandboxManager, config: SandboxConfig) -> None:
        self.manager = manager
        self.config = config
        self.contexts = [manager.create_sandbox(config) for _ in range(3)]
        self.deeds: dict[str, Callable[[SandboxContext], object]] = {
            "run": lambda context: manager.run(context, ["sh", "-c", "echo x >> f; cat f"]),
            "call": lambda context: manager.execute_in_sandbox(context, len, {"obj": ()}),
            "fail": lambda context: manager.run(context, ["false"]),
            "start": lambda context: manager.start(context, ["sleep", "0.2"]),
            "keep": lambda context: manager.rollback_system.create_checkpoint(context.sandbox_id, {}),
            "back": lambda context: manager.rollback(context),
            "commit": lambda context: manager.commit(context),
            "look": lambda context: (manager.changes(context), manager.diff(context)),
            "destroy": self.renew,
        }

    def renew(self, context: SandboxContext) -> None:
        place = self.contexts.index(context) if context in self.contexts else 0
        self.manager.destroy_sandbox(context.sandbox_id)
        self.contexts[place] = self.manager.create_sandbox(self.config)

    def mill(self, number: int) -> None:
        chance = random.Random(number)
        for _ in range(12):
            deed = chance.choice(list(self.deeds))
            try:
                self.deeds[deed](chance.choice(self.contexts))
            except (UsageError, CheckpointError):
                continue  # another has destroyed it, or committed what this one changed too


@pytest.mark.parametrize("level", [IsolationLevel.STRICT, IsolationLevel.PROCESS])
def test_a_crowd_in_a_few_sandboxes_gets_results_or_clear_errors(
    tmp_path: Path, repo: Path, level: IsolationLevel
) -> None:
    config = SandboxConfig(isolation_level=level, allowed_paths=[repo], resource_limits=LIMITS)
    with SandboxManager(sandbox_root=tmp_path / "sandboxes") as manager:
        crowd = Crowd(manager, config)
        assert in_threads(6, crowd.mill) == []
        for context in manager.list_active_sandboxes():
            try:
                assert manager.run(context, ["echo", "1"]).stdout == "1\n"
            except ConflictError:  # told once of what was broken off
                assert manager.run(context, ["echo", "1"]).stdout == "1\n"
            manager.destroy_sandbox(context.sandbox_id)
    assert os.listdir(tmp_path / "sandboxes") == []


def test_an_execution_whose_sandbox_is_destroyed_ends_with_a_result(tmp_path: Path) -> None:
    begun = threading.Event()
    with SandboxManager(sandbox_root=tmp_path / "sandboxes") as manager:
        context = manager.create_sandbox(SandboxConfig(isolation_level=IsolationLevel.STRICT, resource_limits=LIMITS))

        def work(_: int) -> None:
            command = ["sh", "-c", "echo up; exec sleep 4321"]
            done = manager.run(context, command, on_output=lambda *_: begun.set())
            assert not done.success and not done.rolled_back and done.rollback is not None
            assert "no longer exists" in (done.rollback.error or "") or "open here" in (done.rollback.error or "")

        waiting = threading.Thread(target=lambda: (begun.wait(), manager.destroy_sandbox(context.sandbox_id)))
        waiting.start()
        assert in_threads(1, work) == []
        waiting.join()
        with pytest.raises(SandboxError):
            manager.run(context, ["true"])
