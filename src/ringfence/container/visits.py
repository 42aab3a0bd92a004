"""pid 1 of a container that takes visits (``native/visits.c``): where it lies, and the messages to and from it.

One socket leads to it, in a directory that the container is shown: pid 1 connects before anything of a guest runs, and
nobody after it can. A visit gets the caller's own descriptors; its order lies in memory that is passed along. Answers
have a fixed size, and come from pid 1 or from the reaper of that visit, never from a guest.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from itertools import count
from struct import Struct

from ringfence.container.hardening import Bind, ContainerSpec
from ringfence.container.job_spec import is_gvisor
from ringfence.errors import SetupError
from ringfence.kernel.calls import native
from ringfence.model.record import record, replace

INSIDE, DOOR = "/ringfence/visits", "/ringfence/door"
STEP = "open the container"
OWN_TASKS = 2
"""pid 1, and the reaper of a visit."""
LEAST_DESCRIPTORS = 64
"""Limits of pid 1; a job has those of its policy."""
RUN, PUT, GET = 0, 1, 2
TERMINAL, ALONE = 1, 2
ENDED, KILLED, NOT_STARTED, NO_FOLDER, NO_ROOM = ord("E"), ord("K"), ord("X"), ord("C"), ord("N")
MOST_VISITS = 64
"""As ``visits.c`` has it."""
ASKED, TIME = 1, 2
_VISIT, _SIGNAL, _READY = ord("v"), ord("s"), b"R"
_ORDER, _TOLD, _HEAD = Struct("=IIIIQ"), Struct("=iiQQQ"), Struct("=IIIIIIQ")
_SOCKET = "socket"
_START_S, _LOOK_S = 60.0, 0.05


@record
class Told:
    """What was said of a visit; ``value``: how the job ended as ``wait`` tells it, why it was killed, or an errno."""

    kind: int
    value: int
    user_us: int
    system_us: int
    largest_bytes: int


@record
class VisitOrder:
    """What a visit is."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    what: int = RUN
    most_bytes: int = 0
    """Of a file that is got."""
    descriptors: int = 1024
    syscall_filter: bytes = b""
    """The filter to install before the program begins; empty: only the container's own."""

    def packed(self) -> bytes:
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        texts = b"".join(os.fsencode(text) + b"\0" for text in (self.folder, *self.argv, *variables))
        head = _HEAD.pack(self.what, len(self.argv), len(variables), len(self.syscall_filter), self.descriptors, 0,
                          self.most_bytes)  # fmt: skip
        return head + self.syscall_filter + texts


def why_not(runtime: str, *, is_local: bool) -> tuple[str, str]:
    """What is missing for a container that takes visits, and what would help; two empty strings: nothing."""
    if not is_local:
        return "an engine on this host, to whose containers descriptors can be passed", "use a local engine"
    if is_gvisor(runtime):
        return "a runtime with the host's own kernel, which gVisor is not", "use runc"
    if not native.is_wanted() or not os.access(native.visits_path(), os.R_OK | os.X_OK):
        return "the native parts of this package", "install a wheel of this platform, or build with a C compiler"
    return "", ""


def added(spec: ContainerSpec, door: str) -> ContainerSpec:
    """Return the container with pid 1 that takes visits. ``door``: the directory with its socket."""
    shown = [bind.target for bind in spec.binds]
    for target in (*shown, *spec.tmpfs):
        if f"{INSIDE}/".startswith(f"{target}/") or f"{DOOR}/".startswith(f"{target}/"):
            raise SetupError(STEP, f"{target} of the policy is where ringfence's first process must be",
                             hint="take this path out of the policy")  # fmt: skip
    ours = (Bind(source=os.path.realpath(native.visits_path()), target=INSIDE), Bind(source=door, target=DOOR))
    soft, hard = spec.ulimits.get("nofile", (LEAST_DESCRIPTORS, LEAST_DESCRIPTORS))
    room = (max(soft, LEAST_DESCRIPTORS), max(hard, LEAST_DESCRIPTORS))
    return replace(spec, argv=(INSIDE,), binds=(*spec.binds, *ours), init=False, stdin=False, tty=False,
                   ulimits={**spec.ulimits, "nofile": room})  # fmt: skip


