"""Which place a zygote gives to whom it forks: what is reused there is used by one at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import count

import pytest

from ringfence.kernel.mount import namespaces
from ringfence.roles.fork_server import ForkServer
from ringfence.roles.zygote import Zygote
from ringfence.steps.state import SETUP


@pytest.fixture(autouse=True)
def _setup(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is forked or made; descriptors are numbers from 1000 on."""
    leaders, made = count(1), count(1000)

    def fork(self: ForkServer, descriptors: list[int], leave_open: Sequence[int] = ()) -> int:
        leader = next(leaders)
        self.leaders[leader] = 0
        given.append((SETUP.network, tuple(leave_open)))
        return leader

    monkeypatch.setattr(ForkServer, "_fork_leader", fork)
    monkeypatch.setattr(ForkServer, "_reap", lambda self: None)
    monkeypatch.setattr(namespaces, "network_namespace", lambda: next(made))
    given.clear()
    yield
    SETUP.network, SETUP.identity = -1, 0
    SETUP.idmaps.clear()


given: list[tuple[int, tuple[int, ...]]] = []


def _networks() -> list[int]:
    return [network for network, _ in given]


def _end(zygote: Zygote, *leaders: int) -> None:
    for leader in leaders:
        del zygote.leaders[leader]
    zygote._reap()


@pytest.mark.parametrize("user", [0, 1000])
def test_two_that_live_at_once_never_have_the_same_network(user: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    zygote = Zygote(-1, [], reuses_networks=True)
    _end(zygote, zygote._fork_leader([]), zygote._fork_leader([]))
    assert _networks() == [-1, -1], "who comes first makes one for itself: perhaps nobody comes after it"
    first, _ = zygote._fork_leader([]), zygote._fork_leader([])
    _end(zygote, first)
    zygote._fork_leader([])
    zygote._fork_leader([])
    assert _networks()[2:] == [1000, 1001, 1000, -1], "that of the one that has ended, then a new place"
    assert all(network < 0 or network in left_open for network, left_open in given)


def test_where_networks_are_not_reused_none_is_given() -> None:
    zygote = Zygote(-1, [], reuses_networks=False)
    zygote._fork_leader([])
    assert given == [(-1, ())]


def test_where_none_can_be_made_and_where_all_places_are_taken_the_leader_makes_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    zygote = Zygote(-1, [], reuses_networks=True)
    places = namespaces.IDS_PER_PROCESS - 1
    _end(zygote, *(zygote._fork_leader([]) for _ in range(places)))
    leaders = [zygote._fork_leader([]) for _ in range(places + 1)]
    assert len({*_networks()[places:]}) == places + 1 and _networks()[-1] == -1
    _end(zygote, *leaders)

    def refuse() -> int:
        raise OSError

    monkeypatch.setattr(namespaces, "network_namespace", refuse)
    other = Zygote(-1, [], reuses_networks=True)
    _end(other, other._fork_leader([]))
    other._fork_leader([])
    assert _networks()[-1] == -1
