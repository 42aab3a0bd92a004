"""The recorder: bounded under any flood, honest about anything missing, and never in the guest's way."""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import sys
from collections.abc import Callable, Mapping

import pytest

from ringfence.kernel.recorder import BUDGETS, HIDDEN, NOTED, OUTWARD, REFUSED, Attempt, Budget, Recorder, as_rows
from ringfence.kernel.seccomp.responder import is_outward
from ringfence.model.record import replace
from ringfence.transport import wire

pytestmark = pytest.mark.unmeasured


def attempt(
    number: int = 0, *, path: str = "/oracle/a", operation: str = "open", argv: str = "cat", aim: str = HIDDEN
) -> Attempt:
    return Attempt(
        time_ns=number, wall_ns=number, operation=operation, path=path, argv=(argv,),
        root="/oracle" if aim == HIDDEN else "", errno=0 if aim in (NOTED, OUTWARD) else errno.ENOENT,
        outward=aim == OUTWARD,
    )  # fmt: skip


def budgets(names: int, full: int) -> dict[str, Budget]:
    return dict.fromkeys(BUDGETS, Budget(names=names, full=full))


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_first_are_kept_in_full_and_the_rest_counted_by_operation_and_path() -> None:
    recorder = Recorder(budgets=budgets(9, 2))
    for number in range(10):
        recorder.record(attempt(number, operation="open" if number % 2 else "stat"))
    assert [kept.time_ns for kept in recorder.attempts] == [0, 1]
    rows = {(row.operation, row.path): (row.count, row.first_ns, row.last_ns) for row in recorder.summary}
    assert rows == {("stat", "/oracle/a"): (4, 2, 8), ("open", "/oracle/a"): (4, 3, 9)}
    health = recorder.close()
    assert (health.total, health.kept, health.summarised, health.uncategorised) == (10, 2, 8, 0)
    assert health.complete and not health.clean


@pytest.mark.long
@pytest.mark.slow
def test_a_million_attempts_on_a_million_paths_stay_in_bounded_memory_and_are_all_counted() -> None:
    recorder = Recorder()
    before_bytes = resident_bytes()
    for number in range(1_000_000):
        recorder.record(attempt(number, path=f"/oracle/{number}"))
    grown_bytes = resident_bytes() - before_bytes
    health = recorder.close()
    assert health.total == 1_000_000 == health.kept + health.summarised + health.uncategorised
    assert (health.kept, health.unnamed) == (BUDGETS[HIDDEN].names, 1_000_000 - BUDGETS[HIDDEN].names)
    assert not health.complete, "what is not named is not accounted for"
    (row,) = recorder.summary
    assert (row.aim, row.path, row.count, row.named) == (HIDDEN, "/oracle", health.unnamed, False)
    assert grown_bytes < 8 << 20


def test_detail_is_wanted_only_while_records_are_kept_in_full() -> None:
    recorder = Recorder(budgets=budgets(2, 1))
    first, other = attempt(), attempt(path="/oracle/b")
    assert recorder.wants(HIDDEN, first.key)
    recorder.record(first)
    assert not recorder.wants(HIDDEN, first.key) and recorder.wants(HIDDEN, other.key)


@pytest.mark.parametrize("aim", [REFUSED, OUTWARD, NOTED, HIDDEN])
def test_no_flood_keeps_the_first_attempt_on_another_hidden_path_from_being_told(aim: str) -> None:
    told: list[Mapping[str, object]] = []
    recorder = Recorder(write=told.append)
    for number in range(5000):
        recorder.record(attempt(number, aim=aim, path="/oracle/decoy"))
    for operation in ("open", "stat"):
        recorder.record(attempt(operation=operation, path="/oracle/key"))
    assert [(row["operation"], row["aim"]) for row in told if row["path"] == "/oracle/key"] == [
        ("open", HIDDEN), ("stat", HIDDEN)
    ]  # fmt: skip
    assert recorder.close().complete, "the rest was told once and is counted"


def test_to_write_is_another_attempt_than_to_read() -> None:
    told: list[Mapping[str, object]] = []
    recorder = Recorder(write=told.append)
    read = attempt()
    for _ in range(1000):
        recorder.record(read)
    recorder.record(replace(read, writes=True))
    assert told[-1]["writes"] is True


@pytest.mark.parametrize(("aim", "complete"), [(HIDDEN, False), (REFUSED, False), (OUTWARD, True), (NOTED, True)])
def test_more_kinds_than_there_is_room_for_are_counted_and_only_allowed_ones_are_forgiven(
    aim: str, complete: bool
) -> None:
    recorder = Recorder(budgets=budgets(3, 3))
    for number in range(10):
        recorder.record(attempt(number, aim=aim, path=f"/oracle/{number}"))
    health = recorder.close()
    assert (health.total, health.kept, health.uncategorised, health.complete) == (10, 3, 7, complete)
    assert recorder.totals() == {aim: 10}
    assert [(row["aim"], row["count"], row["named"]) for row in as_rows(recorder.summary)] == [(aim, 7, False)]


