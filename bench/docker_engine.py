"""Docker as a peer: Debian's engine, and one daemon for as long as the bench runs where none answers.

The daemon has directories and a socket of its own, no bridge and no rules for packets: nothing of the host's network is
touched. It lives in namespaces of its own, so what it mounted and started ends with it, however it ends: nothing is
left but the package.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from bench.harness import NotHere
from bench.installing import cache_folder, from_debian

_START_S, _END_S = 30.0, 30.0
APART = ("setpriv", "--pdeathsig=KILL",
          "unshare", "--mount", "--propagation=private", "--pid", "--mount-proc", "--kill-child")  # fmt: skip
ALONE = ("--iptables=false", "--ip6tables=false", "--ip-forward=false", "--bridge=none", "--storage-driver=overlay2")


def client() -> str:
    """The path of its program, with a daemon that answers."""
    path = shutil.which("docker") or from_debian("docker", ["docker.io"])
    if not _answers(path):
        from_debian("dockerd", ["docker.io"])  # some hosts have the client alone
        start(path)
    return path


def _answers(path: str) -> bool:
    return subprocess.run([path, "version"], capture_output=True, check=False).returncode == 0


def start(path: str) -> None:
    """Start one that ends with this process; ``DOCKER_HOST`` names it from now on."""
    if os.geteuid() != 0 or not shutil.which("dockerd"):
        raise NotHere("no daemon answers, and to start one takes root")
    cache_folder().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="docker-", dir=cache_folder()))
    socket = f"unix://{folder}/socket"
    own = [f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid", f"--host={socket}"]
    daemon = subprocess.Popen([*APART, "dockerd", *own, *ALONE], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
    atexit.register(_end, daemon, folder)
    os.environ["DOCKER_HOST"] = socket
    give_up = time.monotonic() + _START_S
    while not _answers(path):
        if daemon.poll() is not None or time.monotonic() > give_up:
            raise NotHere("its daemon does not start")
        time.sleep(0.1)


def _end(daemon: subprocess.Popen[bytes], folder: Path) -> None:
    os.environ.pop("DOCKER_HOST", None)
    daemon.kill()
    daemon.wait()
    give_up = time.monotonic() + _END_S
    # The last of its processes ends a moment later, and may still write.
    while folder.exists() and time.monotonic() < give_up:
        shutil.rmtree(folder, ignore_errors=True)
