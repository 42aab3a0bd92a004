"""The processes of one pid namespace, as the host sees them: who they are, and stopping all of them at once.

Everything is read from outside, from files that the kernel writes. Ours in there are told from the guest's by the
filter, which ours do not have.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Iterable, Mapping

from ringfence.errors import CheckpointError
from ringfence.kernel.proc import held_files, procfs
from ringfence.model.record import record

_PATIENCE_S = 10.0
_PAUSE_S = 0.002
_STOPPED, _DEAD = "Tt", "ZX"
_ACCESS_MODE = 3
_UNCONNECTED = ("07", "0A")
"""TCP states: closed, and listening."""


@record
class Member:
    """A process of the tree, as it was read."""

    pid: int
    inside: int
    """Its number in the sandbox."""
    parent: int
    states: str
    """The states of its threads, one letter each."""
    filters: int
    """How many filters it has beyond those of pid 1, which may be in a container that has one too."""

    @property
    def filtered(self) -> bool:
        """It is the guest's."""
        return self.filters > 0

    @property
    def dead(self) -> bool:
        return self.states[0] in _DEAD

    @property
    def stopped(self) -> bool:
        return all(state in _STOPPED + _DEAD for state in self.states)


def of(first: int) -> list[Member]:
    """All but the first one, which is pid 1 there."""
    place, outer = _namespace(first), filters(status(first))
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    found = (_member(pid, outer) for pid in pids if pid != first and place and _namespace(pid) == place)
    return sorted((member for member in found if member), key=lambda member: member.inside)


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def filters(fields: Mapping[str, str]) -> int:
    """System call filters, by what /proc says; before Linux 5.10 it only says whether there is one."""
    return int(fields.get("Seccomp_filters", "1" if fields.get("Seccomp") == "2" else "0"))


def _member(pid: int, outer: int) -> Member | None:
    fields = status(pid)
    if not fields:
        return None
    return Member(
        pid=pid, inside=int(fields["NSpid"].split()[-1]), parent=int(fields["PPid"]),
        states="".join(_states(pid)) or fields["State"][0], filters=filters(fields) - outer,
    )  # fmt: skip


def status(pid: int) -> dict[str, str]:
    """/proc/pid/status; empty when it is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace", newline="\n") as file:
            rows = (line.partition(":") for line in file)
            return {name: value.strip() for name, _, value in rows}
    except OSError:
        return {}


def _states(pid: int) -> Iterable[str]:
    for thread in threads(pid):
        state = status(thread).get("State", "")
        if state:
            yield state[0]


def threads(pid: int) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return []


def roots(members: Iterable[Member]) -> list[Member]:
    """The guest's processes that have no other process of the guest above them."""
    living = {member.pid: member for member in members if member.filtered and not member.dead}
    return [member for member in living.values() if member.parent not in living]


def below(root: Member, members: Iterable[Member]) -> list[Member]:
    """The root and all its descendants."""
    found = [root]
    everybody = list(members)
    for member in found:
        found += [other for other in everybody if other.parent == member.pid]
    return found


def send(member: Member, number: int) -> None:
    """Signal this process, and never a later one of the same pid."""
    number_inside = [str(member.inside)]
    procfs.signal_if(member.pid, number, lambda: status(member.pid).get("NSpid", "").split()[-1:] == number_inside)


class Stopped:
    """All the guest's processes of a sandbox at one moment, from the construction to ``resume``."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.before: dict[int, bool] = {}
        """pid → whether it was stopped already."""
        try:
            self.members = self._stop()
        except BaseException:
            self.resume()
            raise

    def _stop(self) -> list[Member]:
        give_up = time.monotonic() + _PATIENCE_S
        while True:
            guests = [member for member in of(self.first) if member.filtered]
            new = [member for member in guests if member.pid not in self.before and not member.dead]
            for member in new:
                self.before[member.pid] = member.stopped
                send(member, signal.SIGSTOP)
            if not new and all(member.stopped for member in guests):
                return guests
            if time.monotonic() > give_up:
                busy = ", ".join(str(member.pid) for member in guests if not member.stopped)
                raise CheckpointError(f"processes can't be stopped: {busy}", hint="wait until they are less busy")
            time.sleep(_PAUSE_S)

    def check(self) -> None:
        """Check that these are still all of them: a job that was being set up may have begun meanwhile."""
        busy = [member for member in of(self.first) if member.filtered and not member.stopped]
        if busy:
            raise CheckpointError("another execution has begun meanwhile", hint="try again")

    def resumable(self, member: Member) -> bool:
        """It ran, and is to run again."""
        return self.before.get(member.pid) is False

    def resume(self) -> None:
        for member in of(self.first):
            if self.resumable(member):
                send(member, signal.SIGCONT)


def paths_of(pid: int) -> set[str]:
    """The files and directories that it has open or mapped, as it would name them; not those that were removed."""
    links = [f"fd/{name}" for name in _descriptors(pid)] + ["cwd", "exe", *_mapped(pid)]
    found = {_link(f"/proc/{pid}/{name}") for name in links}
    return {path for path in found if path.startswith("/") and not path.endswith(" (deleted)")}


def connections(pid: int, tree: Iterable[int]) -> list[str]:
    """The remote ends of its open TCP connections to anything but these processes, as people write them."""
    rows = [row for name in ("tcp", "tcp6") for row in _tcp_rows(f"/proc/{pid}/net/{name}")]
    own = {inode for each in tree for inode in _sockets(each)}
    ends = {(local, remote) for local, remote, inode in rows if inode in own}
    mine = _sockets(pid)
    return sorted(_readable(remote) for local, remote, inode in rows if inode in mine and (remote, local) not in ends)


def _sockets(pid: int) -> set[str]:
    links = (_link(f"/proc/{pid}/fd/{name}") for name in _descriptors(pid))
    return {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}


def _tcp_rows(path: str) -> list[tuple[str, str, str]]:
    """(local, remote, inode) of each that is connected, or was a moment ago."""
    try:
        with open(path, encoding="ascii") as file:
            columns = [line.split() for line in file][1:]
    except OSError:
        return []
    return [(row[1], row[2], row[9]) for row in columns if row[3] not in _UNCONNECTED]


def _readable(place: str) -> str:
    """``0100007F:0050`` is 127.0.0.1:80: each four bytes in the host's order."""
    address, _, port = place.partition(":")
    raw = bytes.fromhex(address)
    order = -1 if sys.byteorder == "little" else 1
    parts = b"".join(raw[start : start + 4][::order] for start in range(0, len(raw), 4))
    family = socket.AF_INET if len(parts) == 4 else socket.AF_INET6
    text = socket.inet_ntop(family, parts)
    return f"{text}:{int(port, 16)}" if family == socket.AF_INET else f"[{text}]:{int(port, 16)}"


