"""Runs in a container of the image: what a sandbox does there, and what the container itself can do; prints JSON.

Nothing of the tests is at hand in there.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import ringfence
from ringfence import SandboxPolicy

SECRET = "what nobody else reads"
ATTACK = """\
import socket, sys
said = []
try:
    said.append(open(sys.argv[1]).read())
except OSError as error:
    said.append(type(error).__name__)
try:
    with socket.create_connection(("127.0.0.1", int(sys.argv[2])), 5) as link:
        said.append(link.recv(99).decode())
except OSError as error:
    said.append(type(error).__name__)
print(*said, sep="|")
"""


def _served() -> int:
    """The port of somebody on the container's loopback who tells the secret."""
    door = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            with door.accept()[0] as link:
                link.sendall(SECRET.encode())

    threading.Thread(target=serve, daemon=True).start()
    return int(door.getsockname()[1])


def main(work: Path, level: str = "strict") -> dict[str, object]:
    hidden, port = work / "hidden", _served()
    hidden.write_text(SECRET)
    (work / "attack.py").write_text(ATTACK)
    attack = ["python3", str(work / "attack.py"), str(hidden), str(port)]
    if level != "strict":
        done = subprocess.run(attack, capture_output=True, text=True, check=False)
        return {"attack": done.stdout.strip()}
    strict = SandboxPolicy(isolation="strict", hidden_paths=(str(hidden),))
    attacked = ringfence.run(attack, strict, cwd=str(work))
    listed = ringfence.run(["python3", "-c", "print(1)"], SandboxPolicy(isolation="strict", network=["example.org"]))
    tight = SandboxPolicy(isolation="strict", syscall_profile="tight")
    again = [ringfence.run(["true"], tight).rc for _ in range(6)]  # the later ones in a network namespace of the first
    with ringfence.Pool(tight, warm=1) as pool, ringfence.open(strict) as box:
        called = [pool.call(lambda a, b: a * b, 6, 7) for _ in range(12)]
        box.put("file", b"put")
        visited = box.run(["cat", "file"]).stdout.decode()
    return {
        "attack": attacked.stdout.decode().strip(), "attempts": sorted({event.kind for event in attacked.events}),
        "applied": sorted(name for name, each in attacked.enforced.items() if each.applied),
        "listed": listed.stdout.decode(), "again": again, "pool": called, "box": visited,
        "hidden": hidden.read_text(), "no_new_privileges": "NoNewPrivs:\t1" in Path("/proc/self/status").read_text(),
    }  # fmt: skip


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), *sys.argv[2:])) + "\n")
