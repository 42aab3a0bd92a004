"""A classic BPF machine in plain Python: runs a filter of any architecture over struct seccomp_data."""

from __future__ import annotations

from struct import iter_unpack, pack, unpack_from

_BRANCHES = {
    0x15: lambda accumulator, value: accumulator == value,
    0x35: lambda accumulator, value: accumulator >= value,
    0x05: None,
}


def seccomp_data(number: int, audit_arch: int, args: tuple[int, ...]) -> bytes:
    return pack("<IIQ6Q", number & 0xFFFFFFFF, audit_arch, 0, *args)


def decode(program: bytes) -> list[tuple[int, int, int, int]]:
    return list(iter_unpack("<HBBI", program))


def run(instructions: list[tuple[int, int, int, int]], data: bytes) -> int:
    """What the program returns; an instruction or a jump that the kernel would refuse is an error."""
    accumulator, position = 0, 0
    while True:
        code, then, otherwise, value = instructions[position]
        position += 1
        if code == 0x06:
            return value
        if code == 0x20:
            assert value % 4 == 0, "the kernel takes aligned loads only"
            (accumulator,) = unpack_from("<I", data, value)
        elif code == 0x54:
            accumulator &= value
        elif code == 0x05:
            position += value
        else:
            position += then if _BRANCHES[code](accumulator, value) else otherwise
