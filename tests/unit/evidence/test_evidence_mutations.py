"""No mutation that changes the meaning of a bundle verifies: every bit, byte and field, and pairs of fields.

Together more than 100,000 mutations, of which ``make test-all`` tries every seventh. «Changes the meaning»: the strict
reader sees another value than in the original. Proctor's format leaves sizes and order of its artifacts unsigned: there
they do not count.
"""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, product
from typing import Any, TypeVar

import evidence_samples as s
import evidence_tampering
import pytest

from ringfence.errors import VerificationError
from ringfence.evidence.canonical import canonical
from ringfence.evidence.strictjson import parse
from ringfence.evidence.trust import Trust
from ringfence.evidence.verify import verify_bundle

pytestmark = [pytest.mark.unmeasured, pytest.mark.long]

EVERY = 1 if os.environ.get("RINGFENCE_LONG") else 7
"""Less than a byte has bits, and edits: so of each byte at least one bit is flipped, and at least one edit is tried."""
T = TypeVar("T")
SUBSTITUTES = b'0a"\\,}\x00'
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 2**53 - 1, 0.5, 0.0, -0.0, 1e300),
    *("", "x", "\0", "\ud7ff", "0" * 64, "f" * 64, "0" * 128, "clean", "compromised", "host", "image"),
    *("masked_write", "0.1.1", "ringfence-3/0.1.1", "2026-11-01T12:03:00Z"),
    *([], {}, [None], {"x": 1}),
]


def good(name: str) -> bytes:
    with open(os.path.join(evidence_tampering.VECTORS, name), "rb") as file:
        return json.dumps(json.loads(file.read()), ensure_ascii=False, separators=(",", ":")).encode()


RINGFENCE = good("good-ringfence-3.json")
PROCTOR = good("good-proctor-0.1.1.json")
UNGRADED = good("good-ringfence-run-1.json")
STRICT_TRUST = Trust.parse(s.encoded(s.trust_document()))
PROCTOR_TRUST = Trust.pinned(s.PROCTOR_KEY.public_hex)


def meaning_of_ringfence(data: bytes) -> bytes:
    return canonical(parse(data))


def meaning_of_proctor(data: bytes) -> bytes:
    document: Any = parse(data)
    artifacts = document["manifest"]["artifacts"]
    document["manifest"]["artifacts"] = sorted([a["name"], a["sha256"]] for a in artifacts)
    return canonical(document)


def survivors(
    original: bytes, mutations: Iterable[bytes], trust: Trust, meaning: Callable[[bytes], bytes]
) -> tuple[int, list[bytes]]:
    """How many were tried, and those that verify although they mean something else."""
    count, wrong = 0, []
    expected = meaning(original)
    for mutated in mutations:
        count += 1
        try:
            verify_bundle(mutated, trust=trust)
        except VerificationError:
            continue
        if meaning(mutated) != expected:
            wrong.append(mutated)
    return count, wrong


def some(edits: Iterable[T], every: int = EVERY) -> Iterator[T]:
    """Those that are tried: chosen before they are made, for that takes as long as to verify one."""
    return islice(edits, 0, None, every)


def bit_flips(data: bytes) -> Iterator[bytes]:
    for position, bit in some(product(range(len(data)), range(8))):
        yield data[:position] + bytes([data[position] ^ (1 << bit)]) + data[position + 1 :]


def byte_edits(data: bytes, every: int = EVERY) -> Iterator[bytes]:
    return some(_byte_edits(data), every)


def _byte_edits(data: bytes) -> Iterator[bytes]:
    for position in range(len(data)):
        head, tail = data[:position], data[position + 1 :]
        yield head + tail
        yield head + data[position : position + 1] * 2 + tail
        yield data[:position]
        for substitute in SUBSTITUTES:
            yield head + bytes([substitute]) + tail


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    keyed = {dict: lambda: value.items(), list: lambda: enumerate(value)}
    members = keyed.get(type(value), lambda: ())()
    for key, member in members:
        yield from paths(member, (*path, key))


def holder(document: Any, path: tuple[Any, ...]) -> Any:
    for part in path[:-1]:
        document = document[part]
    return document


def alternatives(document: Any, path: tuple[Any, ...]) -> Iterator[Callable[[Any], None]]:
    """Edits of one field: other values, values of its neighbours, near misses, removal, repetition."""
    place = holder(document, path)
    value = place[path[-1]]
    neighbours = list(place.values() if isinstance(place, dict) else place)
    for other in [*VALUES, *neighbours, *near_misses(value)]:
        yield lambda d, other=other: holder(d, path).__setitem__(path[-1], copy.deepcopy(other))
    yield lambda d: holder(d, path).__delitem__(path[-1])
    if isinstance(place, list):
        yield lambda d: holder(d, path).insert(path[-1], copy.deepcopy(value))
    else:
        yield lambda d: holder(d, path).__setitem__(f"{path[-1]} ", value)


