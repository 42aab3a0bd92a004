"""What Jupyter starts: ipykernel in a sandbox, and the relay between its sockets and Jupyter's.

Jupyter's ports are listened on here, at the loopback alone. Signals that Jupyter sends for an interruption go to the
kernel; when this process ends, however it does, the sandbox ends with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping

import ringfence
from ringfence.engine.handle import Handle
from ringfence.errors import UsageError
from ringfence.integrations.jupyter.relay import Relay
from ringfence.integrations.living.place import Place
from ringfence.model.job import Job
from ringfence.model.policy import SandboxPolicy

PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_WINDOW_BYTES = 64 << 20
"""How far the bridge may run ahead of its reader."""
# Load our package from its own directory: its parent need not be readable, and is not on the cells' search path.
_LOADER = """\
import importlib.util, json, sys
place, connection, ports = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
spec = importlib.util.spec_from_file_location('ringfence', place + '/__init__.py', submodule_search_locations=[place])
sys.modules['ringfence'] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules['ringfence'])
from ringfence.integrations.jupyter.bridge import main
sys.exit(main(connection, ports))
"""


def run(connection_file: str, policy: SandboxPolicy) -> int:
    """Until the kernel ends; its exit code."""
    asked = read_connection(connection_file)
    ports = [int(str(asked[name])) for name in PORTS]
    packages = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
    shown = tuple(path for path in packages if os.path.isdir(path))
    policy = policy.with_changes(readable_paths=tuple(dict.fromkeys((*policy.readable_paths, *shown))),
                                 output_bytes=_WINDOW_BYTES)  # fmt: skip
    inside = {**asked, "ip": "127.0.0.1"}
    ours = os.path.dirname(os.path.abspath(ringfence.__file__))
    job = Job(argv=(sys.executable, "-c", _LOADER, ours, json.dumps(inside), json.dumps(ports)),
              environment={"PYTHONPATH": os.pathsep.join(shown)})  # fmt: skip
    with Place(policy) as place:
        handle = place.start(job, unending=True, on_output=_pass_on)
        return asyncio.run(_relay(str(asked["ip"]), ports, handle))


def read_connection(connection_file: str) -> Mapping[str, object]:
    """What Jupyter asks for; UsageError if it wants to listen beyond this machine's loopback."""
    try:
        with open(connection_file, encoding="utf-8") as file:
            asked: dict[str, object] = json.load(file)
        ports = [int(str(asked[name])) for name in PORTS]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{connection_file} is not a Jupyter connection file: {error}") from error
    is_near = asked.get("transport") == "tcp" and asked.get("ip") in _LOOPBACK
    if not is_near or not all(0 < port < 65536 for port in ports):
        raise UsageError("this kernel takes connections from this machine's loopback alone",
                         hint="start Jupyter without c.KernelManager.ip, and with transport tcp")  # fmt: skip
    return asked


def _pass_on(stream: str, piece: bytes) -> None:
    """What the kernel itself prints, for Jupyter's log."""
    if stream == "stderr":
        os.write(2, piece)


async def _relay(host: str, ports: list[int], handle: Handle) -> int:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, handle.signal, signal.SIGINT)
    loop.add_signal_handler(signal.SIGTERM, handle.signal, signal.SIGKILL)
    servers = await Relay(handle).serve(host, ports)
    try:
        outcome = await asyncio.to_thread(handle.wait)
    finally:
        for server in servers:
            server.close()
    return outcome.rc
