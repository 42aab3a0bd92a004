"""The FUSE protocol against a made-up kernel: a socket pair in place of the device."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ringfence.kernel.tripwire import fuse_wire as wire
from ringfence.kernel.tripwire import serve as tripwire
from ringfence.kernel.tripwire.fuse_wire import Op
from ringfence.kernel.tripwire.layout import FILE_MODE, FOLDER_MODE, LINK_MODE, Entry, Veil, lay_out
from ringfence.kernel.tripwire.serve import Tripwire

ENTRIES = (
    Entry(name=b"file", mode=FILE_MODE),
    Entry(name=b"folder", mode=FOLDER_MODE),
    Entry(name=b"link", mode=LINK_MODE, target=b"over/there"),
)
LAYOUT = lay_out(
    veils=[
        Veil(folder=b"/etc", hidden=frozenset((b"shadow",)), visible=ENTRIES),
        Veil(folder=b"/srv", hidden=frozenset((b"keys",))),
    ],
    spots=[(b"/proc/1/mem", FILE_MODE)],
)
VEIL = next(number for number, node in LAYOUT.nodes.items() if node.path == b"/etc")
OTHER = next(number for number, node in LAYOUT.nodes.items() if node.path == b"/srv")
SPOT = next(number for number, node in LAYOUT.nodes.items() if node.spot)
NOBODY = 999
LINK = next(number for number, node in LAYOUT.nodes.items() if node.path == b"/etc/link")


@dataclass
class Kernel:
    end: socket.socket
    tripwire: Tripwire

    def ask(self, op: int, node: int = VEIL, body: bytes = b"", unique: int = 9) -> tuple[int, bytes]:
        """(errno, payload) of the answer."""
        header = struct.pack("=IIQQIIIHH", 40 + len(body), op, unique, node, 0, 0, 0, 0, 0)
        self.end.send(header + body)
        self.attempts = self.tripwire.handle()
        answer = self.end.recv(1 << 17)
        length, error, answered = struct.unpack_from("=IiQ", answer)
        assert (length, answered) == (len(answer), unique)
        return -error, answer[16:]

    def silent(self) -> bool:
        try:
            self.end.recv(1 << 17)
        except BlockingIOError:
            return True
        return False


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = make_kernel()
    yield made
    made.end.close()
    made.tripwire.close()


def make_kernel() -> Kernel:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return Kernel(ours, Tripwire(theirs.detach(), LAYOUT, mounter=os.getpid()))


def init(major: int, minor: int) -> bytes:
    return struct.pack("=IIII", major, minor, 4096, 0xFFFFFFFF) + bytes(48)


@pytest.mark.parametrize("minor", range(wire.OLDEST_MINOR, 60))
def test_the_handshake_speaks_every_minor_in_the_size_that_it_expects(kernel: Kernel, minor: int) -> None:
    error, payload = kernel.ask(Op.INIT, 0, init(7, minor))
    assert error == 0
    assert len(payload) == (64 if minor >= 23 else 24)
    assert struct.unpack_from("=II", payload) == (7, min(minor, 31))
    flags, max_write = struct.unpack_from("=I4xI", payload, 12)
    assert max_write >= 4096
    no_open, no_opendir = 1 << 17, 1 << 24
    assert not flags & (no_open | no_opendir)


def test_a_newer_major_is_asked_to_come_down_and_an_older_protocol_is_refused(kernel: Kernel) -> None:
    assert struct.unpack_from("=II", kernel.ask(Op.INIT, 0, init(8, 0))[1]) == (7, 31)
    assert kernel.ask(Op.INIT, 0, init(7, wire.OLDEST_MINOR - 1)) == (errno.EPROTO, b"")
    assert kernel.ask(Op.INIT, 0, init(6, 99)) == (errno.EPROTO, b"")


def test_the_handshake_asks_for_nothing_that_the_kernel_did_not_offer(kernel: Kernel) -> None:
    _, payload = kernel.ask(Op.INIT, 0, struct.pack("=IIII", 7, 31, 0, 1 << 13) + bytes(48))
    assert struct.unpack_from("=I", payload, 12) == (1 << 13,)


@pytest.mark.parametrize("op", [Op.FORGET, Op.BATCH_FORGET, Op.INTERRUPT])
def test_requests_that_want_no_answer_get_none(kernel: Kernel, op: int) -> None:
    body = bytes(16)
    kernel.end.send(struct.pack("=IIQQIIIHH", 40 + len(body), op, 9, VEIL, 0, 0, 0, 0, 0) + body)
    assert kernel.tripwire.handle() == []
    assert kernel.silent() and kernel.tripwire.lost == 0
    assert kernel.ask(Op.DESTROY) == (0, b"")


@pytest.mark.parametrize("op", [7, 19, 53, 54, 999, 4096, 2**31])
def test_unknown_requests_are_not_implemented(kernel: Kernel, op: int) -> None:
    assert kernel.ask(op, VEIL, b"shadow\0")[0] == errno.ENOSYS
    assert kernel.attempts == []


WITH_NAMES = sorted(wire._NAME_OFFSET)


@pytest.mark.parametrize("op", WITH_NAMES)
def test_every_request_that_names_a_hidden_place_is_refused_and_recorded(kernel: Kernel, op: int) -> None:
    body = bytes(wire._NAME_OFFSET[op]) + b"shadow\0other\0"
    error, answer = kernel.ask(op, VEIL, body)
    assert error in (errno.ENOENT, errno.EROFS) and answer == b""
    assert {(attempt.path, attempt.errno) for attempt in kernel.attempts} == {("/etc/shadow", error)}
    assert {attempt.operation for attempt in kernel.attempts} == {wire.KNOWN_OPS[op]}
    plain = kernel.ask(op, VEIL, body.replace(b"shadow", b"absent"))
    assert kernel.attempts == [], "the control"
    assert op == Op.LOOKUP or plain[0] == error, "as for a name that never was"


@pytest.mark.parametrize("op", sorted(set(wire.KNOWN_OPS) - wire.SILENT_OPS - {Op.INIT, Op.DESTROY}))
def test_what_is_not_there_answers_absent_to_every_request(kernel: Kernel, op: int) -> None:
    assert kernel.ask(op, NOBODY, bytes(16) + b"name\0other\0") == (errno.ENOENT, b"")
    assert kernel.attempts == []


def test_who_opens_a_spot_is_refused_and_recorded_and_who_looks_at_it_is_not(kernel: Kernel) -> None:
    assert kernel.ask(Op.OPEN, node=SPOT, body=bytes(8))[0] == errno.EACCES
    (attempt,) = kernel.attempts
    assert (attempt.aim, attempt.operation, attempt.path) == ("process", "open", "/proc/1/mem")
    assert attempt.errno == errno.EACCES
    assert kernel.ask(Op.GETATTR, node=SPOT, body=bytes(16))[0] == 0 and kernel.attempts == []
    for mask, code in ((os.F_OK, 0), (os.R_OK, errno.EACCES), (os.W_OK, errno.EACCES)):
        assert kernel.ask(Op.ACCESS, node=SPOT, body=struct.pack("=II", mask, 0))[0] == code and kernel.attempts == []


def test_a_hidden_name_is_asked_for_every_time_and_a_plain_one_may_be_remembered(kernel: Kernel) -> None:
    assert kernel.ask(Op.LOOKUP, VEIL, b"shadow\0") == (errno.ENOENT, b"")
    assert [attempt.path for attempt in kernel.attempts] == ["/etc/shadow"]
    error, payload = kernel.ask(Op.LOOKUP, VEIL, b"nothing\0")
    node, _generation, entry_valid_s = struct.unpack_from("=QQQ", payload)
    assert (error, len(payload), node, kernel.attempts) == (0, 128, 0, [])
    assert entry_valid_s > 3600


def test_a_rename_tells_both_names(kernel: Kernel) -> None:
    body = struct.pack("=QII", OTHER, 0, 0) + b"shadow\0keys\0"
    assert kernel.ask(Op.RENAME2, VEIL, body)[0] == errno.EROFS
    assert [attempt.path for attempt in kernel.attempts] == ["/etc/shadow", "/srv/keys"]
    assert all(attempt.writes for attempt in kernel.attempts)


@pytest.mark.parametrize("window", [200, 400, 4096])
def test_a_listing_is_complete_whatever_the_window(kernel: Kernel, window: int) -> None:
    found, offset = [], 0
    while True:
        error, payload = kernel.ask(Op.READDIRPLUS, VEIL, struct.pack("=QQI12x", 0, offset, window))
        assert error == 0 and len(payload) <= window
        if not payload:
            break
        rows = list(_rows(payload))
        found += [name for name, _ in rows]
        offset = rows[-1][1]
    assert found == [b".", b"..", b"file", b"folder", b"link"]


def _rows(payload: bytes) -> Iterator[tuple[bytes, int]]:
    position = 0
    while position < len(payload):
        _ino, next_offset, length, _kind = struct.unpack_from("=QQII", payload, position + 128)
        yield payload[position + 152 : position + 152 + length], next_offset
        position += 128 + (24 + length + 7) // 8 * 8


def test_links_are_answered_and_nothing_else_is_readable(kernel: Kernel) -> None:
    assert kernel.ask(Op.READLINK, LINK) == (0, b"over/there")
    assert kernel.ask(Op.READLINK, VEIL)[0] == errno.ENOENT
    assert kernel.ask(Op.OPEN, LINK)[0] == errno.ENOENT


def test_extended_attributes_are_never_not_implemented(kernel: Kernel) -> None:
    """ENOSYS once, and the kernel would never ask again, at hidden places too."""
    for node in (VEIL, NOBODY, LINK):
        for op in (Op.GETXATTR, Op.LISTXATTR, Op.ACCESS, Op.OPEN, Op.OPENDIR, Op.CREATE):
            assert kernel.ask(op, node, bytes(24))[0] != errno.ENOSYS


@pytest.mark.parametrize("junk", [b"", b"x", bytes(39), struct.pack("=I", 41) + bytes(36)])
def test_what_is_no_request_is_counted_as_lost(kernel: Kernel, junk: bytes) -> None:
    if junk:
        kernel.end.send(junk)
        assert kernel.tripwire.handle() == []
        assert kernel.tripwire.lost == 1
    assert kernel.ask(Op.STATFS)[0] == 0


@pytest.mark.slow
@given(op=st.one_of(st.sampled_from(sorted(wire.KNOWN_OPS)), st.integers(0, 2**32 - 1)), node=st.integers(0, 12),
       body=st.binary(max_size=200))  # fmt: skip
@example(op=Op.ACCESS, node=VEIL, body=b"")
@example(op=Op.RENAME, node=OTHER, body=b"\0")
@example(op=Op.INIT, node=0, body=b"short")
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_request_is_answered_exactly_once_whatever_it_says(op: int, node: int, body: bytes) -> None:
    kernel = make_kernel()
    try:
        kernel.end.send(struct.pack("=IIQQIIIHH", 40 + len(body), op, 5, node, 0, 0, 0, 0, 0) + body)
        kernel.tripwire.handle()
        assert kernel.silent() == (op in wire.SILENT_OPS)
        assert kernel.silent()
        assert kernel.ask(Op.STATFS)[0] == 0
    finally:
        kernel.end.close()
        kernel.tripwire.close()


def test_one_turn_of_a_flood_gives_the_loop_back(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tripwire, "MAX_REQUESTS_PER_TURN", 10)
    for unique in range(25):
        kernel.end.send(struct.pack("=IIQQIIIHH", 47, Op.LOOKUP, unique, VEIL, 0, 0, 0, 0, 0) + b"shadow\0")
    assert [len(kernel.tripwire.handle()) for _ in range(4)] == [10, 10, 5, 0]


def test_a_device_that_ends_finishes_without_a_loss(kernel: Kernel) -> None:
    kernel.end.close()
    assert kernel.tripwire.handle() == []
    assert kernel.tripwire.finished
    kernel.tripwire.close()
    assert kernel.tripwire.handle() == []
    assert kernel.tripwire.lost == 0
