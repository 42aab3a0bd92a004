"""``ringfence jupyter kernel`` around a program that stands for ipykernel: its key, its ports, the end of Jupyter."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S, eventually

from ringfence.integrations.jupyter.frames import PORTS

if sys.platform != "linux":
    pytest.skip("needs isolation strict", allow_module_level=True)

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.unmeasured]

SECRET = "a-key-that-nobody-else-may-read"
# It answers each line on the shell port with the key that it was given.
STANDS_FOR_IPYKERNEL = """\
import json, socket, sys
asked = json.load(open(sys.argv[sys.argv.index('-f') + 1]))
shell = socket.create_server(('127.0.0.1', asked['shell_port']))
while True:
    with shell.accept()[0] as client:
        client.recv(1)
        client.sendall(asked['key'].encode())
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    packages = tmp_path / "site-packages"
    (packages / "ipykernel").mkdir(parents=True)
    (packages / "ipykernel" / "__init__.py").touch()
    (packages / "ipykernel_launcher.py").write_text(STANDS_FOR_IPYKERNEL)
    search = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(packages)]))
    return {name: text for name, text in {**os.environ, "PYTHONPATH": search}.items() if name != "JPY_PARENT_PID"}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _command(tmp_path: Path, **more: object) -> tuple[list[str], int]:
    """What Jupyter starts, and the kernel's shell port."""
    ports = {name: _free_port() for name in PORTS}
    asked = {"ip": "127.0.0.1", "transport": "tcp", "key": SECRET, **ports, **more}
    (tmp_path / "connection.json").write_text(json.dumps(asked))
    command = [sys.executable, "-P", "-m", "ringfence", "jupyter", "kernel", str(tmp_path / "connection.json")]
    return command, ports["shell_port"]


def _asked(port: int) -> str:
    """The answer of the kernel's shell port; empty: it does not listen."""
    try:
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
            client.sendall(b"x")
            return client.recv(1000).decode()
    except OSError:
        return ""


def _answers(port: int) -> bool:
    return _asked(port) == SECRET


@contextmanager
def _running(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def _told_to_everybody() -> str:
    """The arguments of all processes."""
    texts = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            texts.append(place.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue  # it has ended
    return "\n".join(texts)


def test_the_key_reaches_the_kernel_and_no_argument(tmp_path: Path, environment: dict[str, str]) -> None:
    command, port = _command(tmp_path)
    with _running(command, environment):
        eventually(lambda: _answers(port))
        told = _told_to_everybody()
    assert "ipykernel_launcher" in told, "the control: those inside are among them"
    assert SECRET not in told


# It starts the kernel as Jupyter does, says its pid, and is then killed.
STANDS_FOR_JUPYTER = """\
import os, subprocess, sys, time
more = {'JPY_PARENT_PID': str(os.getpid())} if sys.argv[1] == 'named' else {}
kernel = subprocess.Popen(sys.argv[2:], env={**os.environ, **more}, start_new_session=True, stdout=subprocess.DEVNULL)
print(kernel.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("named", ["named", "its parent alone"])
def test_a_killed_jupyter_takes_the_kernel_along(tmp_path: Path, environment: dict[str, str], named: str) -> None:
    command, port = _command(tmp_path)
    with _running([sys.executable, "-c", STANDS_FOR_JUPYTER, named, *command], environment) as jupyter:
        assert jupyter.stdout is not None
        kernel = os.pidfd_open(int(jupyter.stdout.readline()))
        try:
            eventually(lambda: _answers(port))
            assert _answers(port), "the control: it lives as long as Jupyter"
            jupyter.kill()
            eventually(lambda: _asked(port) == "")
            eventually(lambda: _has_ended(kernel))
        finally:
            _end(kernel)


def _has_ended(process: int) -> bool:
    try:
        signal.pidfd_send_signal(process, 0)
    except ProcessLookupError:
        return True
    return False


def _end(process: int) -> None:
    if not _has_ended(process):
        signal.pidfd_send_signal(process, signal.SIGKILL)
    os.close(process)


def test_a_port_that_is_taken_is_told(tmp_path: Path, environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        command, _ = _command(tmp_path, stdin_port=other.getsockname()[1])
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 2 and "ports can't be listened on" in done.stderr and "Traceback" not in done.stderr
