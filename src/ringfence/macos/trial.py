"""Whether Seatbelt holds what a profile of ours says, found out by trying: a small program runs under two profiles.

Under the first profile everything it tries must succeed, else the trial proves nothing; under the second, nothing may.
"""

from __future__ import annotations

import os
import sys

from ringfence.macos import seatbelt
from ringfence.model.policy import HOST_NETWORK, NO_NETWORK, SandboxPolicy
from ringfence.model.ways.walk import real

SANDBOX_EXEC = "/usr/bin/sandbox-exec"
PATIENCE_S = 30
READ, WROTE, CONNECTED, DONE = "read", "wrote", "connected", "done"
ATTEMPTS = """
import socket, sys
def attempt(name, work):
    try: work()
    except OSError: return
    print(name)
attempt("read", lambda: open(sys.argv[1]).read())
attempt("wrote", lambda: open(sys.argv[2], "a").close())
attempt("connected", lambda: socket.create_connection(("127.0.0.1", int(sys.argv[3])), 10))
print("done")
"""
_found: list[str] = []


def problem() -> str:
    """Return why Seatbelt holds nothing here; empty: it was tried, once per process, and holds."""
    if not _found:
        _found.append(_tried())
    return _found[0]


def _tried() -> str:
    if not os.access(SANDBOX_EXEC, os.X_OK):
        return f"{SANDBOX_EXEC} is not there"
    import socket
    import tempfile

    try:
        with tempfile.TemporaryDirectory(prefix="ringfence-seatbelt-") as folder, socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            return _compared(real(folder), listener.getsockname()[1])
    except OSError as error:
        return f"it could not be tried: {error}"


def _compared(folder: str, port: int) -> str:
    secret, beside = os.path.join(folder, "secret"), os.path.join(folder, "beside")
    with open(secret, "w", encoding="ascii") as file:
        file.write("secret")
    words = (secret, beside, str(port))
    free = SandboxPolicy(network=HOST_NETWORK, writable_paths=(folder,))
    held = SandboxPolicy(network=NO_NETWORK, readable_paths=(folder,), hidden_paths=(secret,))
    programs = seatbelt.Places(programs=own_programs())
    for policy, wanted in ((free, {READ, WROTE, CONNECTED, DONE}), (held, {DONE})):
        told, errors = _ran(seatbelt.profile(policy, programs), words)
        if told != wanted:
            return _difference(told, wanted, errors)
    return ""


def _difference(told: set[str], wanted: set[str], errors: str) -> str:
    if told - wanted:
        return f"a program that was tried under a profile {' and '.join(sorted(told - wanted))} all the same"
    return f"a program that was tried under a profile failed: {errors[-200:].strip() or 'no error message'}"


def _ran(profile: str, words: tuple[str, ...]) -> tuple[set[str], str]:
    import subprocess

    command = [SANDBOX_EXEC, "-p", profile, sys.executable, "-I", "-S", "-c", ATTEMPTS, *words]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        return set(), f"nothing was heard for {PATIENCE_S} s"
    return set(done.stdout.decode("ascii", "replace").split()), done.stderr.decode("utf-8", "replace")


def own_programs() -> tuple[str, ...]:
    """Return the directories of this interpreter and of its libraries."""
    found = (sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(sys.executable))
    return tuple(dict.fromkeys(each for path in found for each in (path, real(path))))
