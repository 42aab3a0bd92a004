"""events.jsonl: a chain that says of each event when, who, with which arguments, and what came of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attested import attempt, decided, event
from hypothesis import given, settings
from hypothesis import strategies as some

from ringfence.attest.event_log import as_record, write_events
from ringfence.attest.plain import Plain, shown
from ringfence.errors import EvidenceError
from ringfence.evidence import chain
from ringfence.evidence.canonical import canonical
from ringfence.model.events import Event, EventKind


def test_the_log_is_a_chain_with_the_head_and_count_that_are_told(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    count, head = write_events(str(path), [event(EventKind.START, argv=["make"]), attempt(), decided()])
    with path.open("rb") as file:
        found = chain.check_stream(file)
    assert (found.count, found.head) == (count, head) and count == 3
    assert path.stat().st_mode & 0o777 == 0o600


def test_no_events_are_an_empty_chain(tmp_path: Path) -> None:
    assert write_events(str(tmp_path / "events.jsonl"), ()) == (0, chain.GENESIS)


def test_each_line_says_when_who_with_what_and_with_which_result() -> None:  # shortcoming 10
    line = as_record(attempt())
    assert line["time"] == "2026-11-06T21:20:00.500000Z" and line["kind"] == "violation"
    assert (line["process"], line["pid"], line["argv"]) == ("cat", 7, ["cat", "/oracle/answer"])
    assert line["result"] == "ENOENT"
    assert as_record(attempt(errno=-1))["result"] == "not known"


def test_every_decision_of_the_gateway_is_told_also_what_was_allowed() -> None:  # shortcoming 11
    refused, allowed = as_record(decided()), as_record(decided(decision="allowed", rule="*.example:443"))
    assert (refused["result"], refused["process"]) == ("refused", "curl (pid 9)")
    assert allowed["result"] == "allowed"
    details = allowed["details"]
    assert isinstance(details, dict) and details["name"] == "evil.example" and details["rule"] == "*.example:443"


@pytest.mark.parametrize(("kind", "details", "result"), [
    (EventKind.START, {"argv": ["x"]}, "started"),
    (EventKind.LIMIT, {"capability": "memory", "reason": "…"}, "memory"),
    (EventKind.EXIT, {"status": "TIMEOUT", "rc": 124}, "TIMEOUT"),
    (EventKind.EGRESS, {"operation": "connect", "path": "192.0.2.1:80", "errno": 0}, "went on"),
])  # fmt: skip
def test_events_of_every_kind_have_a_result(kind: EventKind, details: dict[str, object], result: str) -> None:
    assert as_record(event(kind, **details))["result"] == result


def test_a_log_is_never_written_over_another_nor_through_a_link(tmp_path: Path) -> None:
    there, link = tmp_path / "there", tmp_path / "link"
    there.write_bytes(b"")
    link.symlink_to(tmp_path / "elsewhere")
    for path in (there, link):
        with pytest.raises(EvidenceError, match="cannot write the events"):
            write_events(str(path), [attempt()])
    assert not (tmp_path / "elsewhere").exists()


def test_a_log_that_can_not_be_written_is_an_error(tmp_path: Path) -> None:  # shortcoming 7
    with pytest.raises(EvidenceError):
        write_events(str(tmp_path / "no" / "events.jsonl"), [attempt()])


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way out of the writer that did not write raises."""
    from ringfence.evidence import chainfile

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(chainfile.os, "fsync", full)
    with pytest.raises(EvidenceError, match="No space left"):
        write_events(str(tmp_path / "events.jsonl"), [attempt()])


@pytest.mark.parametrize("time_s", [float("nan"), float("inf"), 1e300, -1e300])
def test_an_event_without_a_time_is_an_error(time_s: float) -> None:
    with pytest.raises(EvidenceError, match="not an event time"):
        as_record(Event(kind=EventKind.START, run_id="x", time_s=time_s))


HOSTILE = ("\x1b]0;owned\x07", "\udcff\udcfe", "\ud800", "a\nb", "\u202egnp.exe", "\u009b2J", "\x7f", "x" * 300_000)


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:8]))
def test_texts_of_the_guest_are_bounded_and_steer_no_terminal(text: str, tmp_path: Path) -> None:
    hostile = attempt(comm=text, argv=[text] * 50, path=text, asked=text, **{"x" + text: {text: [text]}})
    path = tmp_path / "events.jsonl"
    write_events(str(path), [hostile, event(EventKind.START, argv=[text] * 100_000)])
    data = path.read_bytes()
    assert all(len(line) < chain.MAX_LINE_BYTES for line in data.splitlines())
    assert data.decode("utf-8").replace("\n", "").isprintable()
    assert len(data.splitlines()) == 2


def test_text_that_is_fine_stays_as_it_is() -> None:
    assert [shown(text) for text in ("plain", "änswer", "日本", "")] == ["plain", "änswer", "日本", ""]


_JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text() | some.binary(),
    lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner) | some.tuples(inner),
)


@pytest.mark.slow
@settings(max_examples=60)
@given(_JSON)
def test_anything_becomes_canonical_json(value: object) -> None:
    text = canonical(Plain().of(value)).decode("utf-8")
    json.loads(text)
    assert text.isprintable()


def test_huge_numbers_and_deep_values_are_cut() -> None:
    deep: object = "x"
    for _ in range(500):
        deep = [deep]
    found = Plain().of([10**5000, 2**60, deep])
    assert isinstance(found, list) and found[0] == f"a number of {(10**5000).bit_length()} bits"
    assert found[1] == str(2**60)
    canonical(found)


def test_the_time_of_an_event_is_the_recorders_own() -> None:
    assert as_record(event(EventKind.START))["time"] == "2026-11-06T21:20:00.250000Z"
