"""The processes below some others, looked at many times a second: who they are, and what each has counted.

The same rows as ``procfs.descendants``, from files that stay open, and with each one's parent. A look costs little for
processes that did nothing since the last one. It adds nothing up.
"""

from __future__ import annotations

import os
import sys

from ringfence.kernel.proc import procfs
from ringfence.kernel.proc.open_files import DescriptorBudget, PinnedFile
from ringfence.kernel.proc.procfs import Process

Counts = tuple[int, int]
"""(bytes written to storage, calls of the read and write family)."""


_NO_PULSE = (b"", b"0 0 0\n")
_COLLECTED = b"X"
"""The state of a process that its parent has waited for."""


class _Files:
    """The files of one process. Its pulse says to the nanosecond how long it has run; if unchanged, it did nothing."""

    __slots__ = ("beat", "children", "counts", "io", "known_children", "line", "net", "pid", "pulse", "row", "stat")

    def __init__(self, pid: int, room: DescriptorBudget) -> None:
        self.pid = pid
        self.pulse = PinnedFile(f"/proc/{pid}/schedstat", room)
        self.stat = PinnedFile(f"/proc/{pid}/stat", room, seldom=True)
        self.children = PinnedFile(f"/proc/{pid}/task/{pid}/children", room, seldom=True)
        self.io = PinnedFile(f"/proc/{pid}/io", room, seldom=True)
        self.net = PinnedFile(f"/proc/{pid}/net/dev", room, seldom=True)
        self.beat = self.line = b""
        self.row: Process | None = None
        self.counts: Counts | None = None
        self.known_children: list[int] = []

    @property
    def has_pulse(self) -> bool:
        """The pulse is that of one thread, and stands still on kernels that keep none."""
        return self.row is not None and self.row.threads == 1 and self.beat not in _NO_PULSE

    def read(self) -> bool:
        """Whether it has done anything since the last time; row None: it is gone, or another has its number."""
        beat = self.pulse.read()
        if beat == self.beat and self.has_pulse:
            return False
        still, self.beat = beat == self.beat, beat
        line = self.stat.read()
        if line == self.line and line:
            return not still
        before, self.line = self.row, line
        self.row = _parsed(self.pid, line)
        if before is not None and self.row is not None and self.row.start != before.start:
            self.row = None
        return True

    def list_children(self) -> list[int]:
        threads = self.row.threads if self.row is not None else 1
        found = procfs.children(self.pid) if threads > 1 else map(int, self.children.read().split())
        self.known_children = list(found)
        return self.known_children

    def read_by_another(self) -> bytes:
        """Its io file, by a living thread: an ordinary user may not open that of a first thread that has ended."""
        if self.row is None or self.row.asked == self.pid:
            return b""
        return PinnedFile(f"/proc/{self.row.asked}/io", DescriptorBudget(0)).read()

    def close(self) -> None:
        for file in (self.pulse, self.stat, self.children, self.io, self.net):
            file.close()


def _parsed(pid: int, line: bytes) -> Process | None:
    try:
        return Process(pid, line[line.rindex(b")") + 2 :].split())
    except (ValueError, IndexError):
        return None


