"""The step «listen» in a real sandbox: its sockets come out to who stands for the gateway; nobody inside has one."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from bench.process_tree import descendants

from ringfence import Job, SandboxPolicy, SetupError
from ringfence.backends import strict
from ringfence.backends.groups import GroupVisit
from ringfence.backends.strict import StrictBackend, StrictBox
from ringfence.engine.supervision import Listeners, supervise
from ringfence.model.record import replace
from ringfence.sandbox.networks import CERTIFICATES, GatewayPlan
from ringfence.steps import call_table
from ringfence.transport import passing

pytestmark = [pytest.mark.system, pytest.mark.privileges]

STRICT = SandboxPolicy(isolation="strict")
DNS = (("127.64.0.1", 53, "udp"), ("127.64.0.1", 53, "tcp"))
ROWS = (*DNS, ("127.64.1.0", 80, "tcp"), *(("127.64.2.0", port, "tcp") for port in range(1000, 1010)))
GATEWAY = GatewayPlan(rows=ROWS, resolver="127.64.0.1")
ASKING = """
import os, socket
for name in os.listdir('/proc/self/fd'):
    try: kind = os.readlink('/proc/self/fd/' + name)
    except OSError: continue
    if kind.startswith('socket:'): print('SOCKET', name)
link = socket.create_connection(('127.64.1.0', 80), 10)
print(link.recv(100).decode())
"""


class _Leading:
    """Starts jobs of a strict box with one more descriptor for their leader, as a box with a list does."""

    def __init__(
        self, box: StrictBox, listeners: int, gateway: GatewayPlan = GATEWAY, certificates: bytes = b""
    ) -> None:
        self._box, self._listeners, self._gateway, self._certificates = box, listeners, gateway, certificates
        self.enforced, self.traits = box.enforced, box.traits

    def start(self, job: Job, streams: tuple[int, ...]) -> GroupVisit:
        box = self._box
        box._prepare_disk(None)
        box._scratch.prepare(job)
        spec = box._adopted(box._spec(job))
        spec = replace(spec, root=replace(spec.root, gateway=self._gateway))
        request = box._request(spec, box._last(job, spec.program)) | {"egress": True}
        if self._certificates:
            request |= {"certificates": self._certificates}
        source = strict._zygote(spec, None)
        visit = GroupVisit(request, (*streams, self._listeners), source, box._cgroup)
        os.close(self._listeners)
        return visit


@contextmanager
def _sandbox() -> Iterator[StrictBox]:
    box = StrictBackend().open(STRICT)
    try:
        yield box  # type: ignore[misc]
    finally:
        box.close()


def _received(door: int) -> list[socket.socket]:
    """All sockets; the last message says that there are no more."""
    found: list[socket.socket] = []
    while True:
        kind, descriptors = passing.receive(door)
        found += [socket.socket(fileno=each) for each in descriptors]
        if kind == b"e":
            assert passing.receive(door) == (b"", []), "the leader keeps its end open"
            return found
        assert kind == b"s", kind


def _by(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way != "native":
        monkeypatch.setenv("RINGFENCE_PURE", "1")
    if way == "steps":
        monkeypatch.setattr(call_table, "compiled", lambda plan: [])


@pytest.mark.parametrize("way", ["native", "ctypes", "steps"])
def test_the_sockets_come_out_and_accept_there(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    _by(way, monkeypatch)
    ours, theirs = passing.channel()
    job = Job(argv=(sys.executable, "-I", "-S", "-c", ASKING))
    accepted: list[tuple[str, int]] = []

    def serve() -> None:
        sockets = _received(ours)
        names = [each.getsockname()[:2] for each in sockets]
        assert names == [row[:2] for row in ROWS]
        assert [each.type for each in sockets[:3]] == [socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_STREAM]
        sockets[2].settimeout(20)
        peer, _ = sockets[2].accept()
        accepted.append(peer.getsockname())
        peer.sendall(b"through")
        peer.close()
        for each in sockets:
            each.close()

    import threading

    thread = threading.Thread(target=serve)
    with _sandbox() as box:
        thread.start()
        outcome = supervise(_Leading(box, theirs), job, STRICT, partial=False, listeners=Listeners())
        thread.join(20)
    os.close(ours)
    assert outcome.stdout == b"through\n", outcome
    assert accepted == [("127.64.1.0", 80)]


def test_a_gateway_that_is_gone_is_a_failed_step_and_no_job_runs() -> None:
    ours, theirs = passing.channel()
    os.close(ours)
    with _sandbox() as box, pytest.raises(SetupError) as failed:
        supervise(_Leading(box, theirs), Job(argv=("true",)), STRICT, partial=False, listeners=Listeners())
    assert failed.value.step == "listen" and "gateway" in str(failed.value)


@pytest.mark.parametrize("way", ["native", "steps"])
def test_the_sandbox_has_the_authorities_that_were_sent_for_it(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    _by(way, monkeypatch)
    ours, theirs = passing.channel()
    inspected = replace(GATEWAY, rows=ROWS[:3], inspected=True)
    script = f"cat {CERTIFICATES}; stat -c %a {CERTIFICATES}; echo x >> {CERTIFICATES} || echo refused"
    with _sandbox() as box:
        leading = _Leading(box, theirs, inspected, b"PEM\n")
        outcome = supervise(leading, Job(argv=("sh", "-c", script)), STRICT, partial=False, listeners=Listeners())
    os.close(ours)
    assert outcome.stdout == b"PEM\n444\nrefused\n", outcome


@pytest.mark.root
def test_nobody_of_the_sandbox_holds_the_way_to_the_gateway() -> None:
    """Who has it could hand the gateway a socket of its own, or accept in its place."""
    ours, theirs = passing.channel()
    number = os.fstat(theirs).st_ino
    seen: list[list[str]] = []

    def attach(visit: GroupVisit, _: object) -> None:
        for each in _received(ours):
            each.close()
        seen.append([_held(pid) for pid in descendants() if f"socket:[{number}]" in _held(pid)])

    with _sandbox() as box:
        job = Job(argv=("sleep", "0.2"))
        outcome = supervise(_Leading(box, theirs), job, STRICT, partial=False, listeners=Listeners(attach=attach))
    os.close(ours)
    assert outcome.ok and seen == [[]]


def _held(pid: int) -> str:
    try:
        return " ".join(os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return ""


def test_sockets_that_come_after_the_last_are_not_passed_on() -> None:
    """What a guest that got hold of the door would send."""
    from ringfence.roles.sandbox_end import SandboxEnd
    from ringfence.steps.state import LAST_SOCKET, SOCKETS

    heard = {"profile": "default", "ids": (1000, 1000), "watched": [], "wired": False, "share": 0.0, "witness": {}}
    end = SandboxEnd({"heard": heard, "limits": {}, "plan": [], "scratch": ""}, lambda attempt: None)  # type: ignore
    ours, end.listeners = passing.channel()
    with closing(socket.socket()) as one:
        for kind, sockets in ((SOCKETS, [one.fileno()]), (LAST_SOCKET, []), (SOCKETS, [one.fileno()])):
            passing.send(end._theirs, kind, sockets)
            assert end.receive_handover()
    received = _received(ours)
    assert len(received) == 1
    for each in (*(one.detach() for one in received), ours, end.status, end._told, end.door, end._theirs):
        os.close(each)
