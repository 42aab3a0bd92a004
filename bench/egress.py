"""What does a network with a list cost: bytes, first bytes, many connections, many sandboxes, and a launch?

A static server on this host's loopback is asked by curl, directly and from a strict sandbox whose list has the server's
address. What only passes is spliced by the gateway; what is inspected ends in TLS there and begins anew. The figures of
transfers are curl's own, so no start of a process is in them.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ringfence
from bench.contenders import STRICT, Gathered, gather, run_strict
from bench.egress_server import ADDRESS
from bench.harness import Answer, Effort, NotHere, Table, Turn, compare, race, take_turns, timed_ms
from bench.process_tree import resident_bytes
from ringfence import IsolationLevel, SandboxPolicy

QUESTION = "A network with a list against none in between: transfers, first bytes, connections, sandboxes, launches"
DIRECT, PASSED, INSPECTED = "direct", "through the gateway", "through the gateway, inspected"
MIB = 2**20
_AUTHORITIES = "/tmp/authorities.pem"
# Says when so many connections stand that each has had an answer, and holds them until its input ends.
_MANY = """
import socket, sys, time
address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
start, links = time.perf_counter(), []
for _ in range(count):
    link = socket.create_connection((address, port))
    link.sendall(b'x')
    links.append(link)
for link in links:
    assert link.recv(1) == b'x'
print(time.perf_counter() - start, flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, kw_only=True)
class Server:
    ports: dict[str, int]
    authority: str

    def url(self, kind: str, path: str) -> str:
        return f"{'http' if kind == 'http' else 'https'}://{ADDRESS}:{self.ports[kind]}/{path}"

    def policy(self) -> SandboxPolicy:
        """All ports of the server; the requests to one of them are inspected."""
        passed = [f"{ADDRESS}:{self.ports[kind]}" for kind in ("http", "https", "echo")]
        inspected = {"host": ADDRESS, "ports": [self.ports["inspected"]], "methods": ["GET"]}
        rules: Any = [*passed, inspected]
        return SandboxPolicy(isolation=IsolationLevel.STRICT, network=rules, nofile=2048, cpu_time_s=3600)


def ask(effort: Effort) -> Answer:
    if not shutil.which("curl"):
        raise NotHere("there is no curl")
    size = effort.pick(1024, 256, 1) * MIB
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_server(size))
        stack.enter_context(_trusted(server.authority))
        box = stack.enter_context(_box(server))
        tables = [*_transfers(server, box, effort), *_first_bytes(server, box, effort)]
        connections, findings = _connections(server, box, effort.pick(1000, 1000, 20), effort.pick(5, 3))
        gathered = Gathered()
        launch = _launches(server, effort)
        sandboxes = _sandboxes(server, effort.pick(100, 30, 2), effort.pick(3, 1))
    return gathered.answer(*tables, connections, sandboxes, launch, findings=findings)


