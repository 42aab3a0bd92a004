"""An assembler for classic BPF: the six instructions that a system call filter needs, labels, long jumps.

It deliberately knows nothing of seccomp. An instruction is a tuple, made by one of the functions here; jumps
go forward only, as the kernel demands.
"""

from __future__ import annotations

from struct import pack

# The kernel's limit for one program (BPF_MAXINSNS).
MAX_INSTRUCTIONS = 4096
INSTRUCTION_BYTES = 8

LOAD, AND, JUMP, RETURN = 0x20, 0x54, 0x05, 0x06
JUMP_EQUAL, JUMP_AT_LEAST = 0x15, 0x35
_LABEL = -1
# An 8-bit offset holds 255; two jumps may still be put in between.
_NEAR = 253

Instruction = tuple[int, int, str, str]
NEXT = ""


def label(name: str) -> Instruction:
    """A place to jump to; takes no room in the program."""
    return (_LABEL, 0, name, NEXT)


def load(offset_bytes: int) -> Instruction:
    """The accumulator becomes the 32-bit word at that offset of the data."""
    return (LOAD, offset_bytes, NEXT, NEXT)


def mask(bits: int) -> Instruction:
    """The accumulator keeps only these bits."""
    return (AND, bits, NEXT, NEXT)


def jump(target: str) -> Instruction:
    """Go on at the label."""
    return (JUMP, 0, target, NEXT)


def if_equal(value: int, then: str = NEXT, otherwise: str = NEXT) -> Instruction:
    """Go on at one of two labels; NEXT is the instruction after this one."""
    return (JUMP_EQUAL, value, then, otherwise)


def if_at_least(value: int, then: str = NEXT, otherwise: str = NEXT) -> Instruction:
    """As if_equal, for accumulator >= value, unsigned."""
    return (JUMP_AT_LEAST, value, then, otherwise)


def give(value: int) -> Instruction:
    """End the program with this value."""
    return (RETURN, value, NEXT, NEXT)


def assemble(program: list[Instruction]) -> bytes:
    """The program as struct sock_filter[]. Raises ValueError on an unknown label or too long a program."""
    # From the end: every jump is forward, so the distance to each label is known when the jump is met.
    reverse: list[bytes] = []
    places: dict[str, int] = {}
    for instruction in reversed(program):
        _emit(instruction, reverse, places)
    if len(reverse) > MAX_INSTRUCTIONS:
        raise ValueError(f"filter of {len(reverse)} instructions, the kernel takes {MAX_INSTRUCTIONS}")
    return b"".join(reversed(reverse))


def _emit(instruction: Instruction, reverse: list[bytes], places: dict[str, int]) -> None:
    code, value, then, _ = instruction
    if code == _LABEL:
        if then in places:
            raise ValueError(f"label {then!r} appears twice")
        places[then] = len(reverse)
    elif code == JUMP:
        reverse.append(_encode(code, 0, 0, len(reverse) - _place(then, reverse, places)))
    elif code in (JUMP_EQUAL, JUMP_AT_LEAST):
        _emit_branch(instruction, reverse, places)
    else:
        reverse.append(_encode(code, 0, 0, value))


def _emit_branch(instruction: Instruction, reverse: list[bytes], places: dict[str, int]) -> None:
    code, value, then, otherwise = instruction
    # Both places are taken before a long jump is put in between, or NEXT would mean that jump.
    then_place, otherwise_place = _place(then, reverse, places), _place(otherwise, reverse, places)
    otherwise_place = _within_reach(otherwise_place, reverse)
    then_place = _within_reach(then_place, reverse)
    here = len(reverse)
    reverse.append(_encode(code, here - then_place, here - otherwise_place, value))


def _place(target: str, reverse: list[bytes], places: dict[str, int]) -> int:
    if target == NEXT:
        return len(reverse)
    if target not in places:
        raise ValueError(f"label {target!r} is not ahead of the jump to it")
    return places[target]


def _within_reach(place: int, reverse: list[bytes]) -> int:
    if len(reverse) - place <= _NEAR:
        return place
    reverse.append(_encode(JUMP, 0, 0, len(reverse) - place))
    return len(reverse)


def _encode(code: int, then: int, otherwise: int, value: int) -> bytes:
    return pack("<HBBI", code, then, otherwise, value)