class TreeFiles:
    """Everything below some processes; the roots themselves have the parent 0."""

    def __init__(self, room: DescriptorBudget) -> None:
        self._room = room
        self._files: dict[int, _Files] = {}
        self.parents: dict[int, int] = {}
        self.stirred: set[int] = set()
        """Those below that did something since the look before, new ones among them."""
        self._roots: tuple[int, ...] = ()
        self._pulses: list[tuple[PinnedFile, bytes]] = []
        self._settled = False
        """The last look found nothing new, so no root has other children than before."""

    @property
    def rows(self) -> dict[int, Process]:
        return {pid: row for pid in self.parents if (row := self._files[pid].row) is not None}

    def look(self, roots: tuple[int, ...], *, whole: bool = False) -> bool:
        """Whether anything has changed. ``whole``: if anything has, processes that seem to have done nothing are asked
        for children too."""
        if self._settled and self._roots == roots and self._all_still():
            return False
        before, self.parents, self.stirred, self._roots = self.parents, {}, set(), roots
        self._walk([(0, root) for root in roots], whole)
        self._find_adopted()
        self._settled = not self.stirred and self.parents == before
        if self._settled:
            self._note_pulses()
            return False
        for pid, parent in self.parents.items():
            if parent == 0:
                self._files[pid].read()  # what it has waited for
        return True

    def _note_pulses(self) -> None:
        """All or none: the short way works only if every process has one."""
        below = [self._files[pid] for pid, parent in self.parents.items() if parent]
        every = all(files.has_pulse for files in below)
        self._pulses = [(files.pulse, files.beat) for files in below] if every else []

    def _all_still(self) -> bool:
        """The short way for a tree in which nothing happens, which is most of them most of the time."""
        for pulse, beat in self._pulses:
            if not pulse.still_reads(beat):
                return False
        return bool(self._pulses)

    def _walk(self, waiting: list[tuple[int, int]], whole: bool) -> None:
        while waiting:
            parent, pid = waiting.pop()
            if pid in self.parents:
                continue
            files = self._current(pid, is_root=parent == 0, whole=whole)
            if files is None:
                continue
            self.parents[pid] = parent
            asked = whole or pid in self.stirred or (parent == 0 and not (self._settled and files.known_children))
            waiting += [(pid, child) for child in (files.list_children() if asked else files.known_children)]

    def _current(self, pid: int, *, is_root: bool, whole: bool) -> _Files | None:
        """The files of the process that has this number now; None: there is none."""
        files = self._files.get(pid)
        if files is not None and is_root and not whole:
            return files  # what it does itself is not asked for, and it does something all the time
        if files is not None:
            stirred = files.read()
            if files.row is not None:
                if stirred and not is_root:
                    self.stirred.add(pid)
                return files
            files.close()
        files = self._files[pid] = _Files(pid, self._room)
        files.read()
        if files.row is None:
            return None
        if not is_root:
            self.stirred.add(pid)
        return files

    def _find_adopted(self) -> None:
        """Those that live and were not met: their parent has ended, or had them adopted while we walked."""
        missing = self._files.keys() - self.parents.keys()
        while missing:
            met = [pid for pid in missing if self._adoptive_parent(pid) in self.parents]
            for pid in met:
                self._walk([(self._adoptive_parent(pid), pid)], True)
            missing -= self.parents.keys()
            if not met:
                break
        for pid in missing:
            self._files.pop(pid).close()

    def _adoptive_parent(self, pid: int) -> int:
        """The parent of now; -1: it is gone."""
        files = self._files[pid]
        files.read()
        if files.row is None or files.row.zombie:
            return -1
        return int(files.line[files.line.rindex(b")") + 2 :].split(None, 2)[1])

    def counts(self, pid: int, *, anew: bool) -> Counts | None:
        """The counts of a process that was found, with the children that it has waited for; None if not readable."""
        files = self._files[pid]
        if anew or files.counts is None:
            text = files.io.read() or files.read_by_another()
            if not text:
                return None
            # rchar, wchar, syscr, syscw, read_bytes, write_bytes, cancelled_write_bytes: in this order since 2.6.20
            words = text.split()
            files.counts = int(words[11]), int(words[5]) + int(words[7])
        return files.counts

    def has_ended(self, pid: int) -> bool:
        """Whether one that was found has been collected since: its parent may have its counts already."""
        files = self._files[pid]
        line, before = files.stat.read(), files.row
        row = _parsed(pid, line)
        if row is None or before is None or row.start != before.start:
            return True
        return line.rpartition(b") ")[2].startswith(_COLLECTED)

    def network_bytes(self, pid: int) -> tuple[int, int]:
        """(received and sent, over loopback) in the network namespace of one that was found, since that began."""
        outside = loopback = 0
        for line in self._files[pid].net.read().rstrip(b"\n").split(b"\n")[2:]:
            name, _, figures = line.partition(b":")
            columns = figures.split()
            moved = int(columns[0]) + int(columns[8])
            if name.strip() == b"lo":
                loopback += moved
            else:
                outside += moved
        return outside, loopback

    def proportional_bytes(self, process: Process) -> int:
        return procfs.proportional_bytes(process)

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()


def has_datagrams_at(pid: int, address: str, port: int) -> bool:
    """Whether an IPv4 UDP socket is bound to this address and port in the network namespace of a process."""
    number = int.from_bytes(bytes(map(int, address.split("."))), sys.byteorder)
    wanted = b"%08X:%04X" % (number, port)
    try:
        with open(f"/proc/{pid}/net/udp", "rb") as file:
            return any(line.split()[1:2] == [wanted] for line in file)
    except OSError:
        return False


def own_network(pid: int) -> bool:
    """Whether the process has a network namespace that is not ours; also False where that may not be known."""
    try:
        theirs, ours = os.stat(f"/proc/{pid}/ns/net"), os.stat("/proc/self/ns/net")
    except OSError:
        return False
    return (theirs.st_dev, theirs.st_ino) != (ours.st_dev, ours.st_ino)
