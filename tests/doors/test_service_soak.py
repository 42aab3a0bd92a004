"""Hundreds of clients for minutes, one in ten of which is gone in mid-request: nothing is left, and nothing is lost."""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S, eventually
from tests.service_server import ask, command

pytestmark = [pytest.mark.soak, pytest.mark.unmeasured, pytest.mark.once]
CLIENTS = int(os.environ.get("RINGFENCE_CLIENTS", "500"))
SECONDS = float(os.environ.get("RINGFENCE_SOAK_S", "600"))
SETTINGS = """\
sandboxes: 16
queue: 64
spare_bytes: 1
connections: 2000
result_s: 7200
policies: {default: {warm: 4, mem_bytes: 64M}}
"""


class Tally:
    """What all clients saw."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counts: dict[str, int] = {}
        self.wrong: list[str] = []
        self.promised: list[tuple[str, int]] = []

    def add(self, name: str) -> None:
        with self.lock:
            self.counts[name] = self.counts.get(name, 0) + 1


def _client(port: int, number: int, end: float, tally: Tally) -> None:
    rng = random.Random(number)
    while time.monotonic() < end:
        value = rng.randrange(10**9)
        try:
            _one(port, rng, value, tally)
        except (OSError, http.client.HTTPException) as error:
            tally.add(type(error).__name__)
            time.sleep(0.1)


def _one(port: int, rng: random.Random, value: int, tally: Tally) -> None:
    body = {"source": f"print({value})", "wait": rng.random() < 0.7}
    if rng.random() < 0.1:
        _gone(port, body, rng)
        tally.add("gone")
        return
    status, told, found = ask(port, "POST", "/v1/runs", body)
    tally.add(str(status))
    if status == 429:
        time.sleep(min(5.0, float(told["retry-after"])) * rng.random())
    elif status == 200 and (found.get("outcome") or {}).get("stdout") != f"{value}\n":
        tally.wrong.append(json.dumps(found)[:500])
    elif status == 202:
        with tally.lock:
            tally.promised.append((found["id"], value))
    elif status not in (200, 202):
        tally.wrong.append(f"{status}: {found}")


def _gone(port: int, body: dict[str, Any], rng: random.Random) -> None:
    """A client that is killed: its connection is reset, before, in or after the body."""
    data = json.dumps(body).encode()
    head = (f"POST /v1/runs HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n")  # fmt: skip
    with socket.create_connection(("127.0.0.1", port), timeout=2 * PATIENCE_S) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        whole = head.encode() + data
        link.sendall(whole[: rng.choice((10, len(head), len(whole)))])
        time.sleep(rng.random() * 0.05)


def _memory(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0


def test_hundreds_of_clients_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    config = tmp_path / "service.yaml"
    config.write_text(SETTINGS)
    tally = Tally()
    with command(tmp_path, "--config", str(config), "--log", "warning") as (address, process):
        port = int(address.rpartition(":")[2])
        end = time.monotonic() + SECONDS
        threads = [threading.Thread(target=_client, args=(port, number, end, tally)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        time.sleep(SECONDS * 0.4)
        early = _memory(process.pid)
        for thread in threads:
            thread.join()
        late = _memory(process.pid)
        assert tally.wrong == [], tally.counts
        assert tally.counts.get("200", 0) > 0 and tally.counts.get("gone", 0) > 0, tally.counts
        for run, value in tally.promised:
            status, _, found = ask(port, "GET", f"/v1/runs/{run}?wait=true")
            assert (status, found["outcome"]["stdout"]) == (200, f"{value}\n"), found
        eventually(lambda: b"\nringfence_service_sandboxes 0\n" in ask(port, "GET", "/metrics")[2])
        assert late < early * 1.25 + (16 << 20), f"{early >> 20} MiB, then {late >> 20} MiB; {tally.counts}"
        print(f"\n{tally.counts}, promised {len(tally.promised)}, {early >> 20} MiB, then {late >> 20} MiB")
    assert not _children(process.pid)


def _children(pid: int) -> list[str]:
    """What the service has started and is still there."""
    found = []
    for each in filter(str.isdigit, os.listdir("/proc")):
        try:
            if int(Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(each)
        except OSError:
            continue
    return found
