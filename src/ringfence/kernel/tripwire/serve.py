"""The tripwire's half outside the sandbox: answer every request at once, and record what touched the hidden.

A hidden place answers «no such file» to everything; a veiled directory (see ``tripwire_layout``) shows its
visible names and nothing else. Made for someone else's ``selectors`` loop: ``fileno()``, ``handle()``,
``finished``. Holds no data of any hidden file, so there is nothing it could give away; mounts nothing
(``tripwire_mount``), keeps no records (``recorder``).

Once the kernel has handed us a request, the requester waits for the answer even if killed. So whoever is
looked up in /proc between reading and answering is who asked: no reuse of process ids in between.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from _collections_abc import Callable

from ringfence.kernel.proc import first_files
from ringfence.kernel.proc.requester import Requester, identify, is_writing, visit_of
from ringfence.kernel.recorder import HIDDEN, PROCESS, Attempt, Key
from ringfence.kernel.tripwire import fuse_wire as wire
from ringfence.kernel.tripwire.fuse_wire import Op, Request
from ringfence.kernel.tripwire.layout import LINK_MODE, ROOT_NODE, Layout, Node, join

MAX_REQUESTS_PER_TURN = 256
_CHANGES = frozenset(
    (Op.SETATTR, Op.SYMLINK, Op.MKNOD, Op.MKDIR, Op.UNLINK, Op.RMDIR, Op.RENAME, Op.RENAME2, Op.LINK,
     Op.CREATE, Op.TMPFILE, Op.SETXATTR, Op.REMOVEXATTR, Op.WRITE, Op.FALLOCATE)
)  # fmt: skip
# Requests on visible things that are refused with an error other than ENOENT. ENOSYS makes the kernel stop asking, for
# hidden places too: it is used only where the request is not what tells us.
_REFUSALS: dict[int, int] = {
    Op.GETXATTR: errno.ENODATA,
    Op.LISTXATTR: errno.ENODATA,
    Op.ACCESS: errno.EROFS,
    Op.IOCTL: errno.ENOTTY,
    Op.FSYNCDIR: errno.ENOSYS,
    Op.STATX: errno.ENOSYS,
}
# A spot is there, and refused as the kernel refuses what it stands for.
_OF_SPOTS = _REFUSALS | {Op.ACCESS: errno.EACCES}


Wants = Callable[[str, Key], bool]
"""Whether it is worth finding out who made an attempt of this aim."""


def _always(_: str, __: Key) -> bool:
    return True


class Tripwire:
    """Serves one FUSE device. ``finished`` says that the file system is gone: then stop polling."""

    def __init__(
        self, device: int, layout: Layout, *, mounter: int, proc: int = -1, uid: int = 0, gid: int = 0,
        visited: bool = False,
    ) -> None:  # fmt: skip
        """``mounter``: the number of the process that calls ``tripwire_mount.bind_all``, in ``proc``, the /proc
        of its pid namespace; -1: our own. ``visited``: a box, in which each process belongs to a visit.

        ``uid`` and ``gid`` own the veiled directories, as seen in the sandbox. The descriptors are ours to close.
        """
        self._proc = proc
        self._visited = visited
        os.set_blocking(device, False)
        self._device = device
        self._mounter = mounter
        self._nodes = layout.nodes
        self._owner = (uid, gid)
        self._buffer = bytearray(wire.READ_BUFFER_BYTES)
        self._listings: dict[int, tuple[tuple[bytes, int], ...]] = {}
        self._visible_answers = self._table()
        self.finished = False
        self.answered = 0
        self.names_processes = False
        """Whether pids in requests are of the mounter's pid namespace; settled while the wire is laid."""
        self.lost = 0
        """Requests that could not be decoded or answered: attempts may hide in them."""

    def fileno(self) -> int:
        return self._device

    def close(self) -> None:
        """Ends the file system: whoever touches a hidden place afterwards gets ENOTCONN."""
        for descriptor in (self._device, self._proc):
            if descriptor >= 0:
                os.close(descriptor)
        self._device, self._proc, self.finished = -1, -1, True

    def handle(self, wants: Wants = _always) -> list[Attempt]:
        """Answer what is waiting, but never so long that a flood starves the caller's loop."""
        attempts: list[Attempt] = []
        for _ in range(MAX_REQUESTS_PER_TURN):
            data = self._next()
            if data is None:
                break
            if data:
                attempts += self._serve(data, wants)
        return attempts

    def _next(self) -> bytes | None:
        """One request; None when there is none, empty when it was withdrawn while we read it."""
        if self.finished:
            return None
        try:
            size = os.readv(self._device, [self._buffer])
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.ENOENT:
                self._end(error)
            return None if self.finished else b""
        self.finished = size == 0
        return bytes(memoryview(self._buffer)[:size])

    def _end(self, error: OSError) -> None:
        """ENODEV: the last mount is gone, as it should. Anything else left hidden places unwatched."""
        self.finished = True
        self.lost += error.errno != errno.ENODEV

    def _serve(self, data: bytes, wants: Wants) -> list[Attempt]:
        request = wire.decode(data)
        if request is None or request.op in wire.SILENT_OPS:
            self.lost += request is None
            return []
        try:
            attempts, answer = self._decide(request, wants)
        except (struct.error, ValueError):
            # A body shorter than its kind has. The requester must not wait for ever because of it.
            self.lost += 1
            attempts, answer = [], wire.reply(request.unique, error=errno.EIO)
        self._send(answer)
        return attempts

    def _decide(self, request: Request, wants: Wants) -> tuple[list[Attempt], bytes]:
        if request.op == Op.INIT:
            return [], wire.init_reply(request)
        if request.op == Op.DESTROY:
            return [], wire.reply(request.unique)
        error, answer = self._answer(request)
        attempts = [self._attempt(request, path, error, wants) for path in self._touched(request)]
        return attempts, answer

    def _attempt(self, request: Request, path: bytes, error: int, wants: Wants) -> Attempt:
        if not self.names_processes:
            return _attempt(request, Requester(), path, error, _operation(request))
        writes = request.op in _CHANGES or is_writing(request.pid, self._proc)
        aim, operation, text = HIDDEN, _operation(request), os.fsdecode(path)
        if self._is_spot(request):
            aim, operation = PROCESS, first_files.way_of(text, request.pid, self._proc)
        if not wants(aim, (operation, text, writes)):
            return _attempt(request, Requester(pid=request.pid, writes=writes), path, error, operation)
        visit = visit_of(request.pid, self._proc) if self._visited else 0
        return _attempt(request, identify(request.pid, self._proc), path, error, operation, visit)

    def _is_spot(self, request: Request) -> bool:
        node = self._nodes.get(request.node)
        return node is not None and node.spot

    def _send(self, message: bytes) -> None:
        self.answered += 1
        try:
            os.write(self._device, message)
        except OSError as error:
            if error.errno != errno.ENOENT:  # ENOENT: the requester no longer waits
                self._end(error)

    def _touched(self, request: Request) -> list[bytes]:
        """Hidden paths and spots that a request is about."""
        if request.op == Op.OPEN and self._is_spot(request):
            return [self._nodes[request.node].path]
        places = [(self._nodes.get(folder), name) for folder, name in wire.names(request)]
        return [join(place.path, name) for place, name in places if place is not None and name in place.hidden]

    def _answer(self, request: Request) -> tuple[int, bytes]:
        node = self._nodes.get(request.node)
        if request.op not in wire.KNOWN_OPS:
            error, answer = errno.ENOSYS, None
        elif node is None:
            error, answer = errno.ENOENT, None
        elif request.op in _CHANGES:
            error, answer = errno.EROFS, None
        else:
            refusals, other = (_OF_SPOTS, errno.EACCES) if node.spot else (_REFUSALS, errno.ENOENT)
            error = refusals.get(request.op, other)
            answer = self._visible_answers.get(request.op, _refused)(request, node)
        if answer is not None:
            return 0, answer
        return error, wire.reply(request.unique, error=error)

    def _table(self) -> dict[int, Callable[[Request, Node], bytes | None]]:
        """Answers of what is visible; None means refused."""
        return {
            Op.LOOKUP: self._lookup,
            Op.GETATTR: self._getattr,
            Op.READLINK: _readlink,
            Op.OPENDIR: self._opendir,
            Op.READDIR: self._listing,
            Op.READDIRPLUS: self._listing,
            Op.RELEASEDIR: lambda request, node: wire.reply(request.unique),
            Op.STATFS: lambda request, node: wire.statfs_reply(request.unique),
            Op.ACCESS: _access,
        }

    def _opendir(self, request: Request, node: Node) -> bytes:
        # Kernels differ: pids are those of the mounter's pid namespace or of the reader's. The mounter is the
        # one that lists the root, so this tells which; a wrong guess would accuse an innocent process.
        if request.node == ROOT_NODE:
            self.names_processes = request.pid == self._mounter
        return wire.open_reply(request.unique)

    def _getattr(self, request: Request, node: Node) -> bytes:
        return wire.attr_reply(request.unique, self._attrs(request.node, node))

    def _lookup(self, request: Request, node: Node) -> bytes | None:
        ((_, name),) = wire.names(request)
        child = node.children.get(name)
        if child is not None:
            return wire.reply(request.unique, self._entry(child))
        return None if name in node.hidden else wire.reply(request.unique, wire.absent_entry())

    def _listing(self, request: Request, node: Node) -> bytes:
        dots = ((b".", request.node), (b"..", request.node))
        rows = self._listings.setdefault(request.node, (*dots, *node.children.items()))
        offset, size = wire.read_window(request)
        answer = bytearray()
        for index in range(offset, len(rows)):
            row = self._row(rows[index], index + 1, plus=request.op == Op.READDIRPLUS)
            if len(answer) + len(row) > size:
                break
            answer += row
        return wire.reply(request.unique, bytes(answer))

    def _row(self, child: tuple[bytes, int], next_offset: int, *, plus: bool) -> bytes:
        name, node_id = child
        # The dots are never looked up: a listing says that they are there, and nothing else of them.
        entry = (wire.absent_entry() if name in (b".", b"..") else self._entry(node_id)) if plus else b""
        mode = self._nodes[node_id].mode
        return wire.dirent(node=node_id, next_offset=next_offset, mode=mode, name=name, plus=entry)

    def _entry(self, node_id: int) -> bytes:
        node = self._nodes[node_id]
        return wire.entry(node_id, self._attrs(node_id, node))

    def _attrs(self, node_id: int, node: Node) -> bytes:
        uid, gid = self._owner
        return wire.attributes(node=node_id, mode=node.mode, uid=uid, gid=gid, size=len(node.target))


