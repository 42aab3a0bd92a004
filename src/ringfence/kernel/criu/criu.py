"""CRIU as a program: where it is, whether it works here, and how it is called. It reads and writes images; we do not.

What is handed to it is always the same: it runs inside the sandbox, with the sandbox's id, and its images lie in a
directory that only a descriptor leads to.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from ringfence.errors import UnavailableError

OLDEST = (4, 1)
_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin"
_PATIENCE_S = 60
HINT = "install criu 4.1 or later (with Linux 6.16, 4.2), or leave processes out: files and state are kept without it"
# We put processes in groups ourselves. Locks of the network need packet filter rules, and everything is stopped.
_BOTH = ("--unprivileged", "--no-default-config", "--shell-job", "--tcp-established", "--file-locks",
         "--manage-cgroups=ignore", "--network-lock", "skip")  # fmt: skip
GHOST_LIMIT = "64M"
"""The largest removed file that a process may still hold open."""

_usable: dict[str, str] = {}


def find() -> str:
    """Its path; UnavailableError where it is missing, too old or does not work on this kernel."""
    path = shutil.which("criu", path=_FOLDERS)
    if path is None:
        raise unavailable("criu is not installed")
    if path not in _usable:
        _usable[path] = _problem(path)
    if _usable[path]:
        raise unavailable(_usable.pop(path))
    return path


def unavailable(problem: str) -> UnavailableError:
    return UnavailableError(f"running processes can't be checkpointed: {problem}", missing=("criu",), hint=HINT)


def _problem(path: str) -> str:
    said = _run([path, "--version"])
    words = said.stdout.split()
    number = words[1] if len(words) > 1 and words[0] == "Version:" else ""
    if not number or tuple(int(part) for part in number.split(".")[:2] if part.isdigit()) < OLDEST:
        return f"{path} is {number or 'of no known version'}, and 4.1 is needed"
    checked = _run([path, "check"])
    if checked.returncode:
        lines = [line for line in checked.stderr.splitlines() if "Error" in line]
        return f"«criu check» fails: {lines[0] if lines else checked.returncode}"
    return ""


def _run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_PATIENCE_S, env={}, cwd="/")
    except (OSError, subprocess.SubprocessError) as error:
        return subprocess.CompletedProcess(argv, 1, "", f"Error {error}")


def dump_command(path: str, images: int, root: int) -> list[str]:
    """``root``: as the sandbox numbers it."""
    where = ["--images-dir", f"/proc/self/fd/{images}", "--tree", str(root)]
    return [path, "dump", *where, "--leave-running", "--ghost-limit", GHOST_LIMIT, "-v1", *_BOTH]


def restore_command(path: str, images: int, pipes: list[tuple[int, int]]) -> list[str]:
    """``pipes``: (descriptor, inode of the pipe that it replaces)."""
    given = [word for descriptor, inode in pipes for word in ("--inherit-fd", f"fd[{descriptor}]:pipe:[{inode}]")]
    where = ["--images-dir", f"/proc/self/fd/{images}"]
    return [path, "restore", *where, "--restore-detached", "--leave-stopped", "-v1", *_BOTH, *given]


def told(log: bytes) -> str:
    """The first error of a log that matters."""
    lines = [line.partition("): ")[2] or line for line in log.decode("utf-8", "replace").splitlines()]
    # CRIU always complains about these two, and goes on.
    real = [line for line in lines if line.strip() and "RLIMIT_NOFILE" not in line and "stats-" not in line]
    return real[0] if real else "criu gave no reason"


def environment() -> dict[str, str]:
    return {"PATH": _FOLDERS, "LANG": "C"}


def become(argv: list[str], log: int, keep_open: list[int]) -> None:
    """exec CRIU, with its output going to ``log`` and these descriptors kept. Never returns."""
    for descriptor in keep_open:
        os.set_inheritable(descriptor, True)
    null = os.open("/dev/null", os.O_RDWR)
    for number, descriptor in enumerate((null, log, log)):
        os.dup2(descriptor, number)
    os.execve(argv[0], argv, environment())
