"""Zygotes: a few stand at a time, and whoever still wants one that had to go gets another."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ringfence import Job, SandboxPolicy, SetupError, run
from ringfence.roles import spawner, zygote_client

pytestmark = [
    pytest.mark.system,
    pytest.mark.privileges,
    pytest.mark.skipif(sys.platform != "linux", reason="there are no mount namespaces elsewhere"),
]


@pytest.fixture
def policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[SandboxPolicy]:
    """More kinds of sandbox than zygotes may stand. What is ours is hidden from all of them: with places of its own a
    test has the same kinds from beginning to end, whatever the tests beside it make."""
    for variable in ("TMPDIR", "XDG_STATE_HOME"):
        place = tmp_path / variable.lower()
        place.mkdir()
        monkeypatch.setenv(variable, str(place))
    folders = [tmp_path / str(number) for number in range(zygote_client.MOST + zygote_client.of_one_template() + 2)]
    for folder in folders:
        folder.mkdir()
    return [SandboxPolicy(isolation="strict", readable_paths=(str(folder),)) for folder in folders]


def test_more_kinds_of_sandbox_at_once_than_zygotes_may_stand(policies: list[SandboxPolicy]) -> None:
    with ThreadPoolExecutor(len(policies)) as threads:
        outcomes = list(threads.map(lambda policy: run(Job(argv=("echo", "here")), policy), policies * 4))
    assert {(outcome.rc, outcome.stdout) for outcome in outcomes} == {(0, b"here\n")}
    assert len(zygote_client._standing) < zygote_client.MOST + zygote_client.of_one_template()


def test_while_one_is_being_made_the_others_are_used(
    policies: list[SandboxPolicy], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(["true"], policies[0])
    inside, go_on, made = threading.Event(), threading.Event(), zygote_client._made

    def slowly(request: object, begun: zygote_client.ZygoteClient | None) -> zygote_client.ZygoteClient:
        if policies[1].readable_paths[0] in repr(request):  # that of the other may be too old where somebody mounts
            inside.set()
            assert go_on.wait(60)
        return made(request, begun)

    with monkeypatch.context() as patch, ThreadPoolExecutor(3) as threads:
        patch.setattr(zygote_client, "_made", slowly)
        waiting = [threads.submit(run, ["true"], policies[1]) for _ in range(2)]
        assert inside.wait(60)
        assert threads.submit(run, ["true"], policies[0]).result(60).ok
        go_on.set()
        assert all(each.result(60).ok for each in waiting)
    assert not zygote_client._making


@pytest.mark.parametrize(("cores", "expected"), [(1, 1), (2, 1), (4, 2), (16, 8), (500, 16)])
def test_there_are_more_where_there_are_more_processors(
    cores: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert zygote_client.of_one_template() == expected


def test_one_that_can_not_be_made_leaves_no_descriptor_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(kind: bytes, descriptors: list[int]) -> None:
        raise SetupError("reach the spawner", "nobody is there")

    monkeypatch.setattr(spawner, "send", nobody)
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(SetupError, match="nobody is there"):
        zygote_client.ZygoteClient({})
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_one_that_had_to_go_takes_nothing_any_more(policies: list[SandboxPolicy]) -> None:
    """Also not through a number that is somebody else's by then."""
    run(["true"], policies[0])
    zygote = next(reversed(zygote_client._standing.values()))
    door = zygote.door
    zygote_client.forget(zygote)
    reader, writer = os.pipe()
    os.dup2(writer, door)
    try:
        with pytest.raises(OSError, match="closed"):
            zygote.fork_leader([reader] * 4)
    finally:
        for descriptor in {reader, writer, door}:
            os.close(descriptor)


def test_one_that_was_begun_is_the_one_that_is_used(
    policies: list[SandboxPolicy], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[zygote_client.ZygoteClient] = []
    client = zygote_client.ZygoteClient

    class Counted(client):
        def __init__(self, request: object) -> None:
            super().__init__(request)
            made.append(self)

    monkeypatch.setattr(zygote_client, "ZygoteClient", Counted)
    assert run(["true"], policies[0]).ok
    assert len(made) == 1 and made[0] in zygote_client._standing.values() and not zygote_client._begun


def test_one_that_was_begun_and_lost_is_made_anew(policies: list[SandboxPolicy]) -> None:
    begin = zygote_client.begin

    def lost(key: bytes, request: object) -> None:
        begin(key, request)
        begun = zygote_client._begun[key]
        os.close(begun._reports)
        begun._reports = os.open(os.devnull, os.O_RDONLY)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zygote_client, "begin", lost)
        assert run(["true"], policies[1]).ok


def test_one_that_nobody_came_for_is_withdrawn(policies: list[SandboxPolicy], monkeypatch: pytest.MonkeyPatch) -> None:
    from ringfence.backends.layers import Layers

    def full(self: Layers) -> None:
        assert zygote_client._begun
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Layers, "open", full)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="No space"):
        run(["true"], policies[2])
    assert not zygote_client._begun and len(os.listdir("/proc/self/fd")) <= before
