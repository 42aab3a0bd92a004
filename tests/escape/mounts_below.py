"""Run by ``test_mounts_below`` in a mount namespace of its own: a directory with mounts below it, and a job in it.

Prints what the job reached and saw, as JSON. Arguments: a directory, how to run the job (``plain`` for the control,
``run``, ``warm``, ``source``, ``box``, ``crowd``), and ``later`` if the mounts are to be made when the sandbox stands.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import ringfence
from ringfence import SandboxPolicy

# Every socket and FIFO below the directory is tried; every other file is read.
PROBE = """
import json, os, socket, stat, sys
seen, top = {}, sys.argv[1]
for folder, folders, files in os.walk(top):
    if os.path.isdir(os.path.join(folder, 'self')):  # a /proc, in which reading may take for ever
        seen['proc'] = 'shown'
        folders.clear()
        continue
    for name in files:
        path = os.path.join(folder, name)
        try:
            kind = stat.S_IFMT(os.lstat(path).st_mode)
            if kind == stat.S_IFSOCK:
                socket.socket(socket.AF_UNIX).connect(path)
            elif kind == stat.S_IFIFO:
                os.write(os.open(path, os.O_WRONLY | os.O_NONBLOCK), b'x')
            else:
                with open(path) as file: seen[os.path.relpath(path, top)] = file.read(20).strip()
        except OSError as error:
            print(error, file=sys.stderr)
print(json.dumps(seen))
"""

_HIDDEN = ("a/secret", "a/b/mounted/secret", "vault/key", "none/yet")


def _fill(top: Path) -> None:
    for name in ("a/b/mounted", "a/b/beside", "a blank\r/mounted", "proc", "over/under", "vault", "again"):
        (top / name).mkdir(parents=True)
    texts = {"file": "top", "a/b/beside/file": "beside", "a/b/mounted/under": "UNDER", "source": "from elsewhere",
             "mounted file": "UNDER", "mounted socket": "UNDER", "a/secret": "SECRET",
             "vault/key": "SECRET", "second name": "UNDER"}  # fmt: skip
    for name, text in texts.items():
        (top / name).write_text(text)
    (top / "link").symlink_to("a/b/beside/file")


def _mount(*words: str | Path) -> None:
    subprocess.run(["mount", *words], check=True)


def _mount_all(top: Path) -> None:
    for name in ("a/b/mounted", "a/b/mounted/inner", "a blank\r/mounted", "over/under", "over"):
        (top / name).mkdir(exist_ok=True)
        _mount("-t", "tmpfs", "-o", "mode=755", "none", top / name)
    _mount("--bind", top / "source", top / "mounted file")
    _mount("--bind", top / "socket", top / "mounted socket")
    _mount("--bind", top / "a/secret", top / "second name")
    _mount("--bind", top / "vault", top / "again")
    if os.geteuid() == 0:  # else only with a process namespace
        _mount("-t", "proc", "none", top / "proc")
    for name in ("a/b/mounted", "a/b/mounted/inner", "a blank\r/mounted", "over"):
        (top / name / "file").write_text("mounted")
    (top / "a/b/mounted/secret").write_text("SECRET")


class _Heard:
    """The sockets and FIFOs of the host, and which of them somebody reached."""

    def __init__(self) -> None:
        self._sockets: dict[str, socket.socket] = {}
        self._fifos: dict[str, int] = {}

    def listen(self, top: Path, folders: tuple[str, ...]) -> None:
        for folder in folders:
            self._listen(str(top / folder / "socket"))
            path = str(top / folder / "fifo")
            os.mkfifo(path)
            os.chmod(path, 0o666)
            self._fifos[path] = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def _listen(self, path: str) -> None:
        made = self._sockets[path] = socket.socket(socket.AF_UNIX)
        made.bind(path)
        os.chmod(path, 0o777)
        made.listen()
        made.settimeout(0)

    def reached(self) -> list[str]:
        found = [path for path, fifo in self._fifos.items() if os.read(fifo, 1)]
        for path, listener in self._sockets.items():
            try:
                listener.accept()
                found.append(path)
            except BlockingIOError:
                pass
        return sorted(found)


def main(top: Path, way: str, later: bool) -> None:
    heard, policy = _Heard(), SandboxPolicy(
        isolation="strict", readable_paths=(str(top),), wall_time_s=60,
        # The last one has them hidden by whiteouts, since no tripwire can be laid there.
        hidden_paths=(*(f"{top}/{name}" for name in _HIDDEN), "/tmp/none"),
    )  # fmt: skip
    _fill(top)
    heard.listen(top, ("", "a/b"))
    if not later:
        _mount_all(top)
        heard.listen(top, ("a/b/mounted", "over"))
    answer = WAYS[way](policy, top, (lambda: _change(top, heard)) if later else (lambda: None))
    print(json.dumps({"seen": json.loads(answer), "reached": heard.reached()}))


def _change(top: Path, heard: _Heard) -> None:
    """The host goes on after the sandbox was built."""
    _mount_all(top)
    heard.listen(top, ("a/b/mounted", "over"))
    (top / "none").mkdir()
    (top / "none" / "yet").write_text("SECRET")


Change = Callable[[], None]


def _plain(policy: SandboxPolicy, top: Path, change: Change) -> bytes:
    return subprocess.run([sys.executable, "-c", PROBE, top], stdout=subprocess.PIPE, check=True).stdout


def _run(policy: SandboxPolicy, top: Path, change: Change) -> bytes:
    command = [sys.executable, "-c", PROBE, str(top)]
    ringfence.run(command, policy)
    change()
    return ringfence.run(command, policy).stdout


def _warm(policy: SandboxPolicy, top: Path, change: Change) -> bytes:
    with ringfence.Pool(policy, warm=1, at_once=1) as pool:
        pool.run([sys.executable, "-c", "pass"])
        change()
        return pool.run([sys.executable, "-c", PROBE, str(top)]).stdout


def _source(policy: SandboxPolicy, top: Path, change: Change) -> bytes:
    with ringfence.Pool(policy, warm=1, at_once=1) as pool:
        pool.run_source("pass")
        change()
        return pool.run_source(PROBE, arguments=[str(top)]).stdout


def _box(policy: SandboxPolicy, top: Path, change: Change) -> bytes:
    with ringfence.open(policy) as box:
        change()
        return box.run([sys.executable, "-c", PROBE, str(top)]).stdout


def _crowd(policy: SandboxPolicy, top: Path, change: Change) -> bytes:
    """More names beside the mounts than are shown one by one."""
    for number in range(1001):
        (top / f"name {number}").touch()
    try:
        return _run(policy, top, change)
    except ringfence.SetupError as error:
        return json.dumps({"error": str(error)}).encode()


WAYS = {"plain": _plain, "run": _run, "warm": _warm, "source": _source, "box": _box, "crowd": _crowd}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], "later" in sys.argv)
