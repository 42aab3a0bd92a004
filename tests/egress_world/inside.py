"""The callers' side of the world: lays the cable, starts the servers, and then runs sandboxes as it is told."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import traceback
from typing import Any

from tests.egress_world import FOLDER, HOSTS, RESOLVER, more_names, open_proxy, trusted

_CLEAR_AMBIENT = (47, 4, 0, 0, 0)


def main() -> None:
    """Become the caller: an ordinary user has no capability left when the world stands."""
    if len(sys.argv) == 1:
        server = _lay_out()
        os.set_inheritable(server.stdin.fileno(), True)  # type: ignore[union-attr]
        os.set_inheritable(server.stdout.fileno(), True)  # type: ignore[union-attr]
        ctypes.CDLL(None).prctl(*_CLEAR_AMBIENT)
        ends = [str(server.stdin.fileno()), str(server.stdout.fileno())]  # type: ignore[union-attr]
        os.execv(sys.executable, [sys.executable, "-m", "tests.egress_world.inside", *ends])
    ask, told = os.fdopen(int(sys.argv[1]), "w"), os.fdopen(int(sys.argv[2]))
    os.set_inheritable(ask.fileno(), False)
    os.set_inheritable(told.fileno(), False)
    open_proxy.start()
    _say({"ready": True})
    caller = Caller(ask, told)
    for line in sys.stdin:
        try:
            order = json.loads(line)
            _say(getattr(caller, order.pop("op"))(**order))
        except Exception as error:
            _say({"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()})
    caller.close()


def _say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, stdout=subprocess.DEVNULL)


def _lay_out() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        ["unshare", "--net", sys.executable, "-m", "tests.egress_world.servers"], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip
    assert server.stdout is not None and server.stdin is not None
    assert server.stdout.readline() == "in\n"
    _ip("link", "set", "lo", "up")
    _ip("link", "add", "near", "type", "veth", "peer", "name", "far", "netns", str(server.pid))
    _ip("addr", "add", "198.18.0.1/30", "dev", "near")
    _ip("link", "set", "near", "up")
    _ip("-6", "addr", "add", "fd00:ffff::1/64", "dev", "near", "nodad")
    server.stdin.write("\n")
    assert server.stdout.readline() == "up\n"
    _ip("route", "add", "default", "via", "198.18.0.2")
    _ip("-6", "route", "add", "default", "via", "fd00:ffff::2")
    with tempfile.NamedTemporaryFile("w", delete=False) as hosts, tempfile.NamedTemporaryFile("w", delete=False) as dns:
        names = HOSTS | more_names()
        hosts.write("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in names.items()))
        dns.write(f"nameserver {RESOLVER}\noptions timeout:1 attempts:1\n")
    for file, place in ((hosts.name, "/etc/hosts"), (dns.name, "/etc/resolv.conf")):
        os.chmod(file, 0o644)
        subprocess.run(["mount", "--bind", file, os.path.realpath(place)], check=True)
        os.unlink(file)
    if more_names():
        trusted.everywhere(os.path.join(os.environ[FOLDER], "authority.pem"))
    return server


class Caller:
    """What the tests can have done."""

    def __init__(self, ask: Any, told: Any) -> None:
        self._ask, self._told = ask, told
        self._boxes: dict[int, Any] = {}
        self._pools: dict[str, Any] = {}

    def run(self, argv: list[str], policy: dict[str, Any], env: dict[str, str] | None = None) -> object:
        import ringfence

        return ringfence.run(argv, ringfence.SandboxPolicy.from_dict(policy), env=env).to_dict()

    def pooled(self, argv: list[str], policy: dict[str, Any]) -> object:
        import ringfence

        key = json.dumps(policy)
        if key not in self._pools:
            self._pools[key] = ringfence.Pool(ringfence.SandboxPolicy.from_dict(policy), warm=1)
        return self._pools[key].run(argv).to_dict()

    def open(self, policy: dict[str, Any]) -> object:
        import ringfence

        number = len(self._boxes)
        self._boxes[number] = ringfence.open(ringfence.SandboxPolicy.from_dict(policy))
        return {"box": number}

    def visit(self, box: int, argv: list[str]) -> object:
        return self._boxes[box].run(argv).to_dict()

    def network(self, box: int, change: str, entries: list[Any]) -> object:
        getattr(self._boxes[box].network, change)(*entries)
        return {"rules": [str(rule) for rule in self._boxes[box].network.rules]}

    def shut(self, box: int) -> object:
        self._boxes.pop(box).close()
        return {}

    def control(
        self, argv: list[str], cwd: str | None = None, env: dict[str, str] | None = None, timeout_s: float = 60
    ) -> object:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=cwd, env=env,
                              timeout=timeout_s, check=False)  # fmt: skip
        return {"output": done.stdout + done.stderr, "code": done.returncode}

    def execute(self, code: str) -> object:
        """Python in the caller itself; what it puts into ``found`` comes back."""
        names: dict[str, Any] = {"found": None, "caller": self}
        exec(code, names)
        return {"found": names["found"]}

    def heard(self) -> object:
        self._ask.write("heard\n")
        self._ask.flush()
        return {"heard": [*json.loads(self._told.readline()), *open_proxy.take_heard()]}

    def close(self) -> None:
        for each in (*self._boxes.values(), *self._pools.values()):
            each.close()


if __name__ == "__main__":
    main()
