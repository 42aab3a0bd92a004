"""A process of its own that has CRIU write the images of one process tree of a living, stopped sandbox.

CRIU runs inside: in the sandbox's namespaces and with its id, so that whatever it is made to believe by the memory it
reads, it has no power over the host. CRIU must not see two files there as they are, so each gets a cover for that time:

- ``status`` says that there is no filter. CRIU would lift it, which takes root on the host. The filter stays up instead
  and lets pass what CRIU's code in the process needs; the images hold no filter.
- ``smaps`` names the device of mapped files as the kernel's ``stat`` does. On an overlay the two differ, and the
  links that CRIU would rather follow are root's alone.
"""

from __future__ import annotations

import marshal
import os
import re
import sys

from ringfence.kernel.criu import criu
from ringfence.kernel.criu import processes as members
from ringfence.kernel.mount import mounts
from ringfence.kernel.mount import setns as entering

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.transport.request import DumpRequest

_MAPPED = re.compile(rb"^([0-9a-f]+-[0-9a-f]+ \S+ [0-9a-f]+ )[0-9a-f]+:[0-9a-f]+ (\d+)( +)(/.*)$", re.MULTILINE)
_FILTER = re.compile(rb"^(Seccomp|Seccomp_filters):\t\d+$", re.MULTILINE)
_MNT_DETACH = 2
_LOG_BYTES = 1 << 16


class Cover:
    """One file of /proc in the sandbox, and what lies over it for a while."""

    def __init__(self, folder: str, inside: int, name: str) -> None:
        path = f"{folder}/{inside}-{name}"
        self.name, self.target = name, f"/proc/{inside}/{name}"
        self.writer = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
        self.tree = mounts.clone(path)

    def put(self) -> None:
        """Inside the sandbox."""
        with open(self.target, "rb") as file:
            content = file.read()
        content = _FILTER.sub(rb"\1:\t0", content) if self.name == "status" else _MAPPED.sub(_as_stat, content)
        with open(self.writer, "wb") as file:
            file.write(content)
        mounts.attach_at(self.tree, self.target)

    def remove(self) -> None:
        mounts.unmount(os.fsencode(self.target), _MNT_DETACH)


def _as_stat(row: re.Match[bytes]) -> bytes:
    try:
        found = os.stat(row[4])
    except OSError:
        return row[0]  # a removed file, or not a file: CRIU reports what it makes of it
    if found.st_ino != int(row[2]):
        return row[0]
    device = b"%02x:%02x" % (os.major(found.st_dev), os.minor(found.st_dev))
    return row[1] + device + b" " + row[2] + row[3] + row[4]


def main() -> None:
    """Read the request; write an empty line, or the problem."""
    request: DumpRequest = marshal.load(sys.stdin.buffer)
    try:
        problem = _dump(request)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    sys.stdout.write(problem.replace("\n", " ")[:2000] + "\n")
    sys.stdout.flush()


def _dump(request: DumpRequest) -> str:
    images = os.open(request["folder"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    covers = [Cover(request["covers"], int(members.status(thread)["NSpid"].split()[-1]), name)
              for pid in request["pids"]
              for thread in members.threads(pid)
              for name in (("status", "smaps") if thread == pid else ("status",))]  # fmt: skip
    first = os.pidfd_open(request["first"])
    entering.let_children_enter(first)
    reader, writer = os.pipe()
    inside = os.fork()
    if inside == 0:
        _run_inside(first, covers, request, images, writer)
    os.close(writer)
    with open(reader, "rb") as log:
        said = log.read(_LOG_BYTES)
        while log.read(_LOG_BYTES):
            pass
    code = os.waitstatus_to_exitcode(os.waitpid(inside, 0)[1])
    return criu.told(said) if code else ""


def _run_inside(first: int, covers: list[Cover], request: DumpRequest, images: int, log: int) -> None:
    code = 1
    put: list[Cover] = []
    try:
        entering.enter(first, *request["ids"])
        for cover in covers:
            cover.put()
            put.append(cover)
        code = _criu(criu.dump_command(request["criu"], images, request["root"]), images, log)
    except Exception as error:
        os.write(log, f"(): {type(error).__name__}: {error}\n".encode())
    finally:
        for cover in put:
            cover.remove()
        os._exit(code)


def _criu(argv: list[str], images: int, log: int) -> int:
    child = os.fork()
    if child == 0:
        try:
            criu.become(argv, log, [images])
        except OSError as error:
            os.write(log, f"(): {argv[0]} can't be run in the sandbox: {error.strerror}\n".encode())
        finally:
            os._exit(127)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
