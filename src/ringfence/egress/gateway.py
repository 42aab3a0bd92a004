"""The gateway: the one process that opens connections for sandboxes, one for all sandboxes of a caller.

Runs as: gateway, one for each caller that has sandboxes with a network list, until its door is closed and the last of
    them is gone.
Parent: caller
Holds: its door, a pidfd of the caller; of each sandbox its rules, its limits, its listening sockets, the key of its
    authority and the secrets that rules inject; all connections. Its memory is hidden.
Must not have: the environment of the caller; a capability; the right to start a process or to write a file.

It parses what hostile programs send, so it has nothing that is worth taking: no environment, no files, no right to
start a process, the user ``nobody`` where the caller is root. It ends with its caller, or when its door is closed and
the last sandbox is gone. Its callers pass it descriptors through the door (``transport/passing``).
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import stat
import sys
from importlib.util import find_spec

from ringfence.egress.relay import Edges, Pipes
from ringfence.egress.sandbox_side import SandboxSide
from ringfence.egress.upstream import Resolver
from ringfence.kernel.mount.privileges import clear, lock
from ringfence.kernel.proc import processes
from ringfence.transport import passing

if sys.platform != "win32":
    import resource  # it can't load anything later

NAME = "ringfence-net"
NOBODY = 65534
_WANTED_DESCRIPTORS = 65536
_MOST_MEMORY = 1 << 30
_LATER = ("h11", "cryptography", "cffi")
_SPARE_DESCRIPTORS, _DESCRIPTORS_EACH = 128, 6
"""A connection has two sockets and, while bytes are in it, a pipe for each direction."""
_MOST_CONNECTIONS = 6144
"""So many connections fit into its memory, whatever they are for."""
_SHARE = 4
# A name is what the policy says, never one of a search list; a resolver that is silent is given up on soon.
_RESOLVER_SETTINGS = {"LOCALDOMAIN": ".", "RES_OPTIONS": "timeout:3 attempts:2"}


class Gateway:
    """What all sandboxes have in common: the loop, the way to the world, and how many connections there may be."""

    def __init__(self, door: int, caller: int) -> None:
        self.door = door
        self.caller = caller
        self.loop = asyncio.get_running_loop()
        self.resolver = Resolver()
        self.pipes, self.edges = Pipes(), Edges()
        self.sides: set[SandboxSide] = set()
        self.connections = 0
        self.descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.over: asyncio.Future[None] = self.loop.create_future()

    def share(self) -> int:
        """Return how many connections a sandbox may have now: four times what is left for the others. So a single one
        gets at most four fifths of all, two get four ninths each, and a new one always finds some left."""
        listening = sum(len(side.sockets) + len(side.spares) + 2 for side in self.sides)
        by_descriptors = (self.descriptors - _SPARE_DESCRIPTORS - listening) // _DESCRIPTORS_EACH
        return max(1, _SHARE * (min(_MOST_CONNECTIONS, by_descriptors) - self.connections))

    async def serve(self) -> None:
        """Until the door is closed and the last sandbox is gone."""
        forbid_processes()  # the resolver's threads stand by now
        self.loop.add_reader(self.caller, os._exit, 0)
        self.loop.add_reader(self.door, self._receive)
        await self.over

    def _receive(self) -> None:
        try:
            kind, descriptors = passing.receive(self.door)
        except BlockingIOError:
            return
        except OSError:
            kind, descriptors = b"", []
        if not kind:
            self.loop.remove_reader(self.door)
            self.door = -1
            self._end_when_done()
        elif kind == passing.REGISTER and len(descriptors) == 2:
            self.sides.add(SandboxSide(self, *descriptors))
        else:
            for descriptor in descriptors:
                os.close(descriptor)

    def forget(self, side: SandboxSide) -> None:
        """Forget a sandbox that is gone, with all its connections."""
        self.sides.discard(side)
        self._end_when_done()

    def _end_when_done(self) -> None:
        if self.door < 0 and not self.sides and not self.over.done():
            self.over.set_result(None)


def main(door: int, caller: int, tied: bool) -> None:
    """The gateway process. ``caller``: the process that started it; ``tied``: its first thread did."""
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    os.environ.update(_RESOLVER_SETTINGS)
    _load_what_nobody_may_read()
    limit_resources()
    become_nobody()
    processes.set_name(NAME)
    processes.hide_memory()
    processes.no_new_privileges()
    watched = os.pidfd_open(caller)
    if tied:
        # Sent when the thread that started us ends, not its process: so only where that was the first thread.
        processes.die_with_parent()
    if os.getppid() != caller:
        return
    os.set_blocking(door, False)
    gc.freeze()  # what is loaded stays: garbage collection need not walk it while a connection waits
    asyncio.run(_serve(door, watched))


async def _serve(door: int, watched: int) -> None:
    await Gateway(door, watched).serve()


def limit_resources() -> None:
    """No core, no file, and no more memory than a busy gateway needs; as many descriptors as there may be."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = _WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _WANTED_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
    for number, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_DATA, _MOST_MEMORY),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        ceiling = resource.getrlimit(number)[1]
        most = most if ceiling == resource.RLIM_INFINITY else min(most, ceiling)
        resource.setrlimit(number, (most, most))


def forbid_processes() -> None:
    """No process and no thread from now on."""
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def become_nobody() -> None:
    """Give up root, and all capabilities in any case. A user namespace without ``nobody`` allows no more than that."""
    if os.geteuid() == 0:
        lock()
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        except OSError:
            if _is_mapped(NOBODY):
                raise
    clear()


def _is_mapped(user: int) -> bool:
    """Whether this user namespace knows the user; else nobody can become it."""
    with open("/proc/self/uid_map", encoding="ascii") as file:
        rows = [[int(field) for field in line.split()] for line in file]
    return any(first <= user < first + count for first, _, count in rows)


def _load_what_nobody_may_read() -> None:
    """Inspection is loaded when it is needed; where only root may read its files, it is loaded while this is root."""
    if os.geteuid() != 0:
        return
    origins = [os.__file__, __file__, *(found.origin for name in _LATER if (found := find_spec(name)) is not None)]
    if not all(origin and _is_open_to_all(origin) for origin in origins):
        from ringfence.egress import inspected, inspection  # noqa: F401

        inspection.load()


def _is_open_to_all(path: str) -> bool:
    while path != os.path.dirname(path):
        needed = stat.S_IROTH | stat.S_IXOTH if os.path.isdir(path) else stat.S_IROTH
        if os.stat(path).st_mode & needed != needed:
            return False
        path = os.path.dirname(path)
    return True
