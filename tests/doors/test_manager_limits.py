"""A manager at its default level tells which limit an execution failed of, and takes it back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence import ResourceLimits, SandboxConfig, SandboxManager
from ringfence.backends import groups

pytestmark = [pytest.mark.privileges, pytest.mark.slow, pytest.mark.unmeasured]


@pytest.fixture(params=(True, False), ids=("with a group", "without"))
def manager(request, tmp_path: Path, monkeypatch) -> Iterator[SandboxManager]:
    """An ordinary user has no group here either way."""
    if not request.param:
        monkeypatch.setattr(groups, "make", lambda policy, **_: None)
    with SandboxManager(sandbox_root=tmp_path / "sandboxes") as made:
        yield made


def block() -> int:
    with open("made", "w") as file:
        file.write("1")
    return len(bytearray(b"1") * (400 << 20))


def many() -> int:
    kept = []
    while True:
        kept.append(bytes(1000))


def files() -> int:
    kept = []
    while True:
        kept.append(open("/dev/null"))  # noqa: SIM115


@pytest.mark.parametrize(("function", "told"), (
    (block, ("MEM_LIMIT", 137, ("limit memory reached",))),
    (many, ("MEM_LIMIT", 137, ("limit memory reached",))),
    (files, ("NOFILE_LIMIT", 1, ("limit nofile reached",))),
))  # fmt: skip
def test_a_limit_is_a_violation_at_the_default_level(manager: SandboxManager, tmp_path: Path, function, told) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    limits = ResourceLimits(max_memory_mb=128, max_execution_time=60, max_file_operations=100_000)
    with manager.sandbox(SandboxConfig(allowed_paths=[repo], resource_limits=limits)) as context:
        for _ in range(2):
            done = manager.execute_in_sandbox(context, function, {})
            assert (done.status, done.rc, done.violations) == told, (done.error, done.reason)
            assert not done.success and done.rolled_back and not (repo / "made").exists()
        assert manager.execute_in_sandbox(context, lambda: 1, {}).value == 1
