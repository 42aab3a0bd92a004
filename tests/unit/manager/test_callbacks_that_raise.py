"""What a callback of the monitor raises leaves no box and no lock behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence import IsolationLevel, ResourceLimits, SandboxConfig, SandboxManager
from ringfence.monitor.resource_monitor import ResourceMonitor
from ringfence.monitor.source import Source

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]


class Callback:
    """Raises once it is told to."""

    raises = False

    def __call__(self, sandbox_id: str, *_: object) -> None:
        if self.raises:
            raise ValueError(f"about {sandbox_id}")


def test_a_box_is_closed_and_a_sandbox_removed_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    callback = Callback()
    config = SandboxConfig(
        isolation_level=IsolationLevel.PROCESS, allowed_paths=[tmp_path / "repo"],
        resource_limits=ResourceLimits(max_execution_time=60, max_file_operations=10**6),
    )  # fmt: skip
    with SandboxManager(sandbox_root=tmp_path / "sandboxes") as manager:
        manager.monitor = ResourceMonitor(interval_s=0.05, on_sample=callback)
        context = manager.create_sandbox(config)
        assert manager.run(context, ["sh", "-c", "echo 1 > made"]).success
        left = manager.start(context, ["sleep", "500"])
        callback.raises = True
        with pytest.warns(RuntimeWarning, match="about sandbox_"):
            assert manager.rollback(context).success
        assert not left.wait(60).ok and list(manager.changes(context)) == []
        callback.raises = False
        assert manager.run(context, ["true"]).success
        callback.raises = True
        with pytest.warns(RuntimeWarning, match="about sandbox_"):
            manager.destroy_sandbox(context.sandbox_id)
        assert manager.list_active_sandboxes() == manager.stored_sandboxes() == []


def test_a_monitor_stops_all_and_raises_then() -> None:
    callback = Callback()
    monitor = ResourceMonitor(interval_s=0.05, on_sample=callback)
    for name in ("one", "two"):
        monitor.start_monitoring(name, ResourceLimits(), Source())
    callback.raises = True
    with pytest.raises(ValueError, match="about one"):
        monitor.close()
    assert monitor.monitored() == []
