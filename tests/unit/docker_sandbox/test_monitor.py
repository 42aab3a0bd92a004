"""The monitor: the specification's methods, what engines say, and what nonsense of theirs comes to."""

from __future__ import annotations

import pytest

from ringfence.docker_sandbox.monitor import ContainerMonitor, memory_bytes
from ringfence.metrics import recorder


def active() -> float:
    return recorder.value("active_containers", isolation="container")


def test_the_methods_of_the_specification_move_the_metrics() -> None:
    recorder.enable()
    before, monitor = active(), ContainerMonitor()
    monitor.record_container_created("a")
    monitor.record_container_created("a")
    assert active() == before + 1
    stats = {"memory_stats": {"usage": 3 << 20}, "cpu_stats": {"cpu_usage": {"total_usage": 10**9}}}
    used = monitor.record_resource_usage("a", stats)
    assert used.memory_bytes == 3 << 20 and used.cpu_s == 1.0 and monitor.used("a") == used
    assert recorder.value("container_memory_usage_bytes") == 3 << 20
    assert recorder.value("container_cpu_usage_percent") > 0
    monitor.record_container_cleanup("a", True)
    monitor.record_container_cleanup("a", True)
    assert active() == before and monitor.orphans == frozenset()


def test_more_than_three_orphans_raise_the_alert_until_they_are_gone() -> None:
    recorder.enable()
    monitor = ContainerMonitor()
    for name in "abcd":
        assert recorder.value("orphaned_containers_alert") == 0
        monitor.record_container_cleanup(name, False)
    assert (recorder.value("orphaned_containers"), recorder.value("orphaned_containers_alert")) == (4, 1)
    monitor.record_container_cleanup("a", True)
    assert (recorder.value("orphaned_containers"), recorder.value("orphaned_containers_alert")) == (3, 0)


def test_the_largest_memory_is_kept_and_processor_time_counts_from_the_strategy_on() -> None:
    monitor = ContainerMonitor()
    monitor.record_container_created("a")
    monitor.record_run_begins("a", {"cpu_stats": {"cpu_usage": {"total_usage": 5 * 10**9}}})
    monitor.record_resource_usage("a", {"memory_stats": {"usage": 9}})
    used = monitor.record_resource_usage("a", {"memory_stats": {"usage": 4},
                                               "cpu_stats": {"cpu_usage": {"total_usage": 6 * 10**9}}})  # fmt: skip
    assert (used.memory_bytes, used.cpu_s) == (9, 1.0)


@pytest.mark.parametrize("stats", [
    {}, {"memory_stats": None}, {"memory_stats": {"usage": "much"}}, {"memory_stats": {"usage": True}},
    {"memory_stats": {"usage": -5}}, {"memory_stats": []},
    {"memory_stats": {"usage": 1, "stats": {"inactive_file": 9}}},
])  # fmt: skip
def test_nonsense_of_an_engine_is_zero(stats: dict[str, object]) -> None:
    assert memory_bytes(stats) == 0


@pytest.mark.parametrize("name", ["total_inactive_file", "inactive_file"])
def test_pages_of_files_are_no_use_of_memory(name: str) -> None:
    assert memory_bytes({"memory_stats": {"usage": 10, "stats": {name: 4}}}) == 6
