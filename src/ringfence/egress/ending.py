"""How it ends: for a refused client, which is told; for a visit and a sandbox, whose record needs all that was decided.

When a sandbox is closed, no process is inside any more. What its programs have sent before still waits in sockets that
nobody has accepted or read, since a busy loop was not there yet. Each is decided now; nothing new is connected to.
What can't be decided in time is counted, so the record does not claim to be complete.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING

from ringfence.egress import plain_http, proxy_entry, relay
from ringfence.egress.addresses import TargetKind
from ringfence.egress.http_head import BadRequest, RequestHead, RequestReader
from ringfence.egress.sniffing import MOST_BYTES, Spoken, other_server, spoken
from ringfence.egress.upstream import CLOSED, Refused

if TYPE_CHECKING:
    from ringfence.egress.connection import Connection
    from ringfence.egress.sandbox_side import SandboxSide

_GRACE_S = 1.0
"""How long a refused client may take to show its protocol, so that the refusal can be told in it."""
_GOODBYE_S, _GOODBYE_BYTES = 1.0, 1 << 18
_DECIDE_S, _READ_ON_S, _LOOK_S = 5.0, 0.5, 0.002
"""How long targets are waited for, how long what follows on allowed connections, and the pause between looks."""
_QUIET_LOOKS = 4
"""What was read a moment ago may still be on its way to the task that decides."""
_IN_A_TURN = 64
_SO_MEMINFO, _MEMINFO, _DROPS = 55, struct.Struct("=9I"), 8
"""Linux: counters of a socket; the last says how many datagrams found no room."""


# ---- of a refused client


async def learn_to_speak(connection: Connection) -> None:
    """Learn from a refused client's first bytes in which protocol to tell it; the bytes go nowhere."""
    if connection.speaks != "tcp" or connection.protocol:
        return
    first, kind = b"", Spoken.UNKNOWN
    try:
        async with asyncio.timeout(_GRACE_S):
            while kind is Spoken.UNKNOWN and len(first) < MOST_BYTES:
                data = await relay.receive(connection.loop, connection.client, MOST_BYTES)
                first += data
                kind = spoken(first)[0] if data else Spoken.OTHER
    except (TimeoutError, OSError):
        return
    connection.speaks = kind.protocol


async def say(connection: Connection, status: int, reason: str) -> None:
    """Tell the client in its own protocol, unless the server has told it something already."""
    if connection.into.bytes and connection.speaks != "http":
        return
    if connection.down is not None:
        if connection.down.held:
            return  # in the middle of a response
        connection.down.stop()
    text = proxy_entry.refusal_text(connection.speaks, status, reason)
    if not text:
        return
    try:
        async with asyncio.timeout(_GOODBYE_S):
            await connection.loop.sock_sendall(connection.client, text)
            connection.client.shutdown(socket.SHUT_WR)
            left = _GOODBYE_BYTES  # a close with unread bytes would reset it, and lose what was sent
            while left > 0 and (data := await relay.receive(connection.loop, connection.client, MOST_BYTES)):
                left -= len(data)
    except (OSError, TimeoutError):
        pass


# ---- of a visit and of a sandbox


async def close(side: SandboxSide) -> None:
    """In order: what waits is decided, connections end and are reported, then the totals, then the dialogue ends."""
    if side.closing:
        return
    side.closing = True
    side.take_sockets()  # a busy loop may not even have these
    for made in side.sockets[:]:
        await _take_all(side, made)
    side.stop_listening()
    await _decide_all(side)
    await asyncio.gather(*side.live, return_exceptions=True)
    side.teller.say({"totals": {
        "connections": side.accepted, "refused": side.refused, "uncounted": side.teller.uncounted,
        "bytes_out": side.out.passed, "bytes_in": side.into.passed,
    }})  # fmt: skip
    await side.teller.all_said()
    side.end()


