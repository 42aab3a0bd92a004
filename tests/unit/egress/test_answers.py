"""What a gateway says is believed only where each field is what it must be."""

from __future__ import annotations

import json
import os
import socket
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.egress import client
from ringfence.egress.answers import Garbled, checked
from ringfence.transport import passing

EVENT = {"decision": "allowed", "protocol": "tls", "name": "a.example.com", "address": "192.0.2.1", "port": 443,
         "rule": "a.example.com", "reason": "", "bytes_out": 1, "bytes_in": 2, "duration_ms": 3, "process": "",
         "time_s": 4.5}  # fmt: skip


def line(answer: object) -> bytes:
    return json.dumps(answer).encode()


def test_an_event_passes_as_it_is() -> None:
    assert checked(line({"event": EVENT})) == {"event": EVENT}


def test_control_characters_do_not_reach_a_terminal() -> None:
    reason = checked(line({"event": EVENT | {"reason": "a\x1b[31m\nb"}}))["event"]["reason"]
    assert reason.isprintable() and "[31m" in reason


@pytest.mark.parametrize("change", [
    {"decision": "granted"}, {"protocol": 3}, {"name": None}, {"name": "x" * 5000}, {"port": 70000}, {"port": True},
    {"port": "443"}, {"bytes_out": -1}, {"bytes_in": 1.5}, {"bytes_in": 1 << 70}, {"time_s": "now"},
    {"time_s": float("nan")}, {"time_s": 10**400}, {"time_s": float("inf")}, {"time_s": -1}, {"more": 1},
])  # fmt: skip
def test_a_field_that_is_wrong_is_not_believed(change: dict[str, object]) -> None:
    with pytest.raises(Garbled):
        checked(line({"event": EVENT | change}))


@pytest.mark.parametrize("answer", [
    {}, [], "ready", {"ready": False}, {"ready": 1}, {"open": "all"}, {"ready": True, "ca": "x"}, {"totals": {}},
    {"counts": {}}, {"counts": {"connections": -1, "bytes_out": 0, "bytes_in": 0}},
    {"ca": "-----BEGIN PRIVATE KEY-----\n"}, {"ca": "x"}, {"event": {}}, {"failed": 3},
])  # fmt: skip
def test_an_answer_that_there_is_not_is_not_believed(answer: object) -> None:
    with pytest.raises(Garbled):
        checked(line(answer))


@given(st.binary(max_size=200) | st.just(b"[" * 100_000))
def test_no_line_raises_anything_else(data: bytes) -> None:
    try:
        checked(data)
    except Garbled:
        pass


# ---- of a gateway that has ended

TOTALS = {"connections": 0, "refused": 1, "bytes_out": 0, "bytes_in": 0, "uncounted": 0}


def _ended(*answers: object) -> client.Registration:
    """At a gateway that has said this and is gone; nobody has read it yet."""
    door, theirs = passing.channel()
    made = client.Registration(SimpleNamespace(pid=os.getpid(), door=door))  # type: ignore[arg-type]
    _, (listeners, dialogue) = passing.receive(theirs)
    with socket.socket(fileno=dialogue) as said:
        said.sendall(b"".join(line(answer) + b"\n" for answer in answers))
    for descriptor in (door, theirs, listeners):
        os.close(descriptor)
    return made


def test_what_a_gateway_has_said_before_its_end_counts() -> None:
    made = _ended({"event": EVENT}, {"totals": TOTALS})
    assert made.close() == [EVENT]
    assert made.totals == TOTALS and not made.lost


def test_a_gateway_that_ended_without_its_last_word_is_lost_but_its_events_are_not() -> None:
    made = _ended({"event": EVENT})
    assert made.close() == [EVENT]
    assert made.totals is None and "has ended" in made.lost
