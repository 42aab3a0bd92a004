"""Moulds: a few stand at a time, and whoever still wants one that had to go gets another."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ringfence import Job, SandboxPolicy, SetupError, run
from ringfence.posix import moulds, spawner

pytestmark = [
    pytest.mark.system,
    pytest.mark.privileges,
    pytest.mark.skipif(sys.platform != "linux", reason="there are no mount namespaces elsewhere"),
]


@pytest.fixture
def policies(tmp_path: Path) -> list[SandboxPolicy]:
    """More kinds of sandbox than moulds may stand."""
    folders = [tmp_path / str(number) for number in range(moulds.MOST + 3)]
    for folder in folders:
        folder.mkdir()
    return [SandboxPolicy(isolation="strict", readable_paths=(str(folder),)) for folder in folders]


def test_more_kinds_of_sandbox_at_once_than_moulds_may_stand(policies: list[SandboxPolicy]) -> None:
    with ThreadPoolExecutor(len(policies)) as threads:
        outcomes = list(threads.map(lambda policy: run(Job(argv=("echo", "here")), policy), policies * 4))
    assert {(outcome.rc, outcome.stdout) for outcome in outcomes} == {(0, b"here\n")}
    assert len(moulds._standing) <= moulds.MOST


def test_one_that_can_not_be_made_leaves_no_descriptor_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(kind: bytes, descriptors: list[int]) -> None:
        raise SetupError("reach the spawner", "nobody is there")

    monkeypatch.setattr(spawner, "send", nobody)
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(SetupError, match="nobody is there"):
        moulds.Mould({})
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_one_that_had_to_go_takes_nothing_any_more(policies: list[SandboxPolicy]) -> None:
    """Also not through a number that is somebody else's by then."""
    run(["true"], policies[0])
    mould = next(reversed(moulds._standing.values()))
    door = mould.door
    moulds.forget(mould)
    reader, writer = os.pipe()
    os.dup2(writer, door)
    try:
        with pytest.raises(OSError, match="closed"):
            mould.fork_leader([reader] * 4)
    finally:
        for descriptor in {reader, writer, door}:
            os.close(descriptor)
