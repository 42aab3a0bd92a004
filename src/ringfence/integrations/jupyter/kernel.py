"""What Jupyter starts: ipykernel in a sandbox, and the relay between its sockets and Jupyter's.

Jupyter's ports are listened on here, at the loopback alone. Signals that Jupyter sends for an interruption go to the
kernel; when this process or Jupyter ends, however it does, the sandbox ends with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import ringfence
from ringfence.engine.handle import Handle
from ringfence.errors import UsageError
from ringfence.integrations.jupyter.frames import CONNECTION, MAX_BYTES, PORTS, frame
from ringfence.integrations.jupyter.relay import Relay
from ringfence.integrations.living.place import Place
from ringfence.model.files import read_file
from ringfence.model.job import Job
from ringfence.model.policy import SandboxPolicy

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_WINDOW_BYTES = 64 << 20
"""How far the bridge may run ahead of its reader."""
# Load our package from its own directory: its parent need not be readable, and is not on the cells' search path.
_LOADER = """\
import importlib.util, sys
place = sys.argv[1]
spec = importlib.util.spec_from_file_location('ringfence', place + '/__init__.py', submodule_search_locations=[place])
sys.modules['ringfence'] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules['ringfence'])
from ringfence.integrations.jupyter.bridge import main
sys.exit(main())
"""


def run(connection_file: str, policy: SandboxPolicy) -> int:
    """Until the kernel ends; its exit code."""
    asked = read_connection(connection_file)
    packages = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
    shown = tuple(path for path in packages if os.path.isdir(path))
    policy = policy.with_changes(readable_paths=tuple(dict.fromkeys((*policy.readable_paths, *shown))),
                                 output_bytes=_WINDOW_BYTES)  # fmt: skip
    ours = os.path.dirname(os.path.abspath(ringfence.__file__))
    job = Job(argv=(sys.executable, "-c", _LOADER, ours), environment={"PYTHONPATH": os.pathsep.join(shown)})
    with _jupyter() as jupyter, Place(policy) as place:
        handle = place.start(job, unending=True, on_output=_pass_on)
        # It has a key: everybody on this host may read arguments, nobody else may read a pipe.
        handle.write(frame(CONNECTION, 0, data=json.dumps({**asked, "ip": "127.0.0.1"}).encode()))
        return asyncio.run(_relay(str(asked["ip"]), _ports(asked), handle, jupyter))


def read_connection(connection_file: str) -> Mapping[str, object]:
    """What Jupyter asks for; UsageError if it wants to listen beyond this machine's loopback."""
    text = read_file(connection_file, MAX_BYTES // 8, hint="Jupyter makes this file when it starts the kernel")
    try:
        asked: dict[str, object] = json.loads(text)
        ports = _ports(asked)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{connection_file} is not a Jupyter connection file: {error}") from error
    is_near = asked.get("transport") == "tcp" and asked.get("ip") in _LOOPBACK
    if not is_near or not all(0 < port < 65536 for port in ports):
        raise UsageError("this kernel only takes connections from this machine's loopback",
                         hint="start Jupyter without c.KernelManager.ip, and with transport tcp")  # fmt: skip
    return asked


def _ports(asked: Mapping[str, object]) -> list[int]:
    return [int(str(asked[name])) for name in PORTS]


@contextmanager
def _jupyter() -> Iterator[int]:
    """A descriptor by which the end of Jupyter is heard of; -1 where there is none."""
    descriptor = _opened(os.environ.get("JPY_PARENT_PID", ""))
    descriptor = _opened(str(os.getppid())) if descriptor < 0 else descriptor
    try:
        yield descriptor
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _opened(pid: str) -> int:
    try:
        return os.pidfd_open(int(pid))
    except (AttributeError, ValueError, OverflowError, OSError):
        return -1  # it does not name a process here, e.g. one of another PID namespace


def _pass_on(stream: str, piece: bytes) -> None:
    """What the kernel itself prints, for Jupyter's log."""
    if stream == "stderr":
        os.write(2, piece)


async def _relay(host: str, ports: list[int], handle: Handle, jupyter: int) -> int:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, handle.signal, signal.SIGINT)
    loop.add_signal_handler(signal.SIGTERM, handle.signal, signal.SIGKILL)
    if jupyter >= 0:
        loop.add_reader(jupyter, _jupyter_has_ended, jupyter, handle)
    try:
        servers = await Relay(handle).serve(host, ports)
    except OSError as error:
        raise UsageError(f"Jupyter's ports can't be listened on: {error}",
                         hint="another program has one of them; start the kernel again") from error  # fmt: skip
    try:
        outcome = await asyncio.to_thread(handle.wait)
    finally:
        for server in servers:
            server.close()
    return outcome.rc


def _jupyter_has_ended(jupyter: int, handle: Handle) -> None:
    asyncio.get_running_loop().remove_reader(jupyter)  # it stays readable
    handle.signal(signal.SIGKILL)
