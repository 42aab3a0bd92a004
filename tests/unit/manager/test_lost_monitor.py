"""Without its monitor a sandbox has no limit of processor and network: nothing runs in it then, and it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S

from ringfence import IsolationLevel, ResourceLimits, SandboxConfig, SandboxContext, SandboxManager, SupervisionError
from ringfence.monitor.meter import Meter

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]

LIMITS = ResourceLimits(max_execution_time=600, max_file_operations=10**6)
LONG = ["sh", "-c", "echo 1 > made; echo begun; sleep 500"]


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[SandboxManager]:
    with SandboxManager(sandbox_root=tmp_path / "sandboxes") as made:
        yield made


@pytest.fixture
def context(manager: SandboxManager, tmp_path: Path) -> SandboxContext:
    (tmp_path / "repo").mkdir()
    level = IsolationLevel.PROCESS
    return manager.create_sandbox(
        SandboxConfig(isolation_level=level, allowed_paths=[tmp_path / "repo"], resource_limits=LIMITS)
    )


def _fail(*_: object, **__: object) -> None:
    raise RuntimeError("nothing can be read")


def _close(manager: SandboxManager, _: pytest.MonkeyPatch) -> None:
    manager.monitor.close()


def _blind(_: SandboxManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Meter, "measure", _fail)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the last look:RuntimeWarning")
@pytest.mark.parametrize("lose", (_close, _blind))
def test_an_execution_is_ended_and_undone_if_its_monitor_is_lost(
    manager: SandboxManager, context: SandboxContext, monkeypatch: pytest.MonkeyPatch,
    lose: Callable[[SandboxManager, pytest.MonkeyPatch], None],
) -> None:  # fmt: skip
    begun = threading.Event()

    def lost() -> None:
        assert begun.wait(PATIENCE_S)
        lose(manager, monkeypatch)

    thread = threading.Thread(target=lost, daemon=True)
    thread.start()
    with pytest.raises(SupervisionError, match=f"monitor of {context.sandbox_id} was lost") as told:
        manager.run(context, LONG, on_output=lambda *_: begun.set())
    thread.join()
    assert told.value.hint.startswith("rolled back to before it") and list(manager.changes(context)) == []
    monkeypatch.undo()
    assert manager.run(context, ["true"]).success and manager.monitor.monitored() == [context.sandbox_id]


def test_an_execution_is_refused_and_what_runs_is_ended_if_nobody_monitors_the_box(
    manager: SandboxManager, context: SandboxContext
) -> None:
    left = manager.start(context, ["sleep", "500"])
    manager.monitor.close()
    with pytest.raises(SupervisionError, match=r"was lost, .*what ran was ended"):
        manager.run(context, ["sh", "-c", "echo 1 > made"])
    assert not left.wait(PATIENCE_S).ok and list(manager.changes(context)) == []
    assert manager.run(context, ["true"]).success and manager.monitor.monitored() == [context.sandbox_id]
