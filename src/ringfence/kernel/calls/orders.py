"""The loop of a maker: pid 1 of one sandbox after the other, cloned by tables in the native part.

``native/orders.h`` reads what is packed here. While the loop runs, nothing of this interpreter's memory is written, so
nothing of it has to be copied after a clone, neither here nor in the children.
"""

from __future__ import annotations

from _collections_abc import Mapping, Sequence
from struct import Struct

from ringfence.kernel.calls import native
from ringfence.kernel.calls.execute import filled, slots_of
from ringfence.model.record import record

PREPARE, BEGIN, PLAN, CONFINE, WAIT, FINISH, NETWORK, IDMAP = range(8)
"""The tables of a draft: in the maker before the clone; four in the child; in the maker after the clone; and two for
what a place has not got yet: a network namespace, in which the maker is afterwards, and the mapping of an id."""
OTHER, CHILD, CHILD_FAILED, BACK, UNFINISHED = range(5)
"""How the loop ends, as ``orders.h`` explains."""
DESCRIPTORS, LINKS, PASSING, TEXTS, RIGHTS, MESSAGE_BYTES, PLACES = 6, 24, 7, 8, 8, 16384, 512
_DRAFT = Struct(f"=3Q8Q8Q{DESCRIPTORS}i{2 * LINKS}i{2 * PASSING}i{2 * TEXTS}i7i4x")
_SERVED = Struct(f"=4iq{RIGHTS}i2i")
_ABSENT, _NONE = -1, b"\xff" * 4


@record
class Tables:
    """What orders that name a draft are carried out by. Slots are given by their numbers; -1: there is none."""

    flags: int
    """Of clone3."""
    tables: tuple[tuple[bytes, Mapping[int, int]], ...]
    """Each with what is in its slots from the start."""
    descriptors: Sequence[int]
    """The slot of BEGIN for each descriptor of an order; the last is the door to the leader."""
    links: Sequence[tuple[int, int]]
    """A slot in which PREPARE leaves a descriptor, and the slot of BEGIN that it goes to."""
    passing: Sequence[tuple[int, int]]
    """A table, and a slot that has a descriptor for some calls and then 0."""
    texts: Sequence[tuple[int, int]]
    """The table and the slot for each text of an order. The first is the v2 group that the child is born in."""
    child: int
    """The slot of FINISH for the child's number."""
    idmap: int
    """The slot of PREPARE for the mapping of the order's place."""
    mapping: tuple[int, int, int] = (-1, -1, -1)
    """Slots of IDMAP: for a child that carries a new user namespace, for the id on the host, and with the namespace."""
    first_id: int = 0
    """The id on the host of the first place; those of the others follow it."""
    network: int = -1
    """The slot of NETWORK for the namespace: the child is born in that of the order's place, which others have left."""

    def fits(self) -> bool:
        """Whether the loop has room for it."""
        counts = ((self.links, LINKS), (self.passing, PASSING), (self.texts, TEXTS))
        return len(self.descriptors) == DESCRIPTORS and all(len(rows) <= most for rows, most in counts)


@record
class Served:
    """Why the loop has ended."""

    state: int
    table: int
    call: int
    """The call of the table that was made last, and its error; 0: none."""
    error: int
    child: int
    rights: tuple[int, ...]
    """The descriptors that came with the order."""


class Orders:
    """One loop, and the drafts that it knows."""

    def __init__(self, door: int) -> None:
        self._door = door
        self._drafts: dict[int, tuple[bytes, list[bytearray]]] = {}
        self._packed = bytearray()
        self._places = bytearray(2 * PLACES * _NONE)
        """What the loop has made for each place: its idmap and its network."""
        self._served = bytearray(_SERVED.size + MESSAGE_BYTES)

    def add(self, number: int, tables: Tables) -> None:
        """Carry out orders for this draft from now on."""
        made = [filled(table, values)[0] for table, values in tables.tables]
        packed = _DRAFT.pack(
            number, tables.flags, tables.first_id, *map(native.address_of, made), *map(len, made), *tables.descriptors,
            *_padded(tables.links, LINKS), *_padded(tables.passing, PASSING), *_padded(tables.texts, TEXTS),
            len(tables.texts), tables.child, tables.idmap, tables.network, *tables.mapping,
        )  # fmt: skip
        self._drafts[number] = packed, made
        self._pack()

    def drop(self, number: int) -> None:
        if self._drafts.pop(number, None) is not None:
            self._pack()

    def _pack(self) -> None:
        self._packed = bytearray().join(packed for packed, _ in self._drafts.values())

    def clear(self) -> None:
        """Forget all drafts and the last order: in a child, which has no use for them."""
        self._drafts.clear()
        self._packed = bytearray()
        self._served[: self._end()] = bytes(self._end())  # not all of it: what is written is copied

    def slots(self, number: int, table: int) -> memoryview[int]:
        """What is in the slots of a table now."""
        return slots_of(self.table(number, table))

    def table(self, number: int, table: int) -> bytearray:
        return self._drafts[number][1][table]

    def serve(self) -> Served:
        """Carry out orders until something else waits, or in a child."""
        library = native.library()
        assert library is not None
        library.serve(self._door, self._packed, len(self._drafts), self._places, self._served)
        state, table, call, error, child, *rights, count, _ = _SERVED.unpack_from(self._served)
        return Served(state=state, table=table, call=call, error=error, child=child, rights=tuple(rights[:count]))

    def order(self) -> bytes:
        """The order that came last, as a message."""
        return bytes(self._served[_SERVED.size : self._end()])

    def _end(self) -> int:
        length: int = _SERVED.unpack_from(self._served)[-1]
        return _SERVED.size + length


def _padded(pairs: Sequence[tuple[int, int]], count: int) -> list[int]:
    return [number for pair in (*pairs, *((_ABSENT, _ABSENT),) * (count - len(pairs))) for number in pair]
