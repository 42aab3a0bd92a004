"""What an execution of a manager, or a call of an agent, leaves running is undone with it when it tries something
forbidden, before anything of it is committed."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence import (
    IsolationLevel,
    LateAttemptError,
    ResourceLimits,
    SandboxConfig,
    SandboxContext,
    SandboxManager,
)
from ringfence.integrations.deep_agent import Commit, SafeConfig, SafeDeepAgent
from tests.patience import eventually

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]

# It ends well, and leaves a child that waits for a word, writes a file, and asks for something or not.
_LEAVE = """
import os, time
open('first', 'w').close()
if os.fork(): os._exit(0)
os.setsid(); null = os.open('/dev/null', os.O_RDWR); [os.dup2(null, number) for number in (0, 1, 2)]
while not open({go!r}).read(): time.sleep(0.005)
open('made', 'w').close()
os.path.exists({asked!r})
os.mkdir('done')
time.sleep(600)
"""
SECRET, NOTHING = "private/key", "nothing"


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="after-", dir="/var/tmp") as name:
        place = Path(os.path.realpath(name))
        place.chmod(0o755)
        for part in ("work/private", "shown"):
            (place / part).mkdir(parents=True)
        (place / "work" / "private" / "key").write_text("text\n")
        yield place


@pytest.fixture
def go(folder: Path) -> Path:
    """Has something in it once what was left running may begin."""
    path = folder / "shown" / "go"
    path.touch()
    return path


def _config(folder: Path, **more: object) -> SandboxConfig:
    limits = ResourceLimits(max_execution_time=60, max_file_operations=1_000_000)
    return SandboxConfig(isolation_level=IsolationLevel.STRICT, resource_limits=limits, sandbox_root=folder / "boxes",
                         allowed_paths=[folder / "work"], blocked_paths=[folder / "work" / "private"],
                         readable_paths=[folder / "shown"], **more)  # type: ignore[arg-type]  # fmt: skip


@pytest.fixture
def manager(folder: Path) -> Iterator[SandboxManager]:
    with SandboxManager(_config(folder)) as made:
        yield made


def _leave(manager: SandboxManager, context: SandboxContext, go: Path, asked: str = SECRET) -> None:
    """An execution that ends well, and what it left does its work."""
    done = manager.run(context, [sys.executable, "-I", "-c", _LEAVE.format(go=str(go), asked=asked)])
    assert done.success, done.error
    go.write_text("go")
    eventually(lambda: "done" in _changed(manager, context))


def _changed(manager: SandboxManager, context: SandboxContext) -> list[str]:
    return sorted(os.path.basename(change.path) for change in manager.changes(context))


def _earlier(manager: SandboxManager, context: SandboxContext) -> None:
    assert manager.run(context, ["touch", "earlier"]).success


def test_the_next_execution_fails_and_all_since_the_process_was_left_is_undone(
    manager: SandboxManager, go: Path
) -> None:
    with manager.sandbox() as context:
        _earlier(manager, context)
        _leave(manager, context, go)
        done = manager.run(context, ["touch", "next"])
        assert not done.success and done.rolled_back and done.violations == ("stat private/key",), done
        assert _changed(manager, context) == ["earlier"]
        assert manager.run(context, ["touch", "after"]).success
        assert len(manager.commit(context).paths) == 2


def test_what_tries_nothing_goes_on_and_is_committed(manager: SandboxManager, go: Path, folder: Path) -> None:
    with manager.sandbox() as context:
        _leave(manager, context, go, NOTHING)
        assert manager.run(context, ["touch", "next"]).success
        manager.commit(context)
    assert {"made", "done", "first", "next"} < set(os.listdir(folder / "work"))


def test_a_commit_refuses_and_undoes_it(manager: SandboxManager, go: Path, folder: Path) -> None:
    with manager.sandbox() as context:
        _earlier(manager, context)
        _leave(manager, context, go)
        with pytest.raises(LateAttemptError, match="private/key") as caught:
            manager.commit(context)
        assert "rolled back" in caught.value.hint and _changed(manager, context) == ["earlier"]
        assert os.listdir(folder / "work") == ["private"]
        assert len(manager.commit(context).paths) == 1


def test_a_commit_refuses_after_everything_has_ended(manager: SandboxManager, go: Path, folder: Path) -> None:
    """Nothing runs any more, so the box is closed first."""
    with manager.sandbox() as context:
        source = _LEAVE.format(go=str(go), asked=SECRET).replace("time.sleep(600)", "")
        assert manager.run(context, [sys.executable, "-I", "-c", source]).success
        go.write_text("go")
        eventually(lambda: "done" in _changed(manager, context))
        with pytest.raises(LateAttemptError, match="private/key"):
            manager.commit(context)
    assert os.listdir(folder / "work") == ["private"]


def test_without_a_rollback_the_commit_refuses_until_somebody_was_told(folder: Path, go: Path) -> None:
    with SandboxManager(_config(folder, enable_auto_rollback=False)) as manager, manager.sandbox() as context:
        _leave(manager, context, go)
        for _ in range(2):
            with pytest.raises(LateAttemptError):
                manager.commit(context)
        assert manager.run(context, ["true"]).violations == ("stat private/key",)
        assert len(manager.commit(context).paths) == 3


def test_what_came_after_a_commit_is_undone_to_that_commit(manager: SandboxManager, go: Path, folder: Path) -> None:
    with manager.sandbox() as context:
        source = _LEAVE.format(go=str(go), asked=SECRET)
        assert manager.run(context, [sys.executable, "-I", "-c", source]).success
        assert len(manager.commit(context).paths) == 1, "what runs goes on"
        go.write_text("go")
        eventually(lambda: "done" in _changed(manager, context))
        done = manager.run(context, ["touch", "next"])
        assert not done.success and done.rolled_back and not _changed(manager, context)
    assert sorted(os.listdir(folder / "work")) == ["first", "private"]


def test_who_attaches_it_later_can_not_commit_it_either(folder: Path, go: Path) -> None:
    with SandboxManager(_config(folder)) as manager:
        context = manager.create_sandbox()
        _leave(manager, context, go)
    with SandboxManager(_config(folder)) as another:
        again = another.attach(context.sandbox_id)
        with pytest.raises(LateAttemptError):
            another.commit(again)
        assert not _changed(another, again) and not another.commit(again).paths
        another.destroy_sandbox(context.sandbox_id)


# ---- an agent


def _execute_and_leave(go: str, asked: str) -> int:
    source = _LEAVE.format(go=go, asked=asked)
    os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-I", "-c", source])
    return 1


def _execute_nothing() -> int:
    return 2


@pytest.mark.parametrize("asked", [SECRET, NOTHING])
def test_an_agent_keeps_nothing_of_it(asked: str, folder: Path, go: Path) -> None:
    config = SafeConfig(sandbox=_config(folder), commit=Commit.EACH_CALL, max_risk=1.0)
    with SafeDeepAgent([_execute_and_leave, _execute_nothing], safe_config=config) as agent:
        first = agent.run_tool("_execute_and_leave", go=str(go), asked=asked)
        assert first.success and len(first.committed) == 1, first.error
        go.write_text("go")
        eventually(lambda: any(path.endswith("done") for path in agent.sandbox.changed()))
        done = agent.run_tool("_execute_nothing")
    if asked == NOTHING:
        kept = set(map(os.path.basename, done.committed))
        assert done.success and kept >= {"made", "done"}, "control: what tries nothing is kept"
    else:
        assert not done.success and done.rolled_back and done.violations and not done.committed
        assert sorted(os.listdir(folder / "work")) == ["first", "private"]


def test_an_agent_that_commits_what_was_tried_in_the_last_moment_keeps_nothing(
    folder: Path, go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the result of a call and its commit."""
    config = SafeConfig(sandbox=_config(folder), commit=Commit.EACH_CALL, max_risk=1.0)
    with SafeDeepAgent([_execute_and_leave], safe_config=config) as agent:
        keep = agent.sandbox.keep

        def late() -> tuple[str, ...]:
            go.write_text("go")
            eventually(lambda: any(path.endswith("done") for path in agent.sandbox.changed()))
            return keep()

        monkeypatch.setattr(agent.sandbox, "keep", late)
        done = agent.run_tool("_execute_and_leave", go=str(go), asked=SECRET)
    assert not done.success and done.rolled_back and done.violations == ("stat private/key",)
    assert os.listdir(folder / "work") == ["private"]


def test_an_agent_that_commits_at_the_end_refuses(folder: Path, go: Path) -> None:
    config = SafeConfig(sandbox=_config(folder), commit=Commit.AT_END, max_risk=1.0)
    agent = SafeDeepAgent([_execute_and_leave], safe_config=config)
    agent.run_tool("_execute_and_leave", go=str(go), asked=SECRET)
    go.write_text("go")
    eventually(lambda: any(path.endswith("done") for path in agent.sandbox.changed()))
    with pytest.raises(LateAttemptError, match="private/key"):
        agent.close()
    assert os.listdir(folder / "work") == ["private"]
