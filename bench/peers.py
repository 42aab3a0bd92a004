"""What a user would pick instead, as data: where each comes from, its command line, and whether it works here.

Each is asked for what STRICT gives, as far as it has it: no network, system directories read-only, private /tmp, /proc
and /dev, no capability. A probe run decides whether a peer takes part; existence is not usability.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import docker_engine, image
from bench.harness import NotHere
from bench.installing import compiled, from_debian, from_npm, from_pypi
from ringfence.sandbox import host
from ringfence.sandbox import root as rootfs

PROBE_S = 60
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else str(Path(sys.executable).resolve())
SNIPPET = "print(1+1)"
ANSWER = b"2\n"


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One other sandbox, given as a command line that is put before the program's own."""

    name: str
    install: Callable[[], str]
    """Gives the path of its program, or says why it is not to be had."""
    words: Callable[[Sequence[str]], list[str]]
    """What follows the program to run this argv."""
    version: tuple[str, ...] = ("--version",)


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A peer that has shown that it works."""

    name: str
    version: str
    run: Callable[[Sequence[str]], bytes]
    """Run an argv in a fresh sandbox; gives what it printed, raises when it failed."""
    command: Callable[[Sequence[str]], list[str]] | None = None
    """Absent: it is driven through a library, not a command line."""


def _bubblewrap_words(argv: Sequence[str]) -> list[str]:
    return [*same_mounts(), "--chdir", rootfs.WORK, *argv]


@functools.cache
def same_mounts() -> tuple[str, ...]:
    """bubblewrap's words for the root that STRICT builds."""
    words = ["--unshare-all", "--die-with-parent", "--new-session", "--hostname", "ringfence", "--clearenv"]
    for path, target in host.system_links():
        words += ["--symlink", target, path]
    shown, copies = host.configuration()
    files = (path for path, _, link in copies if not link)
    for path in (*(entry.path for entry in (*host.system_folders(), *shown)), *files):
        words += ["--ro-bind", path, path]
    words += ["--dev", "/dev", "--proc", "/proc"]
    for path in ("/tmp", "/var/tmp", "/dev/shm", rootfs.HOME, rootfs.WORK):
        words += ["--tmpfs", path]
    for name in host.present("/proc", rootfs.PROC_FILES):
        words += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    for name in host.present("/proc", rootfs.PROC_FOLDERS):
        words += ["--tmpfs", f"/proc/{name}"]
    return (*words, "--ro-bind", "/proc/sys", "/proc/sys", "--cap-drop", "ALL")


def bubblewrap_in(folder: str, argv: Sequence[str], *mounts: str) -> list[str]:
    """A command line in a directory of the host's, which it may write, with further mounts over it."""
    program = from_debian("bwrap", ["bubblewrap"])
    return [program, *same_mounts(), "--bind", folder, folder, *mounts, "--chdir", folder, *argv]


_FIREJAIL = ("--quiet", "--noprofile", "--private", "--private-dev", "--private-tmp", "--net=none", "--caps.drop=all",
             "--seccomp", "--nonewprivs", "--")  # fmt: skip
_CONTAINER = ("run", "--rm", "--pull=never", "--network=none", "--read-only", "--cap-drop=ALL",
              "--security-opt=no-new-privileges", "--tmpfs=/tmp", "--ulimit=nofile=512:512",
              "--ulimit=nproc=512:512")  # fmt: skip


def _srt() -> str:
    for program, package in (("bwrap", "bubblewrap"), ("rg", "ripgrep"), ("socat", "socat")):
        from_debian(program, [package])
    return from_npm("@anthropic-ai/sandbox-runtime", "srt")


def _docker() -> str:
    path = docker_engine.client()
    image.ensure(path, PYTHON)
    return path


def _podman() -> str:
    path = from_debian("podman", ["podman", "runc"])
    image.ensure(path, PYTHON)
    return path


def _podman_words(argv: Sequence[str]) -> list[str]:
    # crun, the other runtime, refuses hosts with both versions of cgroups.
    runtime = ["--runtime=runc"] if shutil.which("runc") else []
    return [*runtime, *_CONTAINER, image.NAME, *argv]


