"""The hash chain over JSON records: rule, and verification in a stream.

Owns: how one record follows from the one before (docs/reference/formats.md, section 1).
Does not: write files (chainfile), or know what the records mean.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO

from ringfence.errors import EvidenceError
from ringfence.evidence.canonical import canonical
from ringfence.evidence.strictjson import decode
from ringfence.model.record import record

GENESIS = "0" * 64
MAX_LINE_BYTES = 1 << 20


@record
class ChainSummary:
    head: str
    count: int


def next_head(head: str, record: Mapping[str, object]) -> str:
    """The head after ``record``, which must not carry its own ``chain``."""
    return _hash(head, canonical(dict(record)))


def link(records: Iterable[Mapping[str, object]]) -> list[dict[str, object]]:
    """The same records, each with its ``chain``."""
    head, linked = GENESIS, []
    for each in records:
        if "chain" in each:
            raise EvidenceError("a record to be chained already has a chain")
        head = next_head(head, each)
        linked.append({**each, "chain": head})
    return linked


def check(records: Iterable[object]) -> ChainSummary:
    """Recompute every link; EvidenceError names the first record that does not follow."""
    head, count = GENESIS, 0
    for count, each in enumerate(records, start=1):
        head = follow(head, each, count)
    return ChainSummary(head=head, count=count)


def follow(head: str, record: object, number: int) -> str:
    """The head after one chained record, refused unless the record says the same."""
    if not isinstance(record, dict) or "chain" not in record:
        raise EvidenceError(f"record {number} has no chain")
    body = dict(record)
    claimed = body.pop("chain")
    head = _hash(head, canonical(body))
    if claimed != head:
        raise EvidenceError(f"record {number} does not follow from the one before it")
    return head


def check_stream(stream: BinaryIO) -> ChainSummary:
    """Verify a chain file of any length in constant memory."""
    return check(decode(line) for line in complete_lines(stream))


def complete_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Lines ended by a newline; a torn or oversized one is an EvidenceError."""
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if not line.endswith(b"\n"):
            problem = "is too long" if len(line) > MAX_LINE_BYTES else "has no end: the file is torn"
            raise EvidenceError(f"record {number} {problem}")
        yield line


def _hash(head: str, body: bytes) -> str:
    return hashlib.sha256(head.encode("ascii") + body).hexdigest()
