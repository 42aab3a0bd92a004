"""A small world for tests of egress: two network namespaces with a cable between them, and servers at public addresses.

Nothing leaves this machine: the callers' namespace has no way but to the servers', and that has none at all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
API, EVIL, PRIVATE, METADATA = "93.184.216.34", "93.184.216.35", "10.1.2.3", "169.254.169.254"
API6 = "2606:2800:220:1::34"
RESOLVER = "93.184.216.53"
CALLERS_PORT = 9001
"""Where a service of the callers' own host listens, on all its addresses."""
HOSTS = {
    "api.example.com": API, "www.example.com": API, "pypi.example.org": API, "files.pypi.example.org": API,
    "evil.example.net": EVIL, "inside.example.com": PRIVATE, "metadata.example.com": METADATA,
    "six.example.com": API6, "loop.example.com": "127.0.0.1", "own.example.com": "198.18.0.1",
    "mapped.example.com": f"::ffff:{PRIVATE}", "inside6.example.com": "fd12:3456::7",
}  # fmt: skip
"""Names that the callers' system resolves by its file; ``flip.example.com`` is asked of the servers' DNS, which
answers differently every time."""
FLIPS = "flip.example.com"
FOLDER, NAMES = "RINGFENCE_WORLD_FOLDER", "RINGFENCE_WORLD_NAMES"
_ENTER = ["unshare", "--net", "--mount"]
_AS_USER = ["--user", "--map-current-user", "--keep-caps"]


class World:
    """A caller that runs sandboxes in there, and what the servers heard."""

    def __init__(self, folder: Path | None = None, names: Mapping[str, str] | None = None) -> None:
        """With a directory, the servers offer the files in its ``served``, and ``authority.pem`` there certifies
        them. With more names, each with its address, the whole system of the callers trusts that authority, so that
        programs need no setting."""
        become = _ENTER if os.geteuid() == 0 else [*_ENTER, *_AS_USER]
        environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        if folder is not None:
            environment |= {FOLDER: str(folder), "SSL_CERT_FILE": str(folder / "authority.pem")}
        environment |= {NAMES: json.dumps(dict(names or {}))}
        self._process = subprocess.Popen(
            [*become, sys.executable, "-m", "tests.egress_world.inside"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, cwd=ROOT, env=environment, text=True,
        )  # fmt: skip
        self._lock = threading.Lock()
        assert self._answer() == {"ready": True}

    def ask(self, **order: object) -> dict[str, object]:
        """Have something done there; an error that was raised there is raised here, by its text."""
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            answer = self._answer()
        if "error" in answer:
            raise WorldError(str(answer["error"]))
        return answer

    def _answer(self) -> dict[str, object]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the world has ended"
        answer: dict[str, object] = json.loads(line)
        return answer

    def run(self, argv: list[str], network: object, **policy: object) -> dict[str, object]:
        """One job in a sandbox with this network; its outcome as plain data."""
        return self.ask(op="run", argv=argv, policy={"isolation": "strict", "network": network, **policy})

    def python(self, code: str, network: object, **policy: object) -> dict[str, object]:
        return self.run([sys.executable, "-I", "-c", code], network, **policy)

    def control(self, argv: list[str]) -> str:
        """The same without a sandbox, in the callers' namespace."""
        return str(self.ask(op="control", argv=argv)["output"])

    def shell(self, text: str, work: Path, environment: Mapping[str, str], *, timeout_s: float = 600) -> str:
        """Run a block of a shell there, in which every command succeeds; what it prints on both streams."""
        command = ["bash", "-euo", "pipefail", "-c", text]
        done = self.ask(op="control", argv=command, cwd=str(work), env=dict(environment), timeout_s=timeout_s)
        assert done["code"] == 0, f"exit status {done['code']} of\n{text}\n---\n{done['output']}"
        return str(done["output"])

    def heard(self) -> list[list[object]]:
        """(address, port, what came first) of every connection and datagram that a server got since the last time."""
        found = self.ask(op="heard")["heard"]
        assert isinstance(found, list)
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


def more_names() -> dict[str, str]:
    """The names that only this world has, each with its address."""
    found: dict[str, str] = json.loads(os.environ.get(NAMES, "{}"))
    return found


class WorldError(Exception):
    """What was raised in the world, as text."""


def egress_of(outcome: dict[str, object]) -> list[dict[str, object]]:
    """What the gateway decided, in order."""
    events = outcome["events"]
    assert isinstance(events, list)
    return [event["details"] for event in events if event["kind"] == "egress" and "decision" in event["details"]]
