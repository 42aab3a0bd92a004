"""``ResourceLimits`` has the specification's fields and defaults, and refuses what is no limit."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, asdict

import pytest

from ringfence.errors import PolicyError
from ringfence.monitor.limits import ResourceLimits, ResourceUsage

pytestmark = pytest.mark.unmeasured

DEFAULTS = {
    "max_cpu_percent": 80.0,
    "max_memory_mb": 512,
    "max_disk_mb": 1024,
    "max_network_kb": 10240,
    "max_execution_time": 300,
    "max_file_operations": 1000,
}


def test_the_defaults_are_those_of_the_specification() -> None:
    assert asdict(ResourceLimits()) == DEFAULTS


@pytest.mark.parametrize("name", DEFAULTS)
@pytest.mark.parametrize("value", [-1, True, float("nan"), float("inf"), "512", None, 10**400, -(10**5000)],
                         ids=lambda value: "digits" if isinstance(value, int) else str(value))  # fmt: skip
def test_what_is_no_limit_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(PolicyError) as caught:
        ResourceLimits(**{name: value})  # type: ignore[arg-type]
    assert caught.value.field == name


def test_a_count_is_a_whole_number() -> None:
    assert ResourceLimits(max_cpu_percent=12.5).max_cpu_percent == 12.5
    with pytest.raises(PolicyError, match="max_memory_mb"):
        ResourceLimits(max_memory_mb=1.5)  # type: ignore[arg-type]


def test_every_mistake_is_named_at_once() -> None:
    with pytest.raises(PolicyError) as caught:
        ResourceLimits(max_cpu_percent=-1, max_disk_mb=-2)
    assert [each.field for each in (caught.value, *caught.value.more)] == ["max_cpu_percent", "max_disk_mb"]


def test_none_of_it_is_a_limit_too() -> None:
    assert ResourceLimits(max_network_kb=0).max_network_kb == 0


def test_limits_and_usage_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        ResourceLimits().max_disk_mb = 3  # type: ignore[misc]
    usage = ResourceUsage(1.0, 2.0, 3.0, 4.0, 5.0, 6)
    assert usage.violations == []
    with pytest.raises(FrozenInstanceError):
        usage.memory_mb = 3  # type: ignore[misc]
