"""Runs cells in our kernel by jupyter_client, and prints what came back as JSON."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

from jupyter_client.manager import KernelManager

LONG_S = 300


def run(client, code):
    """What a cell printed, its value, pictures and its error."""
    told = {"stdout": "", "value": "", "pictures": 0, "error": ""}

    def hear(message):
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            told["stdout"] += content["text"]
        if kind in ("execute_result", "display_data"):
            told["value"] = content["data"].get("text/plain", "")
            told["pictures"] += int("image/png" in content["data"])
        if kind == "error":
            told["error"] = content["ename"]

    client.execute_interactive(code, output_hook=hear, timeout=LONG_S, allow_stdin=False)
    return told


@contextmanager
def kernel():
    """(manager, client) of our kernel, as Jupyter finds it."""
    manager = KernelManager(kernel_name="ringfence")
    manager.start_kernel()
    try:
        client = manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=LONG_S)
        yield manager, client
        client.stop_channels()
    finally:
        manager.shutdown_kernel(now=False)


def main(folder):
    environment = {**os.environ, "JUPYTER_PATH": f"{folder}/share/jupyter"}
    os.environ.update(environment)
    installed = subprocess.run([sys.executable, "-m", "ringfence", "jupyter", "install", "--prefix", folder],
                               capture_output=True, text=True, check=True)  # fmt: skip
    told = {"installed": installed.stdout}
    with kernel() as (manager, client):
        told["sum"] = run(client, "x = 20\nprint('hi')\nx + 1")
        told["kept"] = run(client, "x * 2")
        told["error"] = run(client, "1 / 0")
        told["host"] = run(client, f"import os\nos.path.exists({folder!r}), os.path.exists('/proc/{os.getpid()}/maps')")
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
            reach = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 5)"
            told["network"] = run(client, reach)
            space = {}
            exec(reach, space)  # the control
        told["plot"] = run(client, "%matplotlib inline\nimport matplotlib.pyplot as plt\n_ = plt.plot([1, 2, 3])")
        told["interrupted"] = interrupt(manager, client)
        for _ in range(100):  # a kernel drops what comes right after an interruption
            told["after"] = run(client, "x")
            if told["after"]["value"]:
                break
            time.sleep(0.1)
        manager.restart_kernel(now=True)
        client.wait_for_ready(timeout=LONG_S)
        told["restarted"] = run(client, "x")
    told["ended"] = not manager.is_alive()
    return told


def interrupt(manager, client):
    """A cell that says that it has begun, and is then interrupted."""
    client.execute("import time\nprint('begun')\nwhile True: time.sleep(0.1)")
    error, end = "", time.monotonic() + LONG_S
    while not error and time.monotonic() < end:
        message = client.get_iopub_msg(timeout=LONG_S)
        if message["msg_type"] == "stream" and "begun" in message["content"]["text"]:
            manager.interrupt_kernel()
        if message["msg_type"] == "error":
            error = message["content"]["ename"]
    return error


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