def _mapped(pid: int) -> list[str]:
    try:
        return [f"map_files/{name}" for name in os.listdir(f"/proc/{pid}/map_files")]
    except OSError:
        return []


def image_bytes(tree: Iterable[Member]) -> int:
    """What the images of one tree take on a disk."""
    pids = [member.pid for member in tree]
    return sum(map(_private_bytes, pids)) + _unnamed_bytes(pids)


def _unnamed_bytes(tree: Iterable[int]) -> int:
    """Shared memory, files in memory and removed files, by a mapping or a descriptor: CRIU writes each once for a tree.
    On an overlay a mapping names another device than a descriptor does, so they are told apart by number and size."""
    found = set()
    for pid in tree:
        for name in (*(f"fd/{each}" for each in _descriptors(pid)), *_mapped(pid)):
            path = f"/proc/{pid}/{name}"
            if not _link(path).endswith(" (deleted)"):
                continue
            try:
                status = os.stat(path)
            except OSError:
                continue  # closed meanwhile
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                found.add((status.st_ino, status.st_blocks))
    return sum(blocks for _, blocks in found) * held_files.BLOCK_BYTES


def _private_bytes(pid: int) -> int:
    """Memory of its own as CRIU writes it: pages that it shares with its parent since a fork are written for both."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            rows = [line.split() for line in file]
    except OSError:
        return 0  # gone, or one that has no memory any more
    return sum(int(row[1]) * 1024 for row in rows if row[0] in ("Anonymous:", "Swap:"))


def write_back(tree: Iterable[Member]) -> None:
    """Flush what was written through shared mappings to the files, so that the next such write changes their times: a
    file whose pages are dirty already changes without a trace."""
    for member in tree:
        for name in _shared(member.pid):
            try:
                descriptor = os.open(f"/proc/{member.pid}/map_files/{name}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                continue  # no file, or one that is gone
            try:
                os.fsync(descriptor)
            except OSError:
                pass  # a device, or memory: nothing that a checkpoint has
            finally:
                os.close(descriptor)


def _shared(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace", newline="\n") as file:
            rows = [line.split(None, 5) for line in file]
    except OSError:
        return []
    return [row[0] for row in rows if row[1].endswith("s") and len(row) > 5 and row[5].startswith("/")]


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def outer_pipes(tree: Iterable[Member]) -> list[tuple[int, str]]:
    """(inode, "r" or "w": the end that is in the tree) of the pipes that lead out of it."""
    ends: dict[int, set[str]] = {}
    for member in tree:
        for descriptor in _descriptors(member.pid):
            inode, end = _pipe_end(member.pid, descriptor)
            if inode:
                ends.setdefault(inode, set()).update(end)
    return [(inode, next(iter(found))) for inode, found in sorted(ends.items()) if len(found) == 1]


def pipe_of(pid: int, descriptor: int) -> int:
    """The inode; 0: it is not a pipe."""
    return _pipe_end(pid, str(descriptor))[0]


def _descriptors(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return []


def _pipe_end(pid: int, descriptor: str) -> tuple[int, str]:
    try:
        target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
        if not target.startswith("pipe:["):
            return 0, ""
        with open(f"/proc/{pid}/fdinfo/{descriptor}", encoding="ascii", errors="replace") as file:
            flags = next(int(line[6:], 8) for line in file if line.startswith("flags:"))
    except (OSError, StopIteration):
        return 0, ""
    mode = flags & _ACCESS_MODE
    return int(target[6:-1]), "rw" if mode == os.O_RDWR else "w" if mode == os.O_WRONLY else "r"
