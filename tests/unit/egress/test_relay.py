"""Bytes between two sockets: all of them, in order, counted, and none for somebody else."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Awaitable, Callable

import pytest

from ringfence.egress import relay
from ringfence.egress.relay import ByteBudget, Edges, LimitReached, Meter, Pipes, Pump


class Pair:
    """A client and a server with the relay between them, on this host's loopback."""

    def __init__(self) -> None:
        self.client, self.inner = tcp_pair()
        self.outer, self.server = tcp_pair()
        self.inner.setblocking(False)
        self.outer.setblocking(False)
        self.pipes = Pipes()

    def pumps(self, out: Meter | None = None) -> list[Pump]:
        self.edges = Edges()
        return [Pump(self.pipes, self.edges, self.inner, self.outer, out or Meter(), lambda: None),
                Pump(self.pipes, self.edges, self.outer, self.inner, Meter(), lambda: None)]  # fmt: skip

    def is_watched(self) -> bool:
        return self.edges.is_watching(self.inner.fileno()) or self.edges.is_watching(self.outer.fileno())

    def close(self) -> None:
        for link in (self.client, self.inner, self.outer, self.server):
            link.close()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        one = socket.create_connection(listening.getsockname())
        return one, listening.accept()[0]


def with_pair(use: Callable[[Pair], Awaitable[None]]) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    pair = Pair()

    async def run() -> None:
        async with asyncio.timeout(60):
            await use(pair)
        pair.edges.close()

    try:
        asyncio.run(run())
        for ends in pair.pipes.free:
            for end in ends:
                os.close(end)
    finally:
        pair.close()
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_all_bytes_arrive_in_order_and_the_end_is_passed_on() -> None:
    sent = os.urandom(5_000_000)
    got = bytearray()

    def receive(link: socket.socket) -> None:
        while data := link.recv(65536):
            got.extend(data)

    async def use(pair: Pair) -> None:
        reader = threading.Thread(target=receive, args=(pair.server,))
        writer = threading.Thread(target=lambda: (pair.client.sendall(sent), pair.client.shutdown(socket.SHUT_WR)))
        reader.start()
        writer.start()
        out, back = pair.pumps()
        await out.finished
        writer.join()
        reader.join()
        assert out.meter.bytes == len(sent) and not back.finished.done()
        pair.server.sendall(b"thank you")
        pair.server.shutdown(socket.SHUT_WR)
        await relay.run([out, back])
        assert pair.client.recv(64) == b"thank you" and pair.client.recv(1) == b""

    with_pair(use)
    assert bytes(got) == sent


def test_a_slow_reader_keeps_one_pipe_and_stops_the_sender() -> None:
    async def use(pair: Pair) -> None:
        pair.client.setblocking(False)
        pumps = pair.pumps()
        sent = 0
        for _ in range(200):
            try:
                sent += pair.client.send(b"x" * 65536)
            except BlockingIOError:
                pass
            await asyncio.sleep(0.001)
        assert pumps[0].held and not pumps[0].finished.done()
        assert sent < 64_000_000
        for pump in pumps:
            pump.stop()
            pump.finished.cancel()
        assert pair.pipes.free == []  # bytes of one connection never come to another

    with_pair(use)


def test_not_one_byte_more_than_the_budget_passes() -> None:
    budget = ByteBudget(1000, "that was enough")
    got: list[bytes] = []

    async def use(pair: Pair) -> None:
        pair.client.sendall(b"x" * 5000)
        with pytest.raises(LimitReached, match="that was enough"):
            await relay.run(pair.pumps(Meter(budget)))
        pair.outer.close()
        got.append(pair.server.recv(65536))

    with_pair(use)
    assert got == [b"x" * 1000] and budget.left == 0 and budget.passed == 1000


def test_a_budget_that_changes_keeps_what_has_passed() -> None:
    budget = ByteBudget(0, "")
    budget.left -= 700
    budget.set_most(1000, "small")
    assert (budget.left, budget.passed) == (300, 700)
    budget.set_most(500, "smaller")
    assert Meter(budget).room() <= 0 and Meter(budget).reason() == "smaller"
    budget.set_most(0, "")
    assert budget.passed == 700 and Meter(budget).room() > 1 << 60


def test_what_was_cancelled_watches_nothing_any_more() -> None:
    """A later socket with the same number would be read by it."""

    async def use(pair: Pair) -> None:
        pumps = pair.pumps()
        task = asyncio.ensure_future(relay.run(pumps))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not pair.is_watched()

    with_pair(use)


def test_one_side_that_is_gone_ends_both() -> None:
    async def use(pair: Pair) -> None:
        pair.server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        pumps = pair.pumps()
        pair.server.close()
        with pytest.raises(ConnectionError):
            await relay.run(pumps)
        assert not pair.is_watched()

    with_pair(use)


def test_a_pump_whose_sockets_were_closed_under_it_moves_nobody_elses_bytes() -> None:
    """The next sockets have the same numbers, and belong to another sandbox."""
    later = Pair()

    async def use(pair: Pair) -> None:
        pair.client.sendall(b"first")
        up, _ = pumps = pair.pumps()
        assert pair.server.recv(64) == b"first" and up.meter.bytes == 5
        later.client.sendall(b"private")
        for mine, theirs in ((pair.inner, later.inner), (pair.outer, later.outer)):
            number = mine.fileno()
            mine.close()
            assert os.dup2(theirs.fileno(), number, inheritable=False) == number
        up._move()
        assert up.meter.bytes == 5 and isinstance(up.finished.exception(), OSError)
        for pump in pumps:
            pump.give_up()
        assert not pair.edges._from and not pair.edges._to
        assert later.inner.recv(64) == b"private"
        for number in (up.source, up.sink):
            os.close(number)

    try:
        with_pair(use)
    finally:
        later.close()


def test_a_pump_is_forgotten_also_where_its_sockets_were_closed_before() -> None:
    async def use(pair: Pair) -> None:
        one, other = pair.pumps()
        pair.inner.close()
        pair.outer.close()
        one.give_up()
        other.give_up()
        assert not pair.edges._from and not pair.edges._to
        assert one.finished.cancelled() and other.finished.cancelled()

    with_pair(use)


def test_pipes_are_large_up_to_a_number_and_used_again() -> None:
    pipes = Pipes()
    taken = [pipes.take() for _ in range(40)]
    assert len(pipes.large) <= 16
    for ends in taken:
        pipes.give(ends, empty=True)
    assert len(pipes.free) == len(pipes.large)
    assert pipes.take() in taken
    for ends in (*pipes.free, *(pipes.large - set(pipes.free))):
        os.close(ends[0])
        os.close(ends[1])