def near_misses(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value, int(value), str(value).lower()]
    if isinstance(value, int):
        return [value + 1, value - 1, float(value), str(value), value + 0.5, bool(value)]
    if isinstance(value, float):
        return [value + 0.25, -value, str(value), value * (1 + 2**-52)]
    if isinstance(value, str):
        return [value.upper(), value[:-1], value + " ", value + "\n", value[::-1], value + "0", [value]]
    if isinstance(value, list):
        return [value[::-1], value[:-1], value + value[:1], {}]
    return [dict(list(value.items())[:-1]), [value], {**value, "extra": 0}]


def field_edits(data: bytes, every: int = EVERY) -> Iterator[bytes]:
    document = json.loads(data)
    for edit in some((edit for path in list(paths(document)) for edit in alternatives(document, path)), every):
        changed = copy.deepcopy(document)
        edit(changed)
        yield json.dumps(changed).encode()


def paired_edits(data: bytes, count: int) -> Iterator[bytes]:
    """Two fields at once: a change and what an attacker might hope to hide it with."""
    document = json.loads(data)
    edits = [edit for path in paths(document) for edit in alternatives(document, path)]
    chance = random.Random(20261115)
    made = 0
    while made < count // EVERY:
        changed = copy.deepcopy(document)
        try:
            chance.choice(edits)(changed)
            chance.choice(edits)(changed)
        except (KeyError, IndexError, TypeError, AttributeError):
            continue  # the first edit removed the place of the second
        made += 1
        yield json.dumps(changed).encode()


@pytest.mark.parametrize(
    ("mutate", "at_least"),
    [
        (bit_flips, 42_000),
        (byte_edits, 54_000),
        (field_edits, 3_800),
        (lambda data: paired_edits(data, 15_000), 15_000),
    ],
    ids=["bits", "bytes", "fields", "pairs"],
)
def test_no_mutation_of_our_bundle_that_changes_its_meaning_verifies(
    mutate: Callable[[bytes], Iterator[bytes]], at_least: int
) -> None:
    count, wrong = survivors(RINGFENCE, mutate(RINGFENCE), STRICT_TRUST, meaning_of_ringfence)
    assert wrong == []
    assert count >= at_least // EVERY


@pytest.mark.parametrize(
    ("mutate", "at_least"),
    [(bit_flips, 11_900), (field_edits, 1_500), (lambda data: paired_edits(data, 5_000), 5_000)],
    ids=["bits", "fields", "pairs"],
)
def test_no_mutation_of_a_proctor_bundle_that_changes_its_signed_meaning_verifies(
    mutate: Callable[[bytes], Iterator[bytes]], at_least: int
) -> None:
    count, wrong = survivors(PROCTOR, mutate(PROCTOR), PROCTOR_TRUST, meaning_of_proctor)
    assert wrong == []
    assert count >= at_least // EVERY


@pytest.mark.parametrize(
    ("mutate", "at_least"),
    [(field_edits, 2_000), (lambda data: paired_edits(data, 5_000), 5_000)],
    ids=["fields", "pairs"],
)
def test_no_mutation_of_a_run_without_a_grader_that_changes_its_meaning_verifies(
    mutate: Callable[[bytes], Iterator[bytes]], at_least: int
) -> None:
    trust = Trust.pinned(s.OPERATOR.public_hex)
    count, wrong = survivors(UNGRADED, mutate(UNGRADED), trust, meaning_of_ringfence)
    assert wrong == []
    assert count >= at_least // EVERY


def test_the_search_finds_survivors_when_a_step_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The positive control: without step 16 a changed size verifies, and the search says so."""
    from ringfence.evidence import verify

    fewer = tuple(step for step in verify.STEPS if step.number != 16)
    monkeypatch.setattr(verify, "STEPS", fewer)
    _, wrong = survivors(RINGFENCE, field_edits(RINGFENCE), STRICT_TRUST, meaning_of_ringfence)
    assert wrong


def test_the_untouched_bundles_verify_under_the_same_trust() -> None:
    assert verify_bundle(RINGFENCE, trust=STRICT_TRUST).state == "ok"
    assert verify_bundle(PROCTOR, trust=PROCTOR_TRUST).state == "ok"
    assert verify_bundle(UNGRADED, trust=Trust.pinned(s.OPERATOR.public_hex)).state == "ok"