@contextlib.contextmanager
def _server(size: int) -> Iterator[Server]:
    command = [sys.executable, "-m", "bench.egress_server", str(size)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        authority = told.pop("ca")
        yield Server(ports=told, authority=authority)
    finally:
        process.communicate()


@contextlib.contextmanager
def _trusted(authority: str) -> Iterator[None]:
    """The gateway verifies servers; here it takes the one of this question for a server of the host's authorities."""
    from ringfence.backends import egress_link

    before = egress_link._bundle
    egress_link._bundle = authority.encode
    try:
        yield
    finally:
        egress_link._bundle = before


@contextlib.contextmanager
def _box(server: Server) -> Iterator[Any]:
    with ringfence.open(server.policy()) as box:
        box.put(_AUTHORITIES, server.authority.encode())
        yield box


# ---- transfers


def _curl(server: Server, kind: str, path: str, figure: str) -> list[str]:
    trust = ["--cacert", _AUTHORITIES] if kind == "https" else []
    return ["curl", "-sS", "-o", "/dev/null", *trust, "-w", f"%{{http_code}} %{{{figure}}}", server.url(kind, path)]


def _direct(server: Server, kind: str, path: str, figure: str) -> Turn:
    """From outside any sandbox. curl reads the certificates from its input, where there is no file of them."""
    command = [word.replace(_AUTHORITIES, "/dev/stdin") for word in _curl(server, kind, path, figure)]

    def once() -> float:
        told = subprocess.run(command, input=server.authority.encode(), capture_output=True, check=True).stdout
        return _told(told)

    return once


def _inside(box: Any, server: Server, kind: str, path: str, figure: str) -> Turn:
    def once() -> float:
        outcome = box.run(_curl(server, kind, path, figure))
        if outcome.rc != 0:
            raise AssertionError(f"{outcome.status}: {outcome.stderr.decode()[-200:]}")
        return _told(outcome.stdout)

    return once


def _told(output: bytes) -> float:
    status, figure = output.split()
    assert status == b"200", output
    return float(figure)


def _transfers(server: Server, box: Any, effort: Effort) -> Iterator[Table]:
    turns = effort.pick(5, 3)
    for name, contenders in _by_protocol(server, box, "big", "speed_download").items():
        speeds = {each: _in_mib(turn) for each, turn in contenders.items()}
        rows = compare(take_turns(speeds, turns=turns, warm=1 if turns > 1 else 0))
        yield Table(title=f"{name}: speed of one transfer", unit="MiB/s", rows=rows, more_is_better=True)


def _in_mib(turn: Turn) -> Turn:
    return lambda: turn() / MIB


def _first_bytes(server: Server, box: Any, effort: Effort) -> Iterator[Table]:
    for name, contenders in _by_protocol(server, box, "small", "time_starttransfer").items():
        times = {each: _in_ms(turn) for each, turn in contenders.items()}
        yield race(f"{name}: first byte of a small response", times, turns=effort.pick(40, 15))


def _in_ms(turn: Turn) -> Turn:
    return lambda: turn() * 1e3


def _by_protocol(server: Server, box: Any, path: str, figure: str) -> dict[str, dict[str, Turn]]:
    return {
        "plain": {
            DIRECT: _direct(server, "http", path, figure),
            PASSED: _inside(box, server, "http", path, figure),
        },
        "TLS": {
            DIRECT: _direct(server, "https", path, figure),
            PASSED: _inside(box, server, "https", path, figure),
            INSPECTED: _inside(box, server, "inspected", path, figure),
        },
    }


# ---- many


def _connections(server: Server, box: Any, count: int, turns: int) -> tuple[Table, list[str]]:
    """Until all stand and each has had an answer."""
    from ringfence.egress import client

    words = [ADDRESS, str(server.ports["echo"]), str(count)]
    held: list[float] = []

    def inside() -> float:
        before = resident_bytes(client.pid())
        handle = box.start(["python3", "-c", _MANY, *words])
        line = handle.read_stdout(timeout_s=None).data
        held.append((resident_bytes(client.pid()) - before) / count / 1024)
        handle.close_input()
        outcome = handle.wait()
        assert outcome.rc == 0, outcome.stderr[-500:]
        return float(line)

    def outside() -> float:
        command = [sys.executable, "-c", _MANY, *words]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            return float(process.stdout.readline())

    table = race(f"{count:,} connections, until each has an answer", {DIRECT: outside, PASSED: inside},
                 turns=turns, unit="s", warm=0)  # fmt: skip
    return table, [f"{count:,} connections at once: {max(held):.1f} KiB of the gateway's memory for each"]


def _sandboxes(server: Server, count: int, turns: int) -> Table:
    """Each has its list and asks the server once."""
    command = _curl(server, "http", "small", "size_download")

    def open_all(policy: SandboxPolicy, argv: list[str]) -> float:
        start = time.perf_counter()
        with contextlib.ExitStack() as stack:
            boxes = [stack.enter_context(ringfence.open(policy)) for _ in range(count)]
            for box in boxes:
                outcome = box.run(argv)
                assert outcome.rc == 0, outcome.stderr
            return time.perf_counter() - start

    contenders = {
        "without a network": lambda: open_all(STRICT, ["true"]),
        "with a list": lambda: open_all(server.policy(), ["true"]),
        "with a list, and a request of each": lambda: open_all(server.policy(), command),
    }
    return race(f"{count} boxes at once", contenders, turns=turns, unit="s", warm=0)


def _launches(server: Server, effort: Effort) -> Table:
    """With the list of one ordinary policy: one name, no inspection."""
    listed = SandboxPolicy(isolation=IsolationLevel.STRICT, network=["api.example.com"])  # type: ignore[arg-type]
    gathered = gather(
        {
            "/bin/true without a network": lambda: timed_ms(run_strict(["/bin/true"], b"")),
            "/bin/true with a list": lambda: timed_ms(run_strict(["/bin/true"], b"", listed)),
        }
    )
    return race("launch", gathered.turns, turns=effort.pick(60, 20), warm=2)