def _refused(request: Request, node: Node) -> bytes | None:
    return None


def _readlink(request: Request, node: Node) -> bytes | None:
    return wire.reply(request.unique, node.target) if node.mode == LINK_MODE else None


def _access(request: Request, node: Node) -> bytes | None:
    return None if wire.access_mask(request) & (os.W_OK | node.spot * os.R_OK) else wire.reply(request.unique)


def _operation(request: Request) -> str:
    return wire.KNOWN_OPS.get(request.op, f"request {request.op}")


def _attempt(request: Request, who: Requester, path: bytes, error: int, operation: str, visit: int = 0) -> Attempt:
    name = path.rpartition(b"/")[2]
    text = os.fsdecode(path)
    return Attempt(
        time_ns=time.monotonic_ns(),
        wall_ns=time.time_ns(),
        operation=operation,
        path=text,
        root=first_files.FOLDER if text in first_files.FILES else text,
        errno=error,
        pid=who.pid,
        uid=request.uid,
        start_ticks=who.start_ticks,
        comm=who.comm,
        argv=who.argv,
        syscall=who.syscall,
        asked=next((text for text in who.asked if os.fsdecode(name) in text), "".join(who.asked[:1])),
        writes=who.writes or request.op in _CHANGES,
        visit=visit,
    )