class Listener:
    """Waits for pid 1 of one container, in a directory that only the container is shown."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        held = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._socket.bind(f"/proc/self/fd/{held}/{_SOCKET}")  # the directory's own path may be too long for one
        finally:
            os.close(held)
        os.chmod(folder, 0o755)  # the directory above it is the caller's alone
        os.chmod(os.path.join(folder, _SOCKET), 0o777)
        self._socket.listen(1)

    def accept(self, is_running: Callable[[], bool]) -> Door:
        """The door to pid 1, when that has come; SetupError where it does not."""
        give_up, looked = time.monotonic() + _START_S, time.monotonic()
        poller = select.poll()  # ``select`` takes no descriptor above 1023, and a service has more
        poller.register(self._socket, select.POLLIN)
        while time.monotonic() < give_up:
            if poller.poll(_LOOK_S * 1000):
                connected, _ = self._socket.accept()
                self.close()
                return _greeted(connected, give_up)
            if time.monotonic() - looked > 1.0 and not is_running():
                break
            looked = time.monotonic() if time.monotonic() - looked > 1.0 else looked
        raise SetupError(STEP, "the container's first process did not connect")

    def close(self) -> None:
        """Let nobody in from now on."""
        self._socket.close()
        try:
            os.unlink(os.path.join(self._folder, _SOCKET))
        except OSError:
            return  # it goes with its directory


def _greeted(connected: socket.socket, give_up: float) -> Door:
    connected.settimeout(max(0.1, give_up - time.monotonic()))
    try:
        said, problem = connected.recv(len(_READY)), "the container's first process did not report that it is ready"
    except TimeoutError:
        said, problem = b"", f"the container's first process did not answer within {_START_S:g} s"
    except OSError as error:
        said, problem = b"", f"the container's first process has ended: {error.strerror}"
    if said != _READY:
        connected.close()
        raise SetupError(STEP, problem)
    connected.settimeout(None)
    return Door(connected)


class Door:
    """The way to pid 1 of one container. May be used by several threads."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._numbers = count(1)

    def visit(self, order: VisitOrder, streams: tuple[int, ...], wall_s: float, flags: int = 0) -> tuple[int, int]:
        """Begin one; return its number and the descriptor on which its end is told. OSError where nobody is there."""
        number = next(self._numbers)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        packed = order.packed()
        memory = os.memfd_create("order")
        try:
            os.write(memory, packed)
            message = _ORDER.pack(_VISIT, number, len(packed), flags, max(1, int(wall_s * 1000)))
            socket.send_fds(self._socket, [message], [theirs.fileno(), memory, *streams], socket.MSG_NOSIGNAL)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(memory)
        ours.setblocking(False)
        return number, ours.detach()

    def signal(self, visit: int, number: int) -> None:
        try:
            self._socket.send(_ORDER.pack(_SIGNAL, visit, number, 0, 0), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except OSError:
            return  # it ends, or has ended

    def is_shut(self) -> bool:
        """Whether pid 1 has ended, and with it all that was in its container."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def fileno(self) -> int:
        return self._socket.fileno()

    def shut(self) -> None:
        """Pid 1 ends when it hears of that, and all in its container with it."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended

    def close(self) -> None:
        self.shut()
        self._socket.close()


def receive(report: int) -> Told | None:
    """Receive a message about a visit; None: nothing more comes. BlockingIOError: nothing yet."""
    data = os.read(report, _TOLD.size)
    if len(data) != _TOLD.size:
        return None
    kind, value, user_us, system_us, largest = _TOLD.unpack(data)
    return Told(kind=kind, value=value, user_us=user_us, system_us=system_us, largest_bytes=largest)