def test_the_summary_fits_into_one_frame_and_hidden_paths_come_first() -> None:
    recorder = Recorder(budgets=budgets(5000, 0))
    for aim in (NOTED, REFUSED, HIDDEN):
        for number in range(2000):
            for _ in range(2):
                recorder.record(attempt(aim=aim, path=f"/oracle/{number}/" + "\U0001f600" * 300))
    rows = as_rows(recorder.summary)
    assert len(rows) > 10 and len(json.dumps(rows)) < 40_000 and {row["aim"] for row in rows} == {HIDDEN}


def test_connections_of_a_sandbox_with_itself_take_no_room_from_those_outwards() -> None:
    told: list[Mapping[str, object]] = []
    recorder = Recorder(write=told.append)
    for number in range(5000):
        recorder.record(attempt(aim=NOTED, operation="connect", path=f"127.0.0.1:{number}"))
    recorder.record(attempt(aim=OUTWARD, operation="connect", path="192.0.2.7:443"))
    assert (told[-1]["aim"], told[-1]["path"]) == (OUTWARD, "192.0.2.7:443")


def test_repeats_do_not_cut_off_what_was_not_named() -> None:
    recorder = Recorder(budgets=budgets(100, 0))
    for number in range(100):
        for _ in range(2):
            recorder.record(attempt(path=f"/oracle/{number}/" + "x" * 900))
    for number in range(101):
        recorder.record(attempt(aim=OUTWARD, operation="connect", path=f"192.0.2.7:{number}"))
    first = as_rows(recorder.summary)[0]
    assert (first["aim"], first["count"], first["named"]) == (OUTWARD, 1, False)


@pytest.mark.parametrize(("family", "address", "outward"), [
    (socket.AF_INET, "192.0.2.7", True), (socket.AF_INET, "127.5.6.7", False), (socket.AF_INET, "0.0.0.0", False),
    (socket.AF_INET6, "2001:db8::1", True), (socket.AF_INET6, "::1", False), (socket.AF_INET6, "::", False),
    (socket.AF_INET6, "::ffff:127.0.0.1", False), (socket.AF_INET6, "::ffff:192.0.2.7", True),
    (socket.AF_INET6, "::ffff:0.0.0.0", False), (socket.AF_INET6, "1::1", True),
])  # fmt: skip
def test_an_address_is_outward_unless_it_is_the_sandboxs_own(family: int, address: str, outward: bool) -> None:
    head = int(family).to_bytes(2, sys.byteorder) + (443).to_bytes(2, "big") + bytes(4 * (family == socket.AF_INET6))
    raw = head + socket.inet_pton(family, address) + bytes(8)
    assert is_outward(raw) is outward
    assert not is_outward(raw[:7]) and not is_outward(b"") and not is_outward(b"\1\0/some/path")


def test_nothing_recorded_and_nothing_lost_is_clean() -> None:
    assert Recorder().close().clean


