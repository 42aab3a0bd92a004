"""``ringfence serve`` prints its address once clients can connect, and never if it can't listen."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S
from tests.service_server import ask, command

pytestmark = [pytest.mark.system]

# Tries the address at the moment at which it is printed, and says how that went.
TRIES = """
import os, socket, sys, urllib.parse
from ringfence.service import server
from ringfence.service.settings import Settings

def tell(line, **_):
    found = urllib.parse.urlsplit(line)
    try:
        socket.create_connection((found.hostname, found.port)).close()
        said = "connected"
    except ConnectionRefusedError:
        said = "refused"
    os.write(1, said.encode())
    os._exit(0)

server.print = tell
server.serve(Settings(port=0, state=sys.argv[1]))
"""
# Another process listens there between the binding and the listening.
LATE = """
import socket, sys
from ringfence.service import server
from ringfence.service.settings import Settings

bound, others = server.bound, []

def bound_and_taken(settings):
    link, settings = bound(settings)
    other = socket.socket()
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    other.bind((settings.host, settings.port))
    other.listen()
    others.append(other)
    return link, settings

server.bound = bound_and_taken
from ringfence.errors import UsageError
try:
    server.serve(Settings(port=0, state=sys.argv[1]))
except UsageError as error:
    print(error.hint, error, file=sys.stderr)
"""


def _ended(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=4 * PATIENCE_S)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def test_a_client_can_connect_when_the_address_is_printed(tmp_path: Path) -> None:
    done = _ended("-c", TRIES, str(tmp_path / "state"))
    assert done.stdout == "connected", done


def test_a_port_that_is_taken_is_refused_and_no_address_is_printed(taken: int, tmp_path: Path) -> None:
    done = _ended("-m", "ringfence", "serve", "--port", str(taken), "--state", str(tmp_path / "state"))
    assert (done.returncode, done.stdout) == (2, ""), done
    assert f"127.0.0.1:{taken}: Address already in use" in done.stderr and "--port" in done.stderr


def test_a_port_that_is_taken_while_the_service_starts_is_refused_too(tmp_path: Path) -> None:
    done = _ended("-c", LATE, str(tmp_path / "state"))
    assert done.stdout == "" and "Address already in use" in done.stderr, done
    assert done.stderr.startswith("choose another with --port 127.0.0.1:"), done


def test_a_service_that_can_not_start_prints_no_address(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where its directory should be")
    for state in (str(tmp_path / "state"), str(tmp_path / "state" / "below"), "/proc/nothing"):
        done = _ended("-m", "ringfence", "serve", "--port", "0", "--state", state)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert f"{state}: " in done.stderr and "--state" in done.stderr and "Traceback" not in done.stderr, done


def test_a_second_service_does_not_get_the_same_state(tmp_path: Path) -> None:
    """It would begin each promised run a second time."""
    state = str(tmp_path / "state")
    with command(tmp_path) as (address, process):
        done = _ended("-m", "ringfence", "serve", "--port", "0", "--state", state)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert f"{state}: another service is using this directory" in done.stderr and "--state" in done.stderr, done
        port = int(address.rpartition(":")[2])
        assert ask(port, "POST", "/v1/runs", {"argv": ["true"]})[0] == 200  # the first one goes on
        process.kill()
        process.wait()
    with command(tmp_path):  # the control: after its end, however it ended, the next one has it
        pass
