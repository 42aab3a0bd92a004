"""Runs Python jobs as a spawner does: an isolated interpreter that loads, freezes and forks; for tests only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SOURCE_ROOT = Path(__file__).resolve().parent.parent.parent.parent / "src"
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/nonexistent"}
# What the process that is forked has: a variable more, one less and one that is different.
USUAL = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/elsewhere", "LC_ALL": "POSIX", "TZ": "XYZ-9"}

# The parent stands for the spawner: signals ignored as there, and streams that are not the job's.
_PARENT = """
import sys; sys.path.insert(0, {root!r})
{preload}
from ringfence.python_jobs import interpreter
del sys.path[0]
interpreter.prepare()
import os, signal
job = os.fdopen({job}, "rb").read()
signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, lambda *_: None)
interpreter.settle({usual!r})
for count in range({count}):
    child = os.fork()
    if child == 0:
        if {rehearsed}: interpreter.rehearse()
        os.dup2({channel}, 3)
        {in_fork}
        interpreter.run(job, environment={environment!r}, channel={reply}, farewell={farewell}, token=b"token")
    _, status = os.waitpid(child, 0)
    os.write({status}, b"%d " % status)
"""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a job ended: streams, reply, and its status as ``subprocess`` tells it."""

    stdout: bytes
    stderr: bytes
    status: int
    message: bytes


def run_forked(
    job: bytes, *, stdin: bytes = b"", cwd: Path | None = None, environment: Mapping[str, str] = ENVIRONMENT,
    preload: str = "", count: int = 1, rehearsed: bool = False, is_awaited: bool = False,
    usual: Mapping[str, str] = USUAL, in_fork: str = "pass",
) -> Ended:  # fmt: skip
    """Fork an interpreter that runs ``job``, ``count`` times; the status is the last one's."""
    job_reader, job_writer = os.pipe()
    told, channel = os.pipe()
    ended, status = os.pipe()
    parent = _PARENT.format(root=str(SOURCE_ROOT), job=job_reader, environment=dict(environment), channel=channel,
                            status=status, preload=preload, count=count, rehearsed=rehearsed, usual=dict(usual),
                            in_fork=in_fork, reply=-1 if is_awaited else 3,
                            farewell=3 if is_awaited else -1)  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", parent], env={}, cwd=cwd, pass_fds=(job_reader, channel, status),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    for descriptor in (job_reader, channel, status):
        os.close(descriptor)
    with os.fdopen(job_writer, "wb") as file:
        file.write(job)
    stdout, stderr = process.communicate(stdin, timeout=120)
    with os.fdopen(told, "rb") as messages, os.fdopen(ended, "rb") as statuses:
        message, last = messages.read(), statuses.read().split()
    assert len(last) == count, stderr.decode("utf-8", "replace")
    return Ended(stdout=stdout, stderr=stderr, message=message, status=os.waitstatus_to_exitcode(int(last[-1])))


def run_python(path: Path, arguments: tuple[str, ...] = (), *, stdin: bytes = b"", cwd: Path | None = None) -> Ended:
    """What a real ``python FILE`` makes of it."""
    done = subprocess.run([sys.executable, str(path), *arguments], input=stdin, capture_output=True, cwd=cwd,
                          env=ENVIRONMENT, timeout=120, check=False,
                          preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))  # fmt: skip  # under nohup
    return Ended(stdout=done.stdout, stderr=done.stderr, status=done.returncode, message=b"")

