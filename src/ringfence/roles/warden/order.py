"""What a warden and its makers tell each other: an order for one sandbox, and what became of it.

Part of: warden, maker

The native loop of a maker reads orders too (``native/orders.h``), and tells of the sandboxes that it has made.
"""

from __future__ import annotations

import marshal
import os
from _collections_abc import Sequence
from struct import Struct

from ringfence.model.record import record

ORDER, MADE, FAILED = b"o", b"p", b"f"
BODY_BYTES = 16 * 1024
_HEAD = Struct("=5x?QQII")
_MADE = Struct("=6xQQ")


@record
class SandboxOrder:
    """One sandbox; its descriptors come beside it."""

    ticket: int
    draft: int
    place: int
    """Which of the warden's ids it has on the host."""
    new_network: bool = False
    """A job has used that of the place: the maker gives it up and makes another one."""
    group: str
    """The v2 group that it is born in; empty: none."""
    maps: tuple[str, str]
    """The lines of its uid_map and gid_map."""
    entrances: Sequence[str]
    """The files by which it enters its other groups."""


NO_ORDER = SandboxOrder(ticket=0, draft=0, place=0, group="", maps=("", ""), entrances=())


def packed(order: SandboxOrder) -> bytes:
    texts = (order.group, *order.maps, *order.entrances)
    head = _HEAD.pack(order.new_network, order.ticket, order.draft, order.place, len(texts))
    return head + b"".join(os.fsencode(text) + b"\0" for text in texts)


def read(body: bytes) -> SandboxOrder:
    new_network, ticket, draft, place, count = _HEAD.unpack_from(body)
    group, uid, gid, *entrances = map(os.fsdecode, body[_HEAD.size :].split(b"\0")[:count])
    return SandboxOrder(ticket=ticket, draft=draft, place=place, group=group, maps=(uid, gid), entrances=entrances,
                        new_network=new_network)  # fmt: skip


def made(ticket: int, pid: int) -> bytes:
    return _MADE.pack(ticket, pid)


def read_made(body: bytes) -> tuple[int, int]:
    """The ticket and the process."""
    ticket, pid = _MADE.unpack(body)
    return ticket, pid


def failed(ticket: int, step: str, number: int, problem: str) -> bytes:
    return marshal.dumps((ticket, step, number, problem[:4096]))


def read_failed(body: bytes) -> tuple[int, str, int, str]:
    ticket, step, number, problem = marshal.loads(body)
    return ticket, step, number, problem
