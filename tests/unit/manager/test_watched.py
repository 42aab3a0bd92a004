"""One execution, as the monitor sees it: only its own operations count, also where a look has failed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ringfence.errors import SupervisionError
from ringfence.manager.watched import Watched
from ringfence.model.outcome import Outcome, Status, Usage
from ringfence.monitor.limits import ResourceLimits, ResourceUsage
from ringfence.monitor.violations import Violation


class Monitor:
    """Answers with these numbers of operations; None: the look fails."""

    def __init__(self, *counts: int | None) -> None:
        self._counts = list(counts)

    def sample(self, _: str, *, standing: bool) -> None:
        if self._counts[0] is None:
            self._counts.pop(0)
            raise SupervisionError("could not be looked at")

    def violations(self, _: str, *, standing: bool) -> list[Violation]:
        return []

    def get_usage(self, _: str, *, standing: bool) -> ResourceUsage:
        count = self._counts.pop(0)
        assert count is not None
        return ResourceUsage(0.0, 0.0, 0.0, 0.0, 0.0, count)


def watched(*counts: int | None, counted: bool = False) -> Watched:
    context: Any = SimpleNamespace(sandbox_id="a", resource_limits=ResourceLimits(max_file_operations=100))
    monitor: Any = Monitor(*counts)
    return Watched(monitor, context, counted=counted)


def test_what_was_done_before_is_not_counted() -> None:
    execution = watched(5000, 5100, 5101)
    assert not execution.is_over() and execution.violations == []
    assert execution.is_over(whole=True) and list(map(str, execution.violations)) == ["file operations: 101, limit 100"]


def test_nor_is_it_where_the_first_look_fails() -> None:
    execution = watched(None, 5000, 5100, None, 5101)
    assert not execution.is_over() and not execution.is_over() and not execution.is_over(whole=True)
    assert execution.is_over(whole=True)


def test_where_they_are_counted_only_what_was_told_is_this_ones() -> None:
    """What the monitor sees beside it may be another execution's."""
    below, above = watched(5000, 9000, 9000, counted=True), watched(5000, 5000, 5000, counted=True)
    assert not below.is_over() and not below.is_over(whole=True, told=100)
    assert not above.is_over() and above.is_over(whole=True, told=101)
    assert list(map(str, above.violations)) == ["file operations: 101, limit 100"]


def test_what_an_execution_used_is_its_own() -> None:
    usage = Usage(wall_s=4.0, cpu_user_s=2.0, cpu_system_s=1.0, peak_memory_bytes=200 << 20, written_bytes=21 << 20)
    execution = watched(5000, 5050)
    assert not execution.is_over()
    ended = Outcome(status=Status.MEM_LIMIT, rc=137, reason="", usage=usage, limits_hit=("memory", "output"))
    assert execution.used(ended) == ResourceUsage(75.0, 200.0, 21.0, 0.0, 4.0, 50, ["limit memory reached"])
