"""A process of its own that has CRIU restore one process tree in a new living sandbox, and then leads it.

What is restored is born under everything that holds a visit, since CRIU itself runs under it: entered namespaces, the
sandbox's groups and id, Landlock, and the filter with its listener. While CRIU works the listener lets pass what the
filter would refuse; everything that is restored stands still for that long. Only after each process was checked from
outside, and CRIU is gone, does the listener answer as for any visit, and the processes go on.

So CRIU has no power over the host, and its images decide nothing about how the processes are held.
"""

from __future__ import annotations

import errno
import json
import marshal
import os
import select
import signal
import socket
import time

from ringfence.kernel import landlock
from ringfence.kernel.cgroup import tree as cgroup_tree
from ringfence.kernel.criu import criu
from ringfence.kernel.criu import processes as members
from ringfence.kernel.mount import privileges
from ringfence.kernel.mount import setns as entering
from ringfence.kernel.proc import processes
from ringfence.kernel.recorder import Recorder
from ringfence.kernel.seccomp import compile as seccomp
from ringfence.kernel.seccomp import rules as seccomp_rules
from ringfence.kernel.seccomp.chosen import profile_of
from ringfence.kernel.seccomp.responder import NotifyResponder
from ringfence.model.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ringfence.kernel.seccomp.notify import Notification
    from ringfence.kernel.seccomp.rules import Profile, Rule
    from ringfence.transport.request import RestoreRequest

GO, TELL = b"g", b"t"
"""The caller's words: let the processes go on; say how much the recorder could not tell."""
_PATIENCE_S = 120.0
_LOG_BYTES = 1 << 16
_END_WAIT_S, _STOP_WAIT_S, _LONGEST_POLL_S = 10.0, 5.0, 3600.0
_NOTHING = "0000000000000000"
_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
# CRIU takes id 0 first, for kernels before 4.13 that let nobody else name a process's program. The sandbox has no
# such id, and the processes must not have it: CRIU is told that the call succeeded.
_IDS = ("setuid", "setgid", "setgroups")


# ---- the filter


def profile(name: str, ids: tuple[int, int], *, watched: bool, wired: bool = False) -> Profile:
    """A visit's profile whose supervisor is told of every call that it refuses, to let it pass for a while."""
    plain = profile_of(name, ids, watched=watched, wired=wired)
    groups = seccomp_rules.Rule(
        calls=("setgroups",), reason="the sandbox has no groups to give",
        action=seccomp_rules.Action(kind=seccomp_rules.Kind.WATCH_DENIED, errno=errno.EPERM),
    )  # fmt: skip
    closed = (groups, *(_told(rule) for rule in plain.closed))
    return replace(plain, closed=closed, unknown=_told(plain.unknown))


def _told(rule: Rule) -> Rule:
    if rule.action.kind is not seccomp_rules.Kind.DENY:
        return rule
    return replace(rule, action=replace(rule.action, kind=seccomp_rules.Kind.WATCH_DENIED))


class RestoredResponder(NotifyResponder):
    """Lets everything pass until it is told to hold."""

    holds = False

    def _answer(self, told: Notification) -> None:
        if self.holds:
            super()._answer(told)
        elif told.name in _IDS:
            self._listener.deny(told, 0)
        else:
            self._listener.proceed(told)


# ---- outside


def main() -> None:
    """Read the request, then a word to go on; write the result, and attempts, as lines of JSON."""
    size = int.from_bytes(_exactly(8), "big")
    request: RestoreRequest = marshal.loads(_exactly(size))
    restore = Restore(request)
    try:
        problem = restore.restore()
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    _say({"problem": problem})
    if not problem and os.read(0, 1) == GO:
        restore.lead()
    restore.end()
    if restore.responder is not None:
        _say({"page": restore.page(), "last": True})


