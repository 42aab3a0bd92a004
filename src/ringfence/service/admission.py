"""Decides who gets a sandbox now, who waits, and who is told to come again.

A place is one sandbox and the memory that its policy allows it. Waiting requests are served in order. One whose tenant
is at its quota is skipped; one for which the machine has no room is not: else a large one would never get its turn.
Used by the event loop alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ringfence.errors import SandboxError
from ringfence.model.record import record
from ringfence.service.answer import Refused
from ringfence.service.tokens import Tenant

_MINUTE_S = 60.0
_FRESH_S = 0.25
_LONGEST_S = 60.0
_MOST_BODY_BYTES = 256 << 20
_MOST_ANSWER_BYTES = 256 << 20


class Full(SandboxError):
    """There is no room; ``retry_after_s`` says when to try again."""

    def __init__(self, message: str, retry_after_s: float, reason: str) -> None:
        super().__init__(message, hint=f"try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s
        self.reason_word = reason


@record(eq=False)
class ReservedRoom:
    """One sandbox's room, from the time it is asked for until it is given back."""

    tenant: Tenant
    memory_bytes: int
    turn: asyncio.Future[None]
    """Done when the place is there."""


def available_memory() -> int:
    """The memory that programs could have now, by the kernel's estimate; a lot if it gives none."""
    try:
        with open("/proc/meminfo", "rb") as file:
            for line in file:
                if line.startswith(b"MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 2**62


class Admission:
    """The room of one machine."""

    def __init__(
        self, *, sandboxes: int, memory_bytes: int, spare_bytes: int, queue: int,
        available: Callable[[], int] = available_memory,
    ) -> None:  # fmt: skip
        self.sandboxes, self.memory_bytes, self.queue = sandboxes, memory_bytes, queue
        self._spare_bytes = spare_bytes
        self._available = available
        self._seen = (0.0, 2**62)
        self.waiting: deque[ReservedRoom] = deque()
        self._held: set[ReservedRoom] = set()
        self.reserved_bytes = 0
        self._of: dict[str, list[int]] = {}
        """Name of a tenant → sandboxes and bytes that it has."""
        self._begun: dict[str, deque[float]] = {}
        self._usual_s = 0.05
        self._poll: asyncio.TimerHandle | None = None

    @property
    def running(self) -> int:
        return len(self._held)

    def used_by(self, tenant: Tenant) -> tuple[int, int]:
        sandboxes, memory = self._of.get(tenant.name, (0, 0))
        return sandboxes, memory

    # ---- coming and going

    def join(self, tenant: Tenant, memory_bytes: int) -> ReservedRoom:
        """Get a place, now or when its turn comes; Full if the queue is full, or nothing of that size ever fits."""
        self._refuse_too_large(tenant, memory_bytes)
        place = ReservedRoom(tenant=tenant, memory_bytes=memory_bytes, turn=asyncio.get_running_loop().create_future())
        if not self._is_anyones_turn() and self._has_room(place) and not self._is_at_quota(place):
            self._serve(place)
            return place
        theirs = sum(each.tenant.name == tenant.name for each in self.waiting)
        shared = bool(tenant.digest) or len(self._of) > 1
        if len(self.waiting) >= self.queue or (shared and theirs >= max(1, self.queue // 2)):
            raise Full(f"the queue is full ({len(self.waiting)} wait)", self._wait_s(), "queue")
        self.waiting.append(place)
        self._serve_waiting()  # those before it may all belong to tenants at their quota
        return place

    def leave(self, place: ReservedRoom, used_s: float | None = None) -> None:
        """Give it back, or give up waiting. Twice is harmless."""
        if place in self._held:
            self._held.discard(place)
            self.reserved_bytes -= place.memory_bytes
            mine = self._of[place.tenant.name]
            mine[0] -= 1
            mine[1] -= place.memory_bytes
            if mine == [0, 0]:
                del self._of[place.tenant.name]
            if used_s is not None:
                self._usual_s += (used_s - self._usual_s) / 16
        elif place in self.waiting:
            self.waiting.remove(place)
            place.turn.cancel()
        self._serve_waiting()

    def refuse_waiting(self, why: Exception) -> None:
        """Nobody who still waits gets a place."""
        while self.waiting:
            turn = self.waiting.popleft().turn
            if not turn.done():
                turn.set_exception(why)

    def count_run(self, tenant: Tenant) -> None:
        """Count one more run of this tenant; Full if it has used up its runs of this minute."""
        begun, now = self._begun.setdefault(tenant.name, deque()), time.monotonic()
        while begun and begun[0] <= now - _MINUTE_S:
            begun.popleft()
        if len(begun) >= tenant.runs_per_minute:
            raise Full(f"{tenant.name} may start {tenant.runs_per_minute} runs per minute",
                       max(1.0, begun[0] + _MINUTE_S - now), "runs_per_minute")  # fmt: skip
        if tenant.runs_per_minute < 2**31:
            begun.append(now)

    # ---- room

    def _refuse_too_large(self, tenant: Tenant, memory_bytes: int) -> None:
        most = min(self.memory_bytes, tenant.memory_bytes)
        if memory_bytes > most:
            raise SandboxError(f"a sandbox of {memory_bytes:,} bytes never fits into {most:,}",
                               hint="tighten mem_bytes of the policy")  # fmt: skip

    def _is_anyones_turn(self) -> bool:
        """Whether somebody waits for room on the machine; tenants at their quota hold nobody up."""
        return any(not self._is_at_quota(each) for each in self.waiting)

    def _is_at_quota(self, place: ReservedRoom) -> bool:
        sandboxes, memory = self.used_by(place.tenant)
        too_much = memory + place.memory_bytes > place.tenant.memory_bytes
        return sandboxes >= place.tenant.sandboxes or too_much

    def _has_room(self, place: ReservedRoom) -> bool:
        if len(self._held) >= self.sandboxes or self.reserved_bytes + place.memory_bytes > self.memory_bytes:
            return False
        # One is always let in: a machine that is busy with other things must not block for ever.
        return not self._held or self._left() >= self._spare_bytes

    def _left(self) -> int:
        now = time.monotonic()
        if now - self._seen[0] > _FRESH_S:
            self._seen = now, self._available()
        return self._seen[1]

    def _serve(self, place: ReservedRoom) -> None:
        self._held.add(place)
        self.reserved_bytes += place.memory_bytes
        mine = self._of.setdefault(place.tenant.name, [0, 0])
        mine[0] += 1
        mine[1] += place.memory_bytes
        if not place.turn.done():
            place.turn.set_result(None)

    def _serve_waiting(self) -> None:
        for place in list(self.waiting):
            if self._is_at_quota(place):
                continue
            if not self._has_room(place):
                break
            self.waiting.remove(place)
            self._serve(place)
        self._look_again()

    def _look_again(self) -> None:
        """Memory may come back without anybody leaving here."""
        if self.waiting and self._poll is None:
            self._poll = asyncio.get_running_loop().call_later(_FRESH_S * 2, self._polled)

    def _polled(self) -> None:
        self._poll = None
        self._serve_waiting()

    def _wait_s(self) -> float:
        """The time until those who wait now have been served, estimated from recent runs."""
        reckoned = self._usual_s * (len(self.waiting) + 1) / max(1, self.sandboxes)
        return min(_LONGEST_S, max(1.0, reckoned))


class Bodies:
    """Limits the request bodies that one tenant has in memory at a time, from their first byte to the answer."""

    _told = "your requests already hold {now} bytes"

    def __init__(self, most_bytes: int = _MOST_BODY_BYTES) -> None:
        self._most = most_bytes
        self._held: dict[str, int] = {}

    @contextmanager
    def held(self, tenant: str, size: int) -> Iterator[None]:
        """Count this many bytes while entered; a single body is never too much."""
        self.take(tenant, size)
        try:
            yield
        finally:
            self.give_back(tenant, size)

    def take(self, tenant: str, size: int) -> None:
        now = self._held.get(tenant, 0)
        if now and now + size > self._most:
            raise self._too_much(now)
        self.add(tenant, size)

    def add(self, tenant: str, size: int) -> None:
        """The same, whatever it comes to."""
        self._held[tenant] = self._held.get(tenant, 0) + size

    def refuse_if_full(self, tenant: str) -> None:
        """Before work whose answer is never refused."""
        now = self._held.get(tenant, 0)
        if now >= self._most:
            raise self._too_much(now)

    def _too_much(self, now: int) -> Refused:
        return Refused(429, self._told.format(now=now), headers={"retry-after": "1"})

    def give_back(self, tenant: str, size: int) -> None:
        left = self._held.pop(tenant, 0) - size
        if left > 0:
            self._held[tenant] = left


class Unfinished:
    """Limits the requests of one tenant that have no whole answer: also those whose body does not come, and those that
    go on although their connection is gone. Each takes a connection or a place of the server, so a quarter of them is
    left to others; and who waits for runs, which may take half, can still end them."""

    def __init__(self, connections: int) -> None:
        self._most = connections - connections // 4
        self.now: dict[str, int] = {}

    @contextmanager
    def counted(self, tenant: str, *, is_let_in: bool = False) -> Iterator[None]:
        """Count one while entered. ``is_let_in``: it has been counted before, and goes on."""
        now = self.now.get(tenant, 0)
        if now >= self._most and not is_let_in:
            raise Refused(429, f"you have {now} unfinished requests", headers={"retry-after": "1"})
        self.now[tenant] = now + 1
        try:
            yield
        finally:
            self.now[tenant] -= 1
            if not self.now[tenant]:
                del self.now[tenant]


class Unread(Bodies):
    """The same of answers that a tenant has not read yet."""

    _told = "your unread answers hold {now} bytes: read them first"

    def __init__(self) -> None:
        super().__init__(_MOST_ANSWER_BYTES)