PEERS = (
    Peer(
        name="bubblewrap",
        install=lambda: from_debian("bwrap", ["bubblewrap"]),
        words=_bubblewrap_words,
    ),
    Peer(
        name="firejail",
        install=lambda: from_debian("firejail", ["firejail"]),
        words=lambda argv: [*_FIREJAIL, *argv],
    ),
    Peer(name="srt", install=_srt, words=lambda argv: ["-c", shlex.join(argv)]),
    Peer(
        name="runsc (gVisor)",
        install=lambda: from_debian("runsc", ["runsc"]),
        words=lambda argv: ["--rootless", "--network=none", "do", *argv],
    ),
    Peer(
        name="docker run",
        install=_docker,
        words=lambda argv: [*_CONTAINER, image.NAME, *argv],
    ),
    Peer(
        name="podman run",
        install=_podman,
        words=_podman_words,
    ),
)


@functools.cache
def find(name: str) -> Ready | NotHere:
    """The peer, tried once in this process; or why it does not take part."""
    try:
        return sandlock() if name == "sandlock" else _ready(next(peer for peer in PEERS if peer.name == name))
    except NotHere as reason:
        return reason


def need(name: str) -> Ready:
    found = find(name)
    if isinstance(found, NotHere):
        raise found
    return found


NAMES = (*(peer.name for peer in PEERS), "sandlock")


def _ready(peer: Peer) -> Ready:
    program = peer.install()

    def command(argv: Sequence[str]) -> list[str]:
        return [program, *peer.words(argv)]

    told = _said([program, *peer.version])
    ready = Ready(name=peer.name, version=_version(told), run=lambda argv: plain(command(argv)), command=command)
    _said(command([PYTHON, "-c", SNIPPET]), expected=ANSWER)
    return ready


def _version(told: bytes) -> str:
    words = told.decode(errors="replace").split()
    return next((word.strip(",") for word in words if word[0].isdigit()), " ".join(words[:4]))


def _said(command: list[str], expected: bytes | None = None) -> bytes:
    """What a command prints; NotHere when it does not work or prints something else."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotHere(f"the probe did not end: {type(error).__name__}") from error
    if done.returncode or (expected is not None and done.stdout != expected):
        said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        raise NotHere(f"the probe failed: {said[-1][:200] if said else f'exit code {done.returncode}'}")
    return done.stdout


def plain(argv: Sequence[str]) -> bytes:
    """A child without any sandbox."""
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout


# ---- sandlock has no command line in its package; a worker in its own interpreter is handed each argv

_WORKER = """
import json, sys, sandlock
rules = {"fs_readable": ["/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/dev"], "fs_writable": ["/tmp"]}
print(json.dumps(sandlock.__version__), flush=True)
for line in sys.stdin:
    result = sandlock.Sandbox(**rules).run(json.loads(line))
    print(json.dumps(result.stdout.decode() if result.success else None), flush=True)
"""


def sandlock() -> Ready:
    """A fresh sandbox for each run, as the others; whoever asks for it is warm, as ringfence's caller is."""
    worker = subprocess.Popen(
        [from_pypi("sandlock"), "-c", _WORKER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    atexit.register(_end, worker)
    version = str(_answer(worker))

    def run(argv: Sequence[str]) -> bytes:
        assert worker.stdin is not None
        worker.stdin.write(json.dumps(list(argv)).encode() + b"\n")
        worker.stdin.flush()
        return str(_answer(worker)).encode()

    if run([PYTHON, "-c", SNIPPET]) != ANSWER:
        raise NotHere("the probe printed something else")
    return Ready(name="sandlock", version=version, run=run)


def _answer(worker: subprocess.Popen[bytes]) -> object:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line or line == b"null\n":
        raise NotHere("the probe failed in sandlock's worker")
    told: object = json.loads(line)
    return told


def _end(worker: subprocess.Popen[bytes]) -> None:
    assert worker.stdin is not None
    worker.stdin.close()
    worker.wait()


# ---- the floor


def floor_ms(launches: int = 5) -> float:
    """The kernel's own share of a launch: the median of some, in one process, timed by itself."""
    told = plain([compiled(Path(__file__).parent / "floor.c"), str(launches)])
    times = sorted(float(line) for line in told.split())
    return times[len(times) // 2]
