"""A network of its own for an example: its fixed ports are free there, and nothing leaves it.

It has files of its own too: an example that names ``/etc/ssl/sandbox.pem`` finds the test's there.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.examples import environment_of, shell
from tests.patience import PATIENCE_S

_IS_ROOT = os.geteuid() == 0
_LEAVE = ["unshare", "--net", "--mount", *([] if _IS_ROOT else ["--user", "--map-current-user", "--keep-caps"])]
_ENTER = ["nsenter", "--net", "--mount", *([] if _IS_ROOT else ["--user", "--preserve-credentials"])]
# Who enters later has no privilege there either, and a proxy of theirs listens on a port of the system.
_ANY_PORT = [] if _IS_ROOT else ["echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start"]


class OwnNetwork:
    """Commands of one example, each in ``folder/work`` and in the same network. ``enter``: what goes before a command
    that is to run there."""

    def __init__(self, folder: Path, enter: list[str]) -> None:
        self.folder, self.enter, self._served = folder, enter, 0
        (folder / "work").mkdir(exist_ok=True)

    def _command(self, text: str) -> list[str]:
        # To enter the files leads to their root.
        return [*self.enter, "bash", "-euo", "pipefail", "-c", f"cd {shlex.quote(str(self.folder / 'work'))}\n{text}"]

    def shell(self, text: str, more: Mapping[str, str] | None = None) -> str:
        """Run a block of a shell, in which every command succeeds; what it prints on both streams."""
        return shell(f"exec {shlex.join(self._command(text))}", self.folder, self._variables(more))

    def _variables(self, more: Mapping[str, str] | None) -> dict[str, str]:
        return {"HOME": str(self.folder), **(more or {})}

    @contextmanager
    def serving(
        self, text: str, ready: str, more: Mapping[str, str] | None = None, *, ends_with: int = 0
    ) -> Iterator[Path]:
        """Run a block of a shell that does not end until Ctrl-C, from when the address is there; the file of what it
        prints. ``ends_with``: the exit code after Ctrl-C."""
        self._served += 1
        printed = self.folder / f"serving-{self._served}.txt"
        environment = environment_of(self.folder) | self._variables(more)
        with printed.open("w") as file:
            process = subprocess.Popen(self._command(text), env=environment, stdin=subprocess.DEVNULL, stdout=file,
                                       stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        try:
            wait = f"until curl -sko /dev/null {ready}; do kill -0 {process.pid} || exit 1; sleep 0.1; done"
            subprocess.run(self._command(wait), timeout=2 * PATIENCE_S, check=False, stderr=subprocess.DEVNULL)
            assert process.poll() is None, printed.read_text()
            yield printed
        finally:
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(2 * PATIENCE_S) == ends_with, printed.read_text()


@contextmanager
def own_network(folder: Path, places: Mapping[str, Path] | None = None) -> Iterator[OwnNetwork]:
    """``places``: what is at a path there, instead of what this machine has."""
    mounts = [shlex.join(["mount", "--bind", str(ours), place]) for place, ours in (places or {}).items()]
    script = "\n".join(["set -e", "ip link set lo up", *_ANY_PORT, *mounts, "echo up", "exec cat"])
    holder = subprocess.Popen([*_LEAVE, "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdin is not None and holder.stdout is not None
    try:
        assert holder.stdout.readline() == "up\n"
        yield OwnNetwork(folder, [*_ENTER, "--target", str(holder.pid), "--"])
    finally:
        holder.stdin.close()
        holder.wait(PATIENCE_S)
        holder.stdout.close()
