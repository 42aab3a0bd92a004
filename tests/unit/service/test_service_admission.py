"""Places and the line: who is served, who waits, who is sent away. Without a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ringfence.errors import SandboxError
from ringfence.service.admission import Admission, Full
from ringfence.service.tokens import Tenant


def tenant(name: str = "a", **quotas: int) -> Tenant:
    return Tenant(name=name, scopes=frozenset(), **quotas)  # type: ignore[arg-type]


def admission(available: Callable[[], int] = lambda: 10**12, **given: int) -> Admission:
    usual = {"sandboxes": 2, "memory_bytes": 100, "spare_bytes": 10, "queue": 3}
    return Admission(**{**usual, **given}, available=available)


def lived(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


def test_who_comes_first_is_served_first() -> None:
    async def work() -> None:
        room = admission()
        places = [room.join(tenant(), 10) for _ in range(4)]
        assert [place.turn.done() for place in places] == [True, True, False, False]
        room.leave(places[0])
        assert [place.turn.done() for place in places] == [True, True, True, False]
        room.leave(places[0])  # twice is harmless
        assert room.running == 2 and room.reserved_bytes == 20
        room.leave(places[3])  # gives up
        assert places[3].turn.cancelled() and not room.waiting

    lived(work)


def test_a_line_that_is_full_says_when_to_come_again() -> None:
    async def work() -> None:
        room = admission(queue=1)
        for _ in range(3):
            room.join(tenant(), 10)
        with pytest.raises(Full) as caught:
            room.join(tenant(), 10)
        assert caught.value.retry_after_s >= 1

    lived(work)


def test_memory_is_a_place_too_and_a_large_one_is_not_overtaken() -> None:
    async def work() -> None:
        room = admission(sandboxes=10)
        first, large, small = room.join(tenant(), 60), room.join(tenant(), 90), room.join(tenant("b"), 10)
        assert not large.turn.done() and not small.turn.done()
        room.leave(first)
        assert large.turn.done() and small.turn.done() and room.reserved_bytes == 100

    lived(work)


def test_a_tenant_at_its_quota_is_passed_over() -> None:
    async def work() -> None:
        room = admission(sandboxes=2)
        few = tenant("few", sandboxes=1)
        held = [room.join(few, 1), room.join(few, 1)]
        assert not held[1].turn.done()
        assert room.join(tenant("b"), 1).turn.done() and room.running == 2
        assert not held[1].turn.done()

    lived(work)


def test_nobody_is_let_in_while_the_machine_has_no_memory_but_for_one() -> None:
    async def work() -> None:
        left = [5]
        room = admission(available=lambda: left[0], sandboxes=5)
        first, second = room.join(tenant(), 1), room.join(tenant(), 1)
        assert first.turn.done() and not second.turn.done()
        left[0] = 50
        await asyncio.wait_for(second.turn, 20)  # it is looked at again though nobody leaves

    lived(work)


def test_what_never_fits_is_said_at_once() -> None:
    async def work() -> None:
        with pytest.raises(SandboxError, match="never fits"):
            admission().join(tenant(), 101)
        with pytest.raises(SandboxError, match="never fits"):
            admission().join(tenant(memory_bytes=5), 6)

    lived(work)


def test_one_tenant_does_not_take_the_whole_line() -> None:
    async def work() -> None:
        room = admission(sandboxes=2, queue=8)
        room.join(tenant("a"), 1)
        room.join(tenant("b"), 1)
        for _ in range(4):
            room.join(tenant("a"), 1)
        with pytest.raises(Full):
            room.join(tenant("a"), 1)
        assert not room.join(tenant("b"), 1).turn.done()  # it may wait

    lived(work)


def test_runs_of_a_minute_are_counted() -> None:
    async def work() -> None:
        room = admission()
        for _ in range(2):
            room.count_run(tenant(runs_per_minute=2))
        with pytest.raises(Full) as caught:
            room.count_run(tenant(runs_per_minute=2))
        assert 1 <= caught.value.retry_after_s <= 60
        room.count_run(tenant("b", runs_per_minute=2))

    lived(work)