def of_visit(side: SandboxSide) -> None:
    """A visit to the box has ended: its refusals are told with it, not with the visit that comes after it."""
    for connection in side.live.values():
        if connection.decision == "refused":
            connection.tell()
    side.teller.begin_visit()


async def _take_all(side: SandboxSide, made: socket.socket) -> None:
    """Accept or answer what waits at a socket, with turns for others."""
    of_stream, taken = made.type == socket.SOCK_STREAM, 0
    while made.fileno() >= 0 and (_accept(side, made) if of_stream else side.answer_one(made)):
        taken += 1
        if taken % _IN_A_TURN == 0:
            await asyncio.sleep(0)
    if not of_stream and made.fileno() >= 0:
        side.teller.uncounted += _dropped(made)


def _accept(side: SandboxSide, made: socket.socket) -> bool:
    try:
        side.begin(made.accept()[0])
    except BlockingIOError:
        return False
    except ConnectionAbortedError:
        return True
    except OSError:  # no descriptor is left: how many wait, nobody knows
        side.teller.uncounted += 1
        return False
    return True


def _dropped(made: socket.socket) -> int:
    try:
        return int(_MEMINFO.unpack(made.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size))[_DROPS])
    except (OSError, struct.error):
        return 0


async def _decide_all(side: SandboxSide) -> None:
    """Let connections go on until nothing that they have said waits for a decision, or for a time; end them then."""
    began, quiet = side.loop.time(), dict.fromkeys(side.live, 0)
    await asyncio.sleep(0)
    while waiting := [each for task, each in tuple(side.live.items()) if not _is_cut(task, each, quiet)]:
        undecided = any(each.rule is None for each in waiting)
        if side.loop.time() > began + (_DECIDE_S if undecided else _READ_ON_S):
            side.teller.uncounted += sum(_has_more_to_say(each) for each in waiting)
            break
        await asyncio.sleep(_LOOK_S)
    for task in tuple(side.live):
        if quiet.get(task, 0) < _QUIET_LOOKS:
            task.cancel(CLOSED)


def _is_cut(task: asyncio.Task[None], connection: Connection, quiet: dict[asyncio.Task[None], int]) -> bool:
    """End it, once, if it has had nothing left to decide for some looks; return whether that is so."""
    if quiet[task] < _QUIET_LOOKS:
        if connection.is_connecting:
            _judge(connection)
        at_once = connection.is_connecting or connection.is_blind or connection.decision == "refused"
        quiet[task] = _QUIET_LOOKS if at_once else 0 if _has_more_to_say(connection) else quiet[task] + 1
        if quiet[task] == _QUIET_LOOKS:
            task.cancel(CLOSED)
    return quiet[task] == _QUIET_LOOKS


def _has_more_to_say(connection: Connection) -> bool:
    """Whether its target is not known yet, or bytes of its client are not read."""
    undecided = connection.rule is None and connection.target.kind is not TargetKind.DNS
    return undecided or bool(_unread(connection.client, 1))


def _unread(client: socket.socket, most: int) -> bytes:
    try:
        return client.recv(most, socket.MSG_PEEK)
    except OSError:
        return b""


def _judge(connection: Connection) -> None:
    """It waits for its server, and will not get it any more. What the client has said meanwhile may name another."""
    rule, name = connection.rule, connection.name
    if rule is None or rule.needs_inspection or not name or connection.decision == "refused":
        return
    kind, hello = spoken(data := connection.said + _unread(connection.client, MOST_BYTES))
    try:
        if kind is Spoken.TLS and (problem := other_server(hello, name, unnamed=rule.sni == "optional")):
            raise Refused(problem)
        if kind is Spoken.HTTP:
            reader = RequestReader()
            reader.receive(data)
            head = reader.next_event()
            if isinstance(head, RequestHead):
                plain_http.check_host(head, name, connection.port)
    except (Refused, BadRequest) as refused:
        connection.settle("refused", str(refused))
