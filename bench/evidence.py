"""How fast is a chain of records verified, in a stream, against plain SHA-256 of the same lines?

Processor time, since all of it is computing. Memory must not grow with the number of records.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import time
import tracemalloc
from collections.abc import Callable

from bench.harness import Answer, Effort, Table, Turn, compare, race, take_turns
from ringfence.evidence import chain
from ringfence.evidence.canonical import canonical
from ringfence.evidence.keys import SigningKey, signature_holds

QUESTION = "Verifying a chain of records against plain SHA-256 of the same lines"
SIGNATURES = 50


def ask(effort: Effort) -> Answer:
    count, turns = effort.pick(200_000, 20_000, 200), effort.pick(5, 3)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "chain.jsonl")
        write = _records_per_s(lambda: write_chain(path, count), count)
        write()
        passes = {
            "sha256 of each line": _records_per_s(lambda: plain_sha256(path), count),
            "ringfence verify": _records_per_s(lambda: verify(path), count),
            "ringfence write": write,
        }
        speed = compare(take_turns(passes, turns=turns))
        memory = {f"{part:,} records": _peak_kib(path, part) for part in (count // 10, count)}
        tables = (
            Table(title=f"chain of {count:,} records", unit="records/s", rows=speed, more_is_better=True),
            race("peak memory of a verification", memory, turns=1, warm=0, unit="KiB"),
            race("one signature", {"ringfence signature_holds": _signature_us()}, turns=turns, unit="µs"),
        )
    return Answer(tables=tables)


def write_chain(path: str, count: int) -> None:
    """Records like the recorder's, without fsync: the disk is not what is measured."""
    head = chain.GENESIS
    with open(path, "wb") as file:
        for number in range(count):
            record = {
                "kind": "masked_read",
                "path": f"/oracle/answer-{number % 97}.txt",
                "pid": 1000 + number % 50,
                "step": number,
                "syscall": "openat",
                "at_ns": str(1_700_000_000_000_000_000 + number * 1_000),
            }
            head = chain.next_head(head, record)
            file.write(canonical({**record, "chain": head}) + b"\n")


def verify(path: str) -> chain.ChainSummary:
    with open(path, "rb") as stream:
        return chain.check_stream(stream)


def plain_sha256(path: str) -> str:
    """The floor: the same lines, read the same way, one sha256 each."""
    digest = ""
    with open(path, "rb") as stream:
        for line in stream:
            digest = hashlib.sha256(line).hexdigest()
    return digest


def _records_per_s(work: Callable[[], object], count: int) -> Turn:
    return lambda: count / _processor_s(work)


def _processor_s(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return max(time.process_time() - start, 1e-9)


def _peak_kib(path: str, count: int) -> Turn:
    def turn() -> float:
        with open(path, "rb") as file:
            stream = io.BytesIO(b"".join(next(file) for _ in range(count)))
        tracemalloc.start()
        try:
            chain.check_stream(stream)
            return tracemalloc.get_traced_memory()[1] / 1024
        finally:
            tracemalloc.stop()

    return turn


def _signature_us() -> Turn:
    key = SigningKey.generate()
    signature = key.sign(b"message")

    def turn() -> float:
        checks = lambda: [signature_holds(key.public_hex, signature, b"message") for _ in range(SIGNATURES)]  # noqa: E731
        return _processor_s(checks) / SIGNATURES * 1e6

    return turn
