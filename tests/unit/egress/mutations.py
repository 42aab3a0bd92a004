"""Messages that are nearly valid: seeded mutations of valid ones, with words that parsers stumble over."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise


def mutated(samples: Sequence[bytes], words: Sequence[bytes], *, seed: int, count: int) -> Iterator[tuple[int, bytes]]:
    """Yield numbered cases; each depends on the seed and its number alone, so one can be tried by itself."""
    for number in range(count):
        dice = random.Random(f"{seed}-{number}")
        data = dice.choice(samples)
        for _ in range(dice.choice((0, 1, 1, 1, 2, 2, 3, 5))):
            data = _mutation(dice, data, samples, words)
        yield number, data


def pieces(data: bytes, seed: int) -> list[bytes]:
    """Return the same bytes as they may arrive: at once, one by one at the start, or cut anywhere."""
    dice = random.Random(seed)
    if dice.random() < 0.4 or len(data) < 2:
        return [data] if data else []
    cuts = sorted({0, len(data), *(dice.randrange(len(data)) for _ in range(dice.choice((1, 2, 8))))})
    return [data[start:end] for start, end in pairwise(cuts)]


def _mutation(dice: random.Random, data: bytes, samples: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    starts = [at + 1 for at, byte in enumerate(data[:5000]) if byte == 0x0A] if dice.random() < 0.4 else []
    start = dice.choice(starts or [dice.randrange(len(data) + 1)])  # often where a line begins
    end = min(len(data), start + dice.choice((1, 1, 2, 4, 16, 64)))
    piece = data[start:end]
    match dice.randrange(9):
        case 0 if piece:
            changed = bytes([piece[0] ^ 1 << dice.randrange(8)])
            return data[:start] + changed + data[start + 1 :]
        case 1:
            return data[:start] + bytes([dice.choice((0, 9, 10, 13, 32, 127, 128, 255,
            dice.randrange(256)))]) + data[start:]
        case 2:
            return data[:start] + data[end:]
        case 3:
            return data[:start] + piece * dice.choice((2, 3, 300)) + data[end:]
        case 4:
            return data[:start]
        case 5:
            other = dice.choice(samples)
            return data[:start] + other[dice.randrange(len(other)) :]
        case 6:
            return data + dice.choice(samples)
        case _:
            return data[:start] + dice.choice(words) + data[dice.choice((start, end)) :]
