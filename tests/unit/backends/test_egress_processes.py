"""Which process a decision of the gateway is about: the last that asked for it before."""

from __future__ import annotations

from ringfence.backends.egress_processes import CallsSeen
from ringfence.model.network_list import read_rules

RULES = read_rules(["api.example.com", "www.example.com", "*.example.org", "192.0.2.1:5432"])


def _call(path: str, comm: str, at_s: float, operation: str = "connect") -> dict[str, object]:
    return {"operation": operation, "path": path, "comm": comm, "pid": 7, "wall_ns": str(int(at_s * 1e9))}


def _event(name: str, port: int, at_s: float, protocol: str = "tls", address: str = "192.0.2.9") -> dict[str, object]:
    return {"name": name, "port": port, "time_s": at_s, "protocol": protocol, "address": address}


def _seen(*calls: dict[str, object]) -> CallsSeen:
    seen = CallsSeen(RULES)
    seen.note(list(calls))
    return seen


def test_the_last_call_for_that_name_before_the_decision_is_meant() -> None:
    seen = _seen(_call("127.64.1.0:443", "curl", 1.0), _call("127.64.1.1:443", "git", 2.0),
                 _call("127.64.1.0:443", "later", 9.0))  # fmt: skip
    assert seen.process_of(_event("api.example.com", 443, 3.0)) == "curl (pid 7)"
    assert seen.process_of(_event("www.example.com", 443, 3.0)) == "git (pid 7)"
    assert seen.process_of(_event("api.example.com", 80, 3.0)) == ""


def test_addresses_wildcards_queries_and_the_proxy() -> None:
    seen = _seen(_call("192.0.2.1:5432", "psql", 1.0), _call("127.64.1.2:443", "pip", 2.0),
                 _call("127.64.0.1:53", "dig", 2.5, "sendto"), _call("127.64.0.2:3128", "node", 2.6))  # fmt: skip
    assert seen.process_of(_event("", 5432, 3.0, "tcp", "192.0.2.1")) == "psql (pid 7)"
    assert seen.process_of(_event("files.example.org", 443, 3.0)) == "pip (pid 7)"
    assert seen.process_of(_event("evil.example", 53, 3.0, "dns", "")) == "dig (pid 7)"
    assert seen.process_of(_event("evil.example", 443, 3.0, "connect")) == "node (pid 7)"


def test_what_is_no_call_or_has_no_time_is_nobodys() -> None:
    seen = _seen(_call("127.64.1.0:443", "x", 1.0, "openat"), {"operation": "connect", "path": None, "wall_ns": "x"},
                 {"operation": "connect", "path": "127.64.1.0:443", "wall_ns": "5", "pid": 0})  # fmt: skip
    assert seen.process_of(_event("api.example.com", 443, 3.0)) == ""
    assert seen.process_of({"name": "api.example.com", "port": 443, "time_s": "now"}) == ""


def test_a_decision_whose_call_is_reported_late_waits_for_it_once() -> None:
    seen, event = _seen(), _event("api.example.com", 443, 3.0)
    assert seen.named([event], heard_s=2.0) == []
    seen.note([_call("127.64.1.0:443", "curl", 2.5)])
    assert [row["process"] for row in seen.named([], heard_s=2.0)] == ["curl (pid 7)"]
    assert seen.named([], heard_s=2.0) == []


def test_a_decision_that_nobody_is_seen_to_ask_for_is_told_all_the_same() -> None:
    seen, event = _seen(), _event("api.example.com", 443, 3.0)
    assert seen.named([event], heard_s=2.0) == []
    assert [row["process"] for row in seen.named([], heard_s=2.0)] == [""]
    assert [row["process"] for row in seen.named([event], heard_s=3.0)] == [""], "everything has been reported"
    ours = {"decision": "ended", "protocol": "", "time_s": 4.0}
    assert seen.named([ours], heard_s=3.0) == [{**ours, "process": ""}], "about no connection"
