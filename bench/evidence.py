"""How fast evidence is verified: a chain of records in a stream, against plain SHA-256 of the same bytes.

    python bench/evidence.py [RECORDS]        (default 1,000,000; about half a minute for each million)

Prints records per second, the ratio to plain sha256, peak memory for a tenth and for all of them (it must not
grow), and the time for one bundle. Nothing here is asserted.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from functools import partial

from ringfence.evidence import chain
from ringfence.evidence.canonical import canonical
from ringfence.evidence.keys import SigningKey, signature_holds


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


def seconds(work: Callable[[], object]) -> float:
    """CPU time: all of this is computing, and a busy neighbour is not what is measured."""
    started = time.process_time()
    work()
    return time.process_time() - started


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


def peak_memory_bytes(path: str, count: int) -> int:
    with open(path, "rb") as file:
        head = b"".join(next(file) for _ in range(count))
    stream = io.BytesIO(head)
    tracemalloc.start()
    chain.check_stream(stream)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "chain.jsonl")
        write_s = seconds(lambda: write_chain(path, count))
        size_bytes = os.path.getsize(path)
        verify_s, plain_s = seconds(lambda: verify(path)), seconds(lambda: plain_sha256(path))
        tenth_s = seconds(lambda: chain.check_stream(_first(path, count // 10)))
        few, many = peak_memory_bytes(path, 1_000), peak_memory_bytes(path, min(count, 20_000))
    print(f"records            {count:>12,}   {size_bytes / 1e6:,.0f} MB")
    print(f"write              {count / write_s:>12,.0f} records/s")
    print(f"verify             {count / verify_s:>12,.0f} records/s   {verify_s:.1f} s")
    print(f"sha256 per line    {count / plain_s:>12,.0f} records/s   verify costs {verify_s / plain_s:.1f} x")
    print(f"linear             {verify_s / (tenth_s * 10):>12.2f}   time for all / 10 x time for a tenth")
    print(f"peak memory        {few:>12,} bytes for 1,000 records, {many:,} for {min(count, 20_000):,}")
    key = SigningKey.generate()
    signature = key.sign(b"message")
    check = partial(signature_holds, key.public_hex, signature, b"message")
    each_us = seconds(lambda: [check() for _ in range(500)]) / 500 * 1e6
    print(f"one signature      {each_us:>12.0f} us")


def _first(path: str, count: int) -> io.BytesIO:
    with open(path, "rb") as file:
        return io.BytesIO(b"".join(next(file) for _ in range(count)))


if __name__ == "__main__":
    main()
