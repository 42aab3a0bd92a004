"""Executes a compiled table: in the native part if there is one, else call by call through ctypes.

Runs in the process that becomes a sandbox. It interprets nothing but the table.
"""

from __future__ import annotations

import errno
import os
from _collections_abc import Callable, Mapping, Sequence

from ringfence.kernel import syscalls
from ringfence.kernel.calls import native
from ringfence.kernel.calls.table import (
    ADDRESS,
    ANY_ERROR,
    ARGUMENTS,
    CALL,
    HEAD,
    IMMEDIATE,
    MAGIC,
    OPERATIONS,
    SLOT,
    SLOT_BYTES,
    VERSION,
)  # fmt: skip

TYPE_CHECKING = False
if TYPE_CHECKING:
    Split = Callable[[], None]


class CallFailed(Exception):
    """A call of a table failed."""

    def __init__(self, number: int, code: int) -> None:
        super().__init__(f"call {number}: {os.strerror(code)}")
        self.number, self.errno = number, code


def execute(table: bytes, values: Mapping[int, int], split: Split | None = None) -> memoryview[int]:
    """Make the calls; return what the slots hold at the end.

    ``values``: what is in slots at the beginning. ``split``: what does that operation without the native part.
    """
    memory, slots = filled(table, values)
    library = native.library()
    if library is None:
        _Interpreter(memory, slots).run(split)
    else:
        number, code = library.run(memory)
        if code:
            raise CallFailed(number, code)
    return slots


def filled(table: bytes, values: Mapping[int, int]) -> tuple[bytearray, memoryview[int]]:
    """Return a copy of the table with these values in its slots, and its slots."""
    memory = bytearray(table)
    _check(memory)
    slots = slots_of(memory)
    for slot, value in values.items():
        slots[slot] = value
    return memory, slots


def _check(table: bytearray) -> None:
    """Refuse bytes that are not a table, as the native part does."""
    if len(table) >= HEAD.size:
        magic, version, calls, slots, size = HEAD.unpack_from(table)
        fits = HEAD.size + calls * CALL.size + size == len(table) and slots * SLOT_BYTES <= size
        if (magic, version) == (MAGIC, VERSION) and fits:
            return
    raise CallFailed(0, errno.EINVAL)


def slots_of(table: bytearray) -> memoryview[int]:
    """Return what its slots hold; it is changed through this."""
    return memoryview(table)[len(table) - HEAD.unpack_from(table)[3] * SLOT_BYTES :].cast("q")


def _counts(table: bytearray) -> tuple[int, int]:
    """Return the number of calls and the bytes of memory."""
    _, _, calls, _, size = HEAD.unpack_from(table)
    return calls, size


class _Interpreter:
    """The same table, one call after the other."""

    def __init__(self, table: bytearray, slots: memoryview[int]) -> None:
        self._calls, self._size = _counts(table)
        self._start = HEAD.size + self._calls * CALL.size
        self._table, self._slots = table, slots
        self._base: int = native.address_of(table) + self._start

    def run(self, split: Split | None) -> None:
        import ctypes

        enter, failure = syscalls.entrance(syscalls.libc()), ctypes.get_errno
        number, slots = 0, len(self._slots)
        while number < self._calls:
            row = CALL.unpack_from(self._table, HEAD.size + number * CALL.size)
            call, store, skip = row[6:9]
            values = row[:ARGUMENTS] if row[9:15] == _NUMBERS_ONLY else self._values(number, row)
            if store >= slots:
                raise CallFailed(number, errno.EINVAL)
            if call >= 0:
                result = enter(call, *values)
                # libc says -1 for every error; no call of a table succeeds with that.
                code = failure() if result == -1 else 0
            else:
                code, result = self._operate(row, values, split)
            if code and code not in row[15:] and ANY_ERROR not in row[15:]:
                raise CallFailed(number, code)
            if store >= 0 and not code:
                self._slots[store] = result
            number += 1
            if skip:
                number += max(0, -skip if code else skip)

    def _operate(self, row: tuple[int, ...], values: Sequence[int], split: Split | None) -> tuple[int, int]:
        """Return the error, or 0, and the result."""
        operation, in_memory = _OPERATIONS.get(row[6], ""), row[9] == ADDRESS
        if operation == "split" and split is not None and min(values[1:3]) >= 0:
            split()
            return 0, 0
        if operation == "put" and in_memory and values[2] in (4, 8):
            return self._write(row[0], (values[1] % (1 << 64)).to_bytes(8, "little")[: values[2]]), 0
        if operation == "decimal" and in_memory and values[1] >= 0:
            return self._write(row[0], b"%d\0" % values[1]), 0
        if operation == "get" and in_memory and values[1] in (2, 4, 8):
            return self._read(row[0], values[1])
        if operation == "expect" and 1 <= values[3] <= _LARGEST_ERROR:
            return 0 if values[0] & values[1] == values[2] else values[3], 0
        return errno.EINVAL, 0

    def _read(self, place: int, width: int) -> tuple[int, int]:
        """A number that looks like an error is one, as it is for the native part."""
        if not 0 <= place <= self._size - width:
            return errno.EINVAL, 0
        begin = self._start + place
        value = int.from_bytes(self._table[begin : begin + width], "little", signed=width == SLOT_BYTES)
        return (-value, 0) if -_LARGEST_ERROR <= value < 0 else (0, value)

    def _values(self, number: int, row: tuple[int, ...]) -> list[int]:
        values = list(row[:ARGUMENTS])
        for place in range(ARGUMENTS):
            kind, argument = row[9 + place], values[place]
            if kind == ADDRESS and 0 <= argument <= self._size:
                values[place] = self._base + argument
            elif kind == SLOT and 0 <= argument < len(self._slots):
                values[place] = self._slots[argument]
            elif kind != IMMEDIATE:
                raise CallFailed(number, errno.EINVAL)
        return values

    def _write(self, place: int, content: bytes) -> int:
        if not 0 <= place <= self._size - len(content):
            return errno.EINVAL
        begin = self._start + place
        self._table[begin : begin + len(content)] = content
        return 0


_LARGEST_ERROR = 4095
_NUMBERS_ONLY = (IMMEDIATE,) * ARGUMENTS
_OPERATIONS = {number: name for name, number in OPERATIONS.items()}
