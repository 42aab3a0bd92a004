"""A Docker daemon of one test, which may be killed and started again on the same directory; and a registry on
loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.docker_engine import ALONE, APART
from bench.installing import cache_folder

from tests import packages
from tests.patience import eventually


class Daemon:
    """One daemon with its directory; ``address`` is the same after it was killed and started."""

    def __init__(self, folder: Path, options: Sequence[str] = (), enter: Sequence[str] = ()) -> None:
        self._folder, self._options, self._enter = folder, options, enter
        self.address = f"unix://{folder}/socket"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        own = [f"--{name}={self._folder}/{place}" for name, place in
               (("data-root", "data"), ("exec-root", "exec"), ("pidfile", "pid"))]  # fmt: skip
        for left in ("pid", "socket"):
            (self._folder / left).unlink(missing_ok=True)
        shutil.rmtree(self._folder / "exec", ignore_errors=True)
        self._process = subprocess.Popen(
            [*self._enter, *APART, "dockerd", *own, f"--host={self.address}", *ALONE, *self._options],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        eventually(self._answers, 60)

    def _answers(self) -> bool:
        command = ["docker", "--host", self.address, "version"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def kill(self) -> None:
        """With all that it started."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        self.kill()
        give_up = time.monotonic() + 30
        while self._folder.exists() and time.monotonic() < give_up:
            shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def daemon(*options: str, enter: Sequence[str] = ()) -> Iterator[Daemon]:
    """One that runs; ``DOCKER_HOST`` names it meanwhile. ``enter``: a command that enters its network. Its directory is
    where engines of benches have theirs: an address has at most a hundred characters, and a layer does not lie on
    another."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    made = Daemon(Path(tempfile.mkdtemp(prefix="killed-", dir=cache_folder())), options, enter)
    before = os.environ.get("DOCKER_HOST")
    os.environ["DOCKER_HOST"] = made.address
    try:
        made.start()
        yield made
    finally:
        os.environ.pop("DOCKER_HOST")
        if before is not None:
            os.environ["DOCKER_HOST"] = before
        made.remove()


def gvisor(folder: Path) -> str:
    """The option by which a daemon knows Debian's runsc, without KVM."""
    path = packages.program("runsc")
    (folder / "runsc").write_text(f'#!/bin/sh\nexec {path} --platform=ptrace --network=none "$@"\n')
    (folder / "runsc").chmod(0o755)
    return f"--add-runtime=runsc={folder}/runsc"


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """Debian's registry on loopback; host and port."""
    path = packages.program("docker-registry")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    (folder / "registry.yml").write_text(
        f"version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {folder}/registry\nhttp:\n  addr: {address}\n"
        "log:\n  accesslog:\n    disabled: true\n"
    )
    process = subprocess.Popen([path, "serve", str(folder / "registry.yml")], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        eventually(lambda: _listens(address))
        yield address
    finally:
        process.kill()
        process.wait()


def _listens(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
