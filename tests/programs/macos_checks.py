"""Runs on macOS: attacks on what Seatbelt holds for a job of the process level, each with its control.

``python macos_checks.py SOURCES`` prints a line for each attempt and exits with 1 if one gets through, or if its
control does not.
"""

import os
import socket
import sys
import tempfile

sys.path.insert(0, sys.argv[1])

from ringfence.engine.box import Box
from ringfence.engine.run import run
from ringfence.errors import FileError
from ringfence.macos import trial
from ringfence.model.policy import SandboxPolicy

_RENAMED = "os.rename(top + '/out/a', top + '/out/b'); print('ESCAPED' if open(top + '/out/b/secret').read() else '')"
ATTEMPTS = {
    "read what is hidden": "print('ESCAPED' if open(top + '/out/a/secret').read() else '')",
    "read it by its name in large letters": "print('ESCAPED' if open(top + '/OUT/A/SECRET').read() else '')",
    "read it by another hard link": "os.link(top + '/out/a/secret', top + '/out/c'); "
                                    "print('ESCAPED' if open(top + '/out/c').read() else '')",
    "rename the directory that it lies in": _RENAMED,
    "write beside": "open(top + '/beside', 'w').close(); print('ESCAPED')",
    "connect to the host": "socket.create_connection(('127.0.0.1', int(sys.argv[2])), 10); print('ESCAPED')",
    "end its caller": "os.kill(int(sys.argv[3]), 0); print('ESCAPED')",
    "have a program started outside": "import subprocess; subprocess.run(['/usr/bin/open', '-g', '-a', 'TextEdit'], "
                                      "check=True, stderr=-3); print('ESCAPED')",
}  # fmt: skip
_WITHOUT_CONTROL = ("have a program started outside",)
"""There is no desktop where the control would have to succeed."""


def _made(top: str) -> None:
    os.makedirs(f"{top}/out/a")
    with open(f"{top}/out/a/secret", "w", encoding="ascii") as file:
        file.write("secret")


def _tried(code: str, port: int, **asked: object) -> bool:
    with tempfile.TemporaryDirectory() as top:
        _made(top)
        if asked:
            asked = {"network": "none", "hidden_paths": [f"{top}/out/a/secret"], "writable_paths": [f"{top}/out"]}
        policy = SandboxPolicy.from_dict({"isolation": "process", "wall_time_s": 60, **asked})
        words = (f"import os, socket, sys; top = sys.argv[1]; {code}", top, str(port), str(os.getpid()))
        return b"ESCAPED" in run([sys.executable, "-I", "-S", "-c", *words], policy).stdout


def _transfers() -> bool:
    """Whether a link of the guest leads a transfer of ours out of the walls."""
    with tempfile.TemporaryDirectory() as top:
        _made(top)
        policy = SandboxPolicy.from_dict({"isolation": "process", "hidden_paths": [f"{top}/out/a/secret"]})
        with Box(policy) as box:
            box.run(["ln", "-s", f"{top}/out/a/secret", "way"])
            try:
                return bool(box.get("way"))
            except FileError:
                return False


def main() -> int:
    failed = 0
    why = trial.problem()
    print(f"Seatbelt: {why or 'holds'}")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        for name, code in ATTEMPTS.items():
            proven = name in _WITHOUT_CONTROL or _tried(code, port)
            escaped = _tried(code, port, held=True)
            failed += escaped or not proven
            told = "ESCAPED" if escaped else "held"
            print(f"{name}: {told if proven else f'{told}, but the control fails'}", flush=True)
    followed = _transfers()
    print(f"follow a link of the guest: {'ESCAPED' if followed else 'held'}")
    return 1 if failed or followed or why else 0


if __name__ == "__main__":
    sys.exit(main())