def _exactly(size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            raise SystemExit("nobody asks")
        data += piece
    return data


def _say(words: Mapping[str, object]) -> None:
    try:
        os.write(1, json.dumps(dict(words)).encode() + b"\n")
    except BlockingIOError:
        raise OSError("the caller does not read") from None


class Restore:
    """Restores one tree of processes, and leads it until it ends."""

    def __init__(self, request: RestoreRequest) -> None:
        self.request = request
        self.responder: RestoredResponder | None = None
        self.reaper = -1
        """A descriptor of the process that the restored ones hang below."""
        self._door, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log, self._log_writer = os.pipe()
        os.set_blocking(self._log, False)

    def restore(self) -> str:
        """Empty, or why the tree could not be restored."""
        first = os.pidfd_open(self.request["first"])
        images = os.open(self.request["folder"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        entering.let_children_enter(first)
        _in_a_child(lambda: entering.set_last_pid(self.request["last_pid"]))
        # The process in between ends at once, so that the reaper becomes a child of the sandbox's pid 1, as others are.
        _in_a_child(lambda: self._fork_holder(first, images))
        for descriptor in (self._theirs.fileno(), self._log_writer, images, first):
            os.close(descriptor)
        self._theirs.detach()
        code = self._serve()
        if code:
            return criu.told(self._read_log())
        return self._unheld()

    def _serve(self) -> int:
        """Let CRIU work; its exit code."""
        give_up = time.monotonic() + _PATIENCE_S
        while time.monotonic() < give_up:
            ready = _readable([self._door.fileno(), *([self.responder.fileno()] if self.responder else [])], 1.0)
            if self.responder and self.responder.fileno() in ready:
                self.responder.handle()
            if self._door.fileno() in ready:
                code = self._take()
                if code is not None:
                    return code
        return 1

    def _take(self) -> int | None:
        data, descriptors, _, _ = socket.recv_fds(self._door, 64, 1)
        if data == b"reaper":
            self.reaper = descriptors[0]
        elif data == b"listener":
            recorder = Recorder(write=lambda attempt: _say({"attempt": dict(attempt)}))
            wanted, wired = self.request, self.request["wired"]
            made = lambda: profile(wanted["profile"], wanted["ids"], watched=bool(wanted["watched"]), wired=wired)  # noqa: E731
            self.responder = RestoredResponder(descriptors[0], made, recorder, wanted["watched"], wired=wired)
        else:
            return int(data) if data else 1
        return None

    def _read_log(self) -> bytes:
        try:
            return os.read(self._log, _LOG_BYTES)
        except BlockingIOError:
            return b""

    # ---- what is looked at before anything may run

    def _tree(self) -> list[members.Member]:
        reaper = processes.pid_of(self.reaper)
        everybody = members.of(self.request["first"])
        above = [member for member in everybody if member.pid == reaper]
        return members.below(above[0], everybody)[1:] if above else []

    def _stopped_tree(self) -> list[members.Member]:
        """The stop signal is pending when CRIU lets go, and takes effect before their next instruction."""
        give_up = time.monotonic() + _STOP_WAIT_S
        while True:
            tree = self._tree()
            if all(member.stopped for member in tree) or time.monotonic() > give_up:
                return tree
            time.sleep(0.001)

    def _unheld(self) -> str:
        """The first thing that is wrong with the restored processes, or nothing."""
        tree = self._stopped_tree()
        if {member.inside for member in tree} != set(self.request["expected"]):
            return "not all processes are there, or more than there were"
        for member in tree:
            problem = self._unheld_process(member)
            if problem:
                return f"process {member.inside} is not held as it was: {problem}"
        return ""

    def _unheld_process(self, member: members.Member) -> str:
        first, pid = self.request["first"], member.pid
        if member.dead:
            return ""
        if not member.stopped:
            return "it runs already"
        for name in _NAMESPACES:
            if os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/{first}/ns/{name}"):
                return f"namespace {name}"
        if _read(f"/proc/{pid}/cgroup") != _read(f"/proc/{first}/cgroup"):
            return "control groups"
        if limits_of(pid) != self.request["expected"][member.inside]:
            return "limits"
        if member.filters != 1:
            return "filters"
        found = (unheld_status(members.status(thread), self.request["identity"]) for thread in members.threads(pid))
        return next((problem for problem in found if problem), "")

    # ---- the life of what was restored

    def lead(self) -> None:
        """Answer for the restored processes until the last of them has ended, or their time."""
        assert self.responder is not None
        self.responder.holds = True
        for member in self._tree():
            if member.inside in self.request["resume"]:
                members.send(member, signal.SIGCONT)
        deadline = time.monotonic() + self.request["wall_time_s"]
        poller = select.poll()
        for descriptor in (0, self.reaper, self.responder.fileno()):
            poller.register(descriptor, select.POLLIN)
        while time.monotonic() < deadline:
            ready = dict(poller.poll(min(_LONGEST_POLL_S, max(0.0, deadline - time.monotonic())) * 1000 + 1))
            if self.reaper in ready or (0 in ready and not self._tell_page()):
                return
            self.responder.handle()
            if self.responder.finished:
                poller.unregister(self.responder.fileno())

    def _tell_page(self) -> bool:
        """Answer the caller; False: the caller is gone."""
        asked = os.read(0, 64)
        for _ in range(asked.count(TELL)):
            _say({"page": self.page()})
        return bool(asked)

    def page(self) -> dict[str, int]:
        """How much of what was recorded since the last page could not be told."""
        if self.responder is None:
            return {}
        health = self.responder.recorder.health
        self.responder.recorder.turn_page()
        return {name: value for name, value in vars(health).items() if type(value) is int}

    def end(self) -> None:
        """All below the reaper, and then the reaper itself."""
        give_up = time.monotonic() + _END_WAIT_S
        while self.reaper >= 0 and time.monotonic() < give_up and not _readable([self.reaper], 0.0):
            tree = self._tree()
            for member in tree:
                members.send(member, signal.SIGKILL)
            if not tree:
                try:
                    signal.pidfd_send_signal(self.reaper, signal.SIGKILL)
                except ProcessLookupError:
                    return
            time.sleep(0.002)

    # ---- inside

    def _fork_holder(self, first: int, images: int) -> None:
        cgroup_tree.enter(self.request["enter"])
        if os.fork():
            return
        try:
            processes.forget_command_line(processes.OWN_NAME)
            entering.enter(first, *self.request["ids"])
            self._hold(images)
        except Exception as error:
            os.write(self._log_writer, f"(): {type(error).__name__}: {error}\n".encode())
            self._theirs.send(b"1")
        finally:
            os._exit(0)

    def _hold(self, images: int) -> None:
        """The restored processes hang below this one; like any reaper it runs nothing and has no privilege."""
        processes.hide_memory()
        processes.adopt_orphans()
        socket.send_fds(self._theirs, [b"reaper"], [os.pidfd_open(os.getpid())])
        child = os.fork()
        if child == 0:
            self._become_criu(images)
        privileges.drop_all()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        self._theirs.send(str(code).encode())
        os.closerange(0, 1 << 16)
        while True:
            try:
                os.wait()
            except ChildProcessError:
                return

    def _become_criu(self, images: int) -> None:
        """Confined as a visit is before its program; with the images to be read besides, which no path leads to."""
        try:
            os.setsid()
            privileges.new_session_keyring()
            syscall_filter, wall = self.request["filter"], self.request["wall"]
            argv = criu.restore_command(self.request["criu"], images, self.request["pipes"])
            if wall:
                handled, rows, ports = wall
                own = landlock.Ruleset(files=tuple(landlock.FILE_RIGHTS), beneath=((images, landlock.READ),))
                landlock.put_up(handled, [*rows, *landlock.compiled(own, landlock.abi())[1]], ports)
            _refuse_cores()
            listener = seccomp.install(syscall_filter, notify=True)
            assert listener is not None
            socket.send_fds(self._theirs, [b"listener"], [listener])
            os.close(listener)
            self._theirs.close()
            criu.become(argv, self._log_writer, [images, *(descriptor for descriptor, _ in self.request["pipes"])])
        except Exception as error:
            os.write(self._log_writer, f"(): {type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(127)


def _refuse_cores() -> None:
    """Set the one limit that CRIU can't, since the filter closes it; a visit has 1."""
    import resource

    most = resource.getrlimit(resource.RLIMIT_CORE)[1]
    limit = 1 if most == resource.RLIM_INFINITY else min(1, most)
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))


def _in_a_child(work: Callable[[], object]) -> None:
    """In a process of the sandbox's pid namespace, which ends with it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise OSError("one of ringfence's own processes in the sandbox failed")


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def limits_of(pid: int) -> str:
    """Its rlimits; empty when it is gone."""
    try:
        return _read(f"/proc/{pid}/limits")
    except OSError:
        return ""


def unheld_status(fields: Mapping[str, str], identity: int) -> str:
    """What is wrong in /proc/pid/status, or nothing."""
    ids = [str(identity)] * 4
    wanted = {"NoNewPrivs": "1", "Seccomp": "2"}
    wanted |= dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), _NOTHING)
    for name, value in wanted.items():
        if fields.get(name) != value:
            return f"{name} is {fields.get(name)}"
    for name in ("Uid", "Gid"):
        if fields.get(name, "").split() != ids:
            return f"{name} is {fields.get(name)}"
    return ""


def _readable(descriptors: list[int], within_s: float) -> list[int]:
    """By ``poll``: ``select`` takes no descriptor above 1023, and a service has more."""
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poller.poll(within_s * 1000)]