@pytest.mark.parametrize("reason", ["lost", "late", "unwritten"])
def test_anything_lost_late_or_unwritten_is_never_clean_nor_complete(reason: str) -> None:
    def full_disk(record: Mapping[str, object]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    recorder = Recorder(write=full_disk)
    if reason == "lost":
        recorder.lose(3, "the device failed")
    elif reason == "late":
        recorder.close()
        recorder.record(attempt())
    else:
        recorder.record(attempt())
    health = recorder.health
    assert getattr(health, reason) > 0
    assert not health.complete and not health.clean
    assert len(health.problems) == 1


def test_a_full_disk_is_reported_once_and_the_records_stay() -> None:
    disk = os.open("/dev/full", os.O_WRONLY)
    recorder = Recorder(write=lambda record: _append(disk, record), budgets=budgets(50, 50))
    for number in range(100):
        recorder.record(attempt(number))
    os.close(disk)
    health = recorder.close()
    assert (health.unwritten, health.kept, health.total) == (50, 50, 100)
    assert health.problems == ("a record could not be written: [Errno 28] No space left on device",)


def _append(file: int, record: Mapping[str, object]) -> None:
    os.write(file, json.dumps(dict(record)).encode())


def test_losing_nothing_is_not_a_problem() -> None:
    recorder = Recorder()
    recorder.lose(0, "no reason")
    assert recorder.close().clean


def test_the_reasons_are_bounded_too() -> None:
    recorder = Recorder()
    for number in range(1000):
        recorder.lose(1, f"reason {number}")
    assert len(recorder.health.problems) == 8
    assert recorder.health.lost == 1000


def test_a_record_is_plain_json_whatever_the_names() -> None:
    written: list[Mapping[str, object]] = []
    recorder = Recorder(write=written.append)
    recorder.record(attempt(2**62, path="/oracle/\udcff\udc80é", argv="\udcfe"))
    record = json.loads(json.dumps(dict(written[0]), ensure_ascii=False).encode())
    assert (record["path"], record["argv"]) == ("/oracle/\\xff\\x80é", ["\\xfe"])
    assert record["time_ns"] == str(2**62)


def test_long_text_of_the_guest_s_choice_is_cut_so_that_a_record_fits_into_one_write() -> None:
    long = Attempt(
        time_ns=2**62, wall_ns=2**62, operation="open", path="/oracle/" + "p" * 5000, asked="a" * 5000, errno=2,
        argv=("python", "-c", "x" * 5000, "lost", "words"),
    )  # fmt: skip
    written = long.as_record()
    assert len(json.dumps(written)) < 4096 - 64
    assert str(written["path"]).startswith("/oracle/ppp") and str(written["path"]).endswith("…")
    assert written["argv"][:2] == ["python", "-c"] and written["argv"][-1] == "…"  # type: ignore[index]
    short = attempt(argv="short").as_record()
    assert short["path"] == "/oracle/a" and short["argv"] == ["short"]


_HOSTILE = ("\U0001f600", "\udcff", "\0", "\x01", "\\", '"', "é", "\u2028")


@pytest.mark.parametrize("character", _HOSTILE)
@pytest.mark.parametrize("length", (1, 60, 600, 5000))
def test_a_record_fits_into_one_write_however_its_characters_are_written(character: str, length: int) -> None:
    text = character * length
    for argv in ((text,), (text,) * 64, ("",) * 64):
        hostile = Attempt(
            time_ns=2**63, wall_ns=2**63, operation="name_to_handle_at", path="/oracle/" + text, root="/oracle",
            errno=-1, pid=2**22, uid=2**32, start_ticks=2**63, comm=text[:64], argv=argv, asked=text, writes=True,
            syscall="name_to_handle_at",
        )  # fmt: skip
        record = hostile.as_record()
        assert len(wire.frame(wire.NOTED, json.dumps(record).encode())) <= select.PIPE_BUF
        assert str(record["path"]).startswith("/oracle/")


def test_what_a_mechanism_can_t_see_is_part_of_the_health() -> None:
    recorder = Recorder()
    assert recorder.health.caveat == ""
    recorder.caveat = "blind at night"
    assert recorder.close().caveat == "blind at night"


def test_a_new_page_has_all_the_room_and_none_of_the_counts_of_the_one_before() -> None:
    recorder = Recorder(budgets=budgets(names=1, full=1))
    for path in ("/oracle/a", "/oracle/b"):
        recorder.record(attempt(path=path))
    recorder.lose(3, "gone")
    assert recorder.health.unnamed == 1 and recorder.health.lost == 3
    recorder.turn_page()
    assert recorder.health.clean and recorder.totals() == {} and recorder.summary == ()
    assert recorder.wants(HIDDEN, attempt(path="/oracle/b").key), "what the page before had told is told again"
    recorder.record(attempt(path="/oracle/b"))
    assert recorder.health.kept == 1 and recorder.health.complete


def test_a_record_names_the_visit_only_where_there_is_one() -> None:
    assert "visit" not in attempt().as_record()
    assert replace(attempt(), visit=7).as_record()["visit"] == 7


@pytest.mark.parametrize("change", [
    lambda recorder: recorder.record(attempt()),
    lambda recorder: recorder.record(attempt(aim=NOTED)),
    lambda recorder: recorder.record(attempt(aim=OUTWARD)),
    lambda recorder: recorder.record(attempt(aim=REFUSED)),
    lambda recorder: recorder.lose(1, "gone"),
    lambda recorder: setattr(recorder, "caveat", "not all calls"),
    lambda recorder: (recorder.close(), recorder.record(attempt())),
], ids=["hidden", "noted", "outward", "refused", "lost", "caveat", "late"])  # fmt: skip
def test_it_is_blank_only_as_long_as_it_has_nothing_to_say(change: Callable[[Recorder], object]) -> None:
    recorder = Recorder()
    assert recorder.is_blank and (recorder.health.clean, recorder.totals(), recorder.summary) == (True, {}, ())
    change(recorder)
    assert not recorder.is_blank
