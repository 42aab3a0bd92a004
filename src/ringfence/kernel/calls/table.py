"""A table of system calls: made by pure functions, compiled to one string of bytes, executed elsewhere.

Each call has six arguments. An argument is a number, the address of a block in the memory that the table brings along,
or the value of a slot: what an earlier call returned, or what is known only when the table is executed. There are no
loops: a call may skip some of those after it, so every table ends. ``native/calls.c`` reads this layout.
"""

from __future__ import annotations

import marshal
import os
from struct import Struct

from ringfence.kernel.syscall_numbers import NUMBERS, architecture

MAGIC, VERSION = 0x63616C6C, 6
HEAD = Struct("=IIIIQ")
"""Magic, version, number of calls, number of slots, bytes of memory; calls and memory follow, the slots at its end."""
CALL = Struct("=6qiii6B6B")
"""Six arguments, the call's number, the slot for its result or -1, how many calls its success skips (or, where that is
below zero, its failure with an allowed error), the kinds of the arguments, the errors that are no reason to stop."""
IMMEDIATE, ADDRESS, SLOT = 0, 1, 2
ARGUMENTS = 6
MOST_ALLOWED = 6
SLOT_BYTES = 8
ANY_ERROR = 255
"""As an allowed error: any error."""

OPERATIONS = {"split": -1, "put": -2, "decimal": -3, "get": -4, "expect": -5}
"""Operations that are not system calls.

``split(program, status, tally, argv, envp, tid)``: pid 1 becomes the program; the job goes on from there.
``put(block, value, width)``: store a number in a block.
``decimal(block, value)``: store a number in a block as text.
``get(block, width)``: return a number that the kernel wrote into a block.
``expect(value, mask, wanted, error)``: fail with the error unless the masked value is as wanted.
"""


_ZEROS = (0,) * ARGUMENTS
_SIGN = 1 << 63
_SKIP, _SKIP_AT = Struct("=i"), 56


class Address(int):
    """Where in the table's memory a block begins."""


class Slot(int):
    """The number of a slot."""


Argument = int | str | bytes | Address | Slot | None


class Call:
    """One call, as it was written down."""

    __slots__ = ("allowed", "arguments", "name", "skip", "step", "store")

    def __init__(
        self, name: str, arguments: tuple[Argument, ...], step: str, store: int, allowed: tuple[int, ...]
    ) -> None:
        self.name, self.arguments, self.step = name, arguments, step
        self.store, self.allowed, self.skip = store, allowed, 0


class Table:
    """Calls that are written down one after the other. Nothing is executed here."""

    def __init__(self, machine: str = "") -> None:
        self.calls: list[Call] = []
        self.slots: dict[str, Slot] = {}
        self.step = ""
        """What the next calls belong to."""
        self._numbers = {**NUMBERS[machine or architecture()], **OPERATIONS}
        self._rows, self._blocks = bytearray(), bytearray()
        self._texts: dict[str, Address] = {}

    def slot(self, name: str) -> Slot:
        """Return the slot of that name, a new one the first time."""
        if name not in self.slots:
            self.slots[name] = Slot(len(self.slots))
        return self.slots[name]

    def block(self, content: bytes) -> Address:
        """Put bytes into the memory, for one call alone: a later one may change them."""
        self._blocks.extend(bytes(-len(self._blocks) % SLOT_BYTES))
        place = Address(len(self._blocks))
        self._blocks.extend(content)
        return place

    def text(self, content: str) -> Address:
        """Put a constant string into the memory, once."""
        if content not in self._texts:
            encoded = os.fsencode(content)
            if b"\0" in encoded:
                raise ValueError(f"a string of a call can't contain NUL: {encoded!r}")
            self._texts[content] = Address(len(self._blocks))
            self._blocks.extend(encoded + b"\0")
        return self._texts[content]

    def call(
        self, name: str, *arguments: Argument, store: Slot | None = None, allowed: tuple[int, ...] = ()
    ) -> int:
        """Write a call down and return its number. A str is a C string, bytes are a block of their own."""
        if len(arguments) > ARGUMENTS or len(allowed) > MOST_ALLOWED:
            raise ValueError(f"{name} has more arguments or allowed errors than a call can have")
        values, kinds = [0] * ARGUMENTS, [IMMEDIATE] * ARGUMENTS
        for place, argument in enumerate(arguments):
            if type(argument) is int and argument < _SIGN:  # most of them
                values[place] = argument
            elif argument is not None:
                values[place], kinds[place] = self._placed(argument)
        stored = -1 if store is None else int(store)
        unused = _ZEROS[len(allowed) :]
        self._rows += CALL.pack(*values, self._numbers[name], stored, 0, *kinds, *allowed, *unused)
        self.calls.append(Call(name, arguments, self.step, stored, allowed))
        return len(self.calls) - 1

    def _placed(self, argument: int | str | bytes) -> tuple[int, int]:
        """Return the value and the kind."""
        if isinstance(argument, str):
            return self.text(argument), ADDRESS
        if isinstance(argument, bytes):
            return self.block(argument), ADDRESS
        if isinstance(argument, Slot):
            return argument, SLOT
        if isinstance(argument, Address):
            return argument, ADDRESS
        return argument - (_SIGN << 1) if argument >= _SIGN else argument, IMMEDIATE

    def skip_from(self, number: int) -> None:
        """Where that call succeeds, go on with the next one that is written down."""
        self._skip(number, len(self.calls) - number - 1)

    def skip_failed_from(self, number: int) -> None:
        """The same where that call fails with an allowed error."""
        self._skip(number, number + 1 - len(self.calls))

    def _skip(self, number: int, count: int) -> None:
        self.calls[number].skip = count
        _SKIP.pack_into(self._rows, number * CALL.size + _SKIP_AT, count)

    def point(self, block: Address, offset: int, target: Argument, width: int = 8) -> None:
        """Have a block contain the address of another one, or the value of a slot."""
        self.call("put", Address(block + offset), target, width)

    def labels(self) -> bytes:
        """Return what the calls belong to, by the number of the first of each, packed: they are many, and read only if
        a call fails."""
        found: list[tuple[int, str]] = []
        for number, call in enumerate(self.calls):
            if not found or found[-1][1] != call.step:
                found.append((number, call.step))
        return marshal.dumps(found)

    def compiled(self) -> bytes:
        """Return the bytes that are executed."""
        padding = bytes(-len(self._blocks) % SLOT_BYTES)
        slots = b"\xff" * (len(self.slots) * SLOT_BYTES)
        memory = bytes(self._blocks) + padding + slots
        return HEAD.pack(MAGIC, VERSION, len(self.calls), len(self.slots), len(memory)) + bytes(self._rows) + memory
