"""The chain: nothing can be taken out, and a crash costs at most the line it tore."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest

from ringfence.errors import EvidenceError, UsageError
from ringfence.evidence import chain, chainfile
from ringfence.evidence.chainfile import ChainWriter

pytestmark = pytest.mark.unmeasured

RECORDS = [{"n": n, "text": f"änd {n}"} for n in range(20)]


def write(path: Path, records: list[dict[str, object]] = RECORDS, **options: int) -> str:  # type: ignore[assignment]
    with ChainWriter(str(path), **options) as writer:
        for record in records:
            writer.append(record)
        return writer.head


def summary(path: Path) -> chain.ChainSummary:
    with open(path, "rb") as stream:
        return chain.check_stream(stream)


def test_the_chain_follows_the_documents_rule() -> None:
    first = hashlib.sha256(b"0" * 64 + b'{"a":1}').hexdigest()
    second = hashlib.sha256(first.encode() + b'{"b":2}').hexdigest()
    assert [r["chain"] for r in chain.link([{"a": 1}, {"b": 2}])] == [first, second]
    assert chain.check([]) == chain.ChainSummary(head="0" * 64, count=0)


def test_a_written_chain_verifies_and_goes_on_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "c"
    write(path, RECORDS[:7])
    assert write(path, RECORDS[7:]) == chain.link(RECORDS)[-1]["chain"]
    assert summary(path).count == len(RECORDS)
    assert path.stat().st_mode & 0o777 == 0o600


def test_every_changed_line_is_found(tmp_path: Path) -> None:
    path = tmp_path / "c"
    write(path)
    lines = path.read_bytes().splitlines(keepends=True)
    for index in range(len(lines)):
        for changed in (
            [*lines[:index], *lines[index + 1 :]],
            [*lines[:index], lines[index - 1], *lines[index:]],
        ):
            if index == len(lines) - 1 and len(changed) < len(lines):
                continue  # the last line cut off is an older chain; the signed head tells
            with pytest.raises(EvidenceError):
                chain.check_stream(io.BytesIO(b"".join(changed)))


@pytest.mark.parametrize("kept_bytes", [1, 10, 90, -1])
def test_a_torn_last_line_is_cut_off_and_the_chain_goes_on(tmp_path: Path, kept_bytes: int) -> None:
    path = tmp_path / "c"
    write(path, RECORDS[:3])
    whole = path.read_bytes()
    write(path, RECORDS[3:4])
    torn = path.read_bytes()[len(whole) :][:kept_bytes]
    path.write_bytes(whole + torn)
    with pytest.raises(EvidenceError, match="torn"):
        summary(path)
    with ChainWriter(str(path)) as writer:
        assert (writer.count, writer.dropped_bytes) == (3, len(torn))
        writer.append(RECORDS[3])
    assert (
        path.read_bytes() == whole + (torn if kept_bytes == -1 else b"")[:0] + path.read_bytes()[len(whole) :]
    )
    assert summary(path).count == 4


def test_a_zero_filled_tail_counts_as_torn(tmp_path: Path) -> None:
    path = tmp_path / "c"
    write(path, RECORDS[:3])
    path.write_bytes(path.read_bytes() + b"\0" * 512)
    with ChainWriter(str(path)) as writer:
        assert (writer.count, writer.dropped_bytes) == (3, 512)


@pytest.mark.parametrize("line", [0, 1, 2])
def test_a_broken_middle_is_refused_and_left_as_it_is(tmp_path: Path, line: int) -> None:
    path = tmp_path / "c"
    write(path, RECORDS[:3])
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line].replace(b"nd", b"ND")
    path.write_bytes(b"".join(lines))
    with pytest.raises(EvidenceError, match=f"record {line + 1} does not follow"):
        ChainWriter(str(path))
    assert path.read_bytes() == b"".join(lines)


@pytest.mark.system
def test_a_second_writer_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with ChainWriter(str(path)):
        with pytest.raises(EvidenceError, match="another writer"):
            ChainWriter(str(path))
        probe = "import sys; from ringfence.evidence.chainfile import ChainWriter; ChainWriter(sys.argv[1])"
        other = subprocess.run([sys.executable, "-c", probe, str(path)], capture_output=True, text=True)
        assert "another writer" in other.stderr
    ChainWriter(str(path)).close()


def test_a_writer_that_waits_goes_on_when_the_other_closes(tmp_path: Path) -> None:
    first = ChainWriter(str(tmp_path / "c"))
    first.append({"n": 1})
    threading.Timer(0.05, first.close).start()
    with ChainWriter(str(tmp_path / "c"), wait_s=30) as second:
        second.append({"n": 2})
    with (tmp_path / "c").open("rb") as stream:
        assert chain.check_stream(stream).count == 2


def test_a_known_position_spares_reading_and_still_sees_what_others_added(tmp_path: Path) -> None:
    path = str(tmp_path / "c")
    with ChainWriter(path) as first:
        first.append({"n": 1})
    with ChainWriter(path) as other:
        other.append({"n": 2})
    with ChainWriter(path, known=first.position) as again:
        assert (again.head, again.count) == (other.head, 2)
        again.append({"n": 3})
    assert ChainWriter(path).count == 3


def test_a_chain_that_became_shorter_than_its_known_position_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with ChainWriter(str(path)) as first:
        first.append({"n": 1})
        first.append({"n": 2})
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(EvidenceError, match="records are gone"):
        ChainWriter(str(path), known=first.position)
    assert ChainWriter(str(path)).count == 1  # control: who knows nothing can't tell


@pytest.mark.system
def test_a_killed_writer_leaves_a_chain_that_can_be_continued(tmp_path: Path) -> None:
    path = tmp_path / "c"
    probe = (
        "import os, sys; from ringfence.evidence.chainfile import ChainWriter\n"
        "w = ChainWriter(sys.argv[1], fsync_every_records=0)\n"
        "for n in range(50): w.append({'n': n})\n"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", probe, str(path)]).returncode == -9
    with ChainWriter(str(path)) as writer:
        assert writer.count == 50


def test_a_link_or_fifo_in_place_of_the_chain_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(EvidenceError):
            ChainWriter(str(tmp_path / name))


@pytest.mark.parametrize(("every", "expected"), [(0, 1), (1, 21), (7, 3)])
def test_the_fsync_policy_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int, expected: int
) -> None:
    calls = []
    writer = ChainWriter(str(tmp_path / "c"), fsync_every_records=every)
    monkeypatch.setattr(chainfile.os, "fsync", calls.append)
    for record in RECORDS:
        writer.append(record)
    writer.close()
    assert len(calls) == expected


@pytest.mark.system
def test_a_full_disk_is_said_and_leaves_no_half_record(tmp_path: Path) -> None:
    path = tmp_path / "c"
    probe = (
        "import os, resource, sys; from ringfence.evidence.chainfile import ChainWriter\n"
        "from ringfence.errors import EvidenceError\n"
        "w = ChainWriter(sys.argv[1]); w.append({'n': 0}); size = os.stat(sys.argv[1]).st_size\n"
        "limits = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))\n"
        "try: w.append({'n': 1})\n"
        "except EvidenceError as error: print(error)\n"
        "print(os.stat(sys.argv[1]).st_size - size)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, limits)\n"
        "w.append({'n': 2}); w.close()"
    )
    done = subprocess.run([sys.executable, "-c", probe, str(path)], capture_output=True, text=True)
    assert "cannot append" in done.stdout
    assert done.stdout.endswith("\n0\n")
    assert summary(path) == chain.check(chain.link([{"n": 0}, {"n": 2}]))


def test_a_failed_sync_ends_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = ChainWriter(str(tmp_path / "c"))

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(chainfile.os, "fsync", fail)
    with pytest.raises(EvidenceError, match="cannot sync"):
        writer.append(RECORDS[0])
    with pytest.raises(EvidenceError, match="closed"):
        writer.append(RECORDS[1])


def test_a_record_cannot_bring_its_own_chain_or_be_endless(tmp_path: Path) -> None:
    with ChainWriter(str(tmp_path / "c")) as writer:
        with pytest.raises(UsageError):
            writer.append({"chain": "x"})
        with pytest.raises(EvidenceError, match="too long"):
            writer.append({"x": "y" * chain.MAX_LINE_BYTES})
        writer.append({"x": 1})
    assert summary(tmp_path / "c").count == 1


def write_long_chain(path: Path, count: int) -> None:
    head = chain.GENESIS
    with open(path, "wb") as file:
        for number in range(count):
            body = b'{"n":%d,"text":"something happened"' % number
            head = hashlib.sha256(head.encode() + body + b"}").hexdigest()
            file.write(body + b',"chain":"' + head.encode() + b'"}\n')


def peak_kib(path: Path, collect: str = "") -> int:
    """Peak memory of a process of its own that verifies a chain; ``collect`` is what else it does."""
    probe = (
        "import re, sys; from ringfence.evidence import chain; kept = []\n"
        f"with open(sys.argv[1], 'rb') as stream: {collect or 'chain.check_stream(stream)'}\n"
        # not ru_maxrss: that one is inherited from the parent across exec
        r"print(re.search(r'VmHWM:\s*(\d+)', open('/proc/self/status').read())[1])"
    )
    done = subprocess.run([sys.executable, "-c", probe, str(path)], capture_output=True, check=True)
    return int(done.stdout)


@pytest.mark.long
@pytest.mark.system
def test_200_000_records_verify_in_the_memory_of_1000(tmp_path: Path) -> None:
    few, many = tmp_path / "few", tmp_path / "many"
    write_long_chain(few, 1_000)
    write_long_chain(many, 200_000)
    assert peak_kib(many) < peak_kib(few) + 3_000
    # The control: a reader that keeps only the lines does show.
    assert peak_kib(many, "kept = stream.readlines()") > peak_kib(few) + 20_000


@pytest.mark.slow
def test_verifying_10_000_records_allocates_no_more_than_100(tmp_path: Path) -> None:
    write_long_chain(tmp_path / "c", 10_000)
    peaks = []
    for count in (100, 10_000):
        with open(tmp_path / "c", "rb") as file:
            stream = io.BytesIO(b"".join(next(file) for _ in range(count)))
        tracemalloc.start()
        assert chain.check_stream(stream).count == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + (16 << 10)


def test_an_endless_line_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with open(path, "wb") as file:
        file.truncate(1 << 30)
    tracemalloc.start()
    with open(path, "rb") as stream, pytest.raises(EvidenceError, match="too long"):
        chain.check_stream(stream)
    with pytest.raises(EvidenceError, match="too long"):
        ChainWriter(str(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


def test_a_chain_line_is_read_as_strictly_as_a_bundle() -> None:
    body = json.dumps({"a": 1, "chain": chain.link([{"a": 1}])[0]["chain"]})
    assert chain.check_stream(io.BytesIO(body.encode() + b"\n")).count == 1
    for bad in (body.replace('"a": 1', '"a": 2, "a": 1'), body.replace('"a": 1', '"a": NaN'), "[]", "{}", ""):
        with pytest.raises(EvidenceError):
            chain.check_stream(io.BytesIO(bad.encode() + b"\n"))
