"""Running processes of a living strict box: written to images while they stand still, and restored in a new box.

Starts the two kinds of process that drive CRIU (``kernel.criu.dump``, ``kernel.criu.restore``) and keeps what they
report. Files and checkpoints are the manager's business.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable

import ringfence
from ringfence.backends.background_io import BackgroundStreams
from ringfence.backends.newest import Newest
from ringfence.errors import CheckpointError
from ringfence.kernel import syscall_numbers
from ringfence.kernel.criu import criu
from ringfence.kernel.criu import processes as members
from ringfence.kernel.criu import restore as restoring
from ringfence.kernel.proc import procfs
from ringfence.kernel.seccomp import compile as seccomp
from ringfence.model.limits import SyscallProfile, format_size
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import record
from ringfence.sandbox import networks
from ringfence.sandbox import root as rootfs
from ringfence.sandbox.root import RootSpec
from ringfence.transport import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ringfence.transport.request import DumpRequest, HeardRequest, KeptTree, RestoreRequest, Wall, WallStep

_PATIENCE_S = 180.0
_BOOT = "import sys; sys.path.insert(0, {path!r}); from ringfence.kernel.criu.{module} import main; main()"
_PID_ROOM = 512
# Where the programs come from that run inside with power over the sandbox: the host's directories, read-only there.
_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/etc")
_MAX_ATTEMPTS = 200
_MOST_OF_THE_DISK = 0.5
"""The share of free space that images may take: others need the disk too."""
# What CRIU says when it can't reach a process because its filter has lost its listener.
_UNREACHED = "transport socket: Function not implemented"
OTHER = "other"
"""Where pipes lead that are neither the first process's standard output nor its errors."""


@record
class Confinement:
    """What holds the processes of a box, as both directions need it."""

    first: int
    """pid 1 of the box, as the host knows it."""
    ids: tuple[int, int]
    """The guest's ids, as it sees them."""
    identity: int
    """The same on the host."""
    enter: tuple[str, ...] = ()
    wall: Wall | None = None
    filter: bytes = b""
    profile: str = ""
    watched: tuple[str, ...] = ()
    wired: bool = False
    wall_time_s: float = 0.0
    output_bytes: int = 0
    kept: tuple[str, ...] = ()
    """The directories that the next box has too: those of the checkpoint, and those of the host."""
    gateway: bool = False
    """It reaches others through the gateway, which keeps no connection for a process that comes back."""


def confinement(
    leader: int, policy: SandboxPolicy, root_spec: RootSpec, heard: HeardRequest, walls: list[WallStep],
    enter: tuple[str, ...],
) -> Confinement:  # fmt: skip
    """The confinement of the living box below this leader. UnavailableError if its processes can't be kept."""
    _refuse_policy(policy, (*rootfs.workspace_paths(root_spec), *policy.writable_paths))
    first = min(procfs.children(leader), default=0)
    fields = members.status(first)
    if not fields:
        raise CheckpointError("the box has ended", hint="run something in it first")
    watched, wired = tuple(heard["watched"]), heard["wired"]
    profile = restoring.profile(heard["profile"], heard["ids"], watched=bool(watched), wired=wired)
    return Confinement(
        first=first, ids=heard["ids"], identity=int(fields["Uid"].split()[0]), enter=enter,
        wall=walls[0][1:] if walls else None, profile=heard["profile"], watched=watched, wired=wired,
        filter=seccomp.compile(profile, syscall_numbers.architecture(), notify=True),
        wall_time_s=policy.wall_time_s, output_bytes=policy.output_bytes,
        kept=(*rootfs.workspace_paths(root_spec), *(rootfs.place(shown) for shown in root_spec.shown)),
        gateway=root_spec.gateway is not None,
    )  # fmt: skip


def _refuse_policy(policy: SandboxPolicy, writable: tuple[str, ...]) -> None:
    if os.geteuid() != 0:
        raise criu.unavailable("this needs root")
    if networks.is_hosts(policy):
        raise criu.unavailable("with the host's network their connections are the host's")
    if policy.syscall_profile is SyscallProfile.TIGHT:
        raise criu.unavailable("CRIU talks to them through a socket, and the tight syscall profile gives them none")
    changeable = [path for path in writable if path.startswith(_PROGRAMS)]
    if changeable:
        raise criu.unavailable(f"{changeable[0]} can be changed from inside, and CRIU and its libraries are there")


def _start(module: str, pass_fds: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
    root = os.path.dirname(os.path.dirname(os.path.abspath(ringfence.__file__)))
    argv = [sys.executable, "-I", "-S", "-c", _BOOT.format(path=root, module=module)]
    try:
        return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                env={}, cwd="/", start_new_session=True, pass_fds=pass_fds)  # fmt: skip
    except OSError as error:
        raise CheckpointError(f"the process that drives criu can't be started: {error}") from error


# ---- to images


def dump(confinement: Confinement, stopped: members.Stopped, folder: str) -> list[KeptTree]:
    """Write each process tree of the guest to its own directory below this one; return their facts as plain data."""
    program = criu.find()
    found = [(root, members.below(root, stopped.members)) for root in members.roots(stopped.members)]
    _refuse_too_large((tree for _, tree in found), folder)
    trees = []
    for number, (root, tree) in enumerate(found):
        _refuse_unkeepable(confinement, tree)
        _dump_tree(confinement, program, root, tree, os.path.join(folder, str(number)))
        trees.append(_described(stopped, root, tree))
    return trees


def _refuse_too_large(trees: Iterable[list[members.Member]], folder: str) -> None:
    """Memory that forked processes share counts once but is written for each: no limit of a sandbox bounds that."""
    wanted, free = sum(map(members.image_bytes, trees)), shutil.disk_usage(folder).free
    if wanted > free * _MOST_OF_THE_DISK:
        problem = f"their images take {format_size(wanted)}, and {format_size(free)} are free on the disk"
        hint = "end some of them, make room, or leave processes out"
        raise CheckpointError(f"running processes can't be checkpointed: {problem}", hint=hint)


def _refuse_unkeepable(confinement: Confinement, tree: list[members.Member]) -> None:
    """Files in the box's memory are gone with the box, and a process that uses one could not be restored. A filter of
    the guest's own would not be restored, and may end the process when CRIU is in it."""
    for member in tree:
        if member.filters > 1:
            problem, hint = "it has a system call filter of its own", "leave processes out"
            raise CheckpointError(f"process {member.pid} can't be checkpointed: {problem}", hint=hint)
        for there in _egress_of(confinement, member, tree):
            hint = "have it close its connections, or leave processes out"
            problem = f"it has a connection open to {there} through the gateway"
            raise CheckpointError(f"process {member.pid} can't be checkpointed: {problem}", hint=hint)
        for path in members.paths_of(member.pid):
            private = any(path.startswith(f"{top}/") for top in rootfs.PRIVATE)
            if private and not any(f"{path}/".startswith(f"{top}/") for top in confinement.kept):
                problem = f"it uses {ascii(path)[1:-1][:200]}, which is in the sandbox's own memory"
                hint = "have it keep its files in an allowed path, or leave processes out"
                raise CheckpointError(f"process {member.pid} can't be checkpointed: {problem}", hint=hint)


def _egress_of(confinement: Confinement, member: members.Member, tree: list[members.Member]) -> list[str]:
    """Where its connections through the gateway lead."""
    return members.connections(member.pid, [each.pid for each in tree]) if confinement.gateway else []


def _dump_tree(
    confinement: Confinement, program: str, root: members.Member, tree: list[members.Member], images: str
) -> None:
    covers = f"{images}.covers"
    for path in (images, covers):
        os.mkdir(path, 0o755)
    os.chown(images, confinement.identity, confinement.identity)
    request: DumpRequest = {
        "first": confinement.first, "ids": confinement.ids, "criu": program, "root": root.inside, "folder": images,
        "covers": covers, "pids": [member.pid for member in tree],
    }  # fmt: skip
    try:
        said = _asked(_start("dump"), wire.packed(request))
    finally:
        shutil.rmtree(covers, ignore_errors=True)
    problem = said.decode("utf-8", "replace").strip() or ("" if said else "the process that drives criu ended")
    if problem:
        if _UNREACHED in problem:
            problem = "the execution that left it behind has ended, and its supervisor with it; use start() for it"
        hint = "end the process, or leave processes out"
        raise CheckpointError(f"process {root.pid} can't be checkpointed: {problem[:300]}", hint=hint)


def _asked(process: subprocess.Popen[bytes], message: bytes) -> bytes:
    try:
        return process.communicate(message, timeout=_PATIENCE_S)[0]
    except subprocess.TimeoutExpired as error:
        process.kill()
        process.communicate()
        raise CheckpointError(f"running processes were not saved within {_PATIENCE_S:.0f} s") from error


def _described(stopped: members.Stopped, root: members.Member, tree: list[members.Member]) -> KeptTree:
    names = {members.pipe_of(root.pid, number): name for number, name in enumerate(("stdin", "stdout", "stderr"))}
    return {
        "root": root.inside,
        "resume": [member.inside for member in tree if stopped.resumable(member)],
        "limits": {str(member.inside): restoring.limits_of(member.pid) for member in tree},
        "pipes": [(inode, end, names.get(inode, OTHER)) for inode, end in members.outer_pipes(tree)],
    }


# ---- and back


class RestoredTree(BackgroundStreams):
    """A restored process tree: its output as it comes, its input, what it tried; it ends with its box."""

    _is_over = False
    """Nothing more will be heard of it."""

    def __init__(self, confinement: Confinement, tree: KeptTree, folder: str, last_pid: int) -> None:
        super().__init__(confinement.output_bytes)
        self.attempts: list[dict[str, object]] = []
        """Attempts on forbidden things since it was restored; what they say is untrusted."""
        self._pages: list[dict[str, object]] = []
        self._taken, self._unkept, self._pages_heard, self._is_told = 0, 0, 0, False
        # Taken by itself: a condition is entered in Python, where a signal's exception would leave it taken for good.
        self._lock = threading.RLock()
        self._heard = threading.Condition(self._lock)
        self.root = int(tree["root"])
        self._output[OTHER] = Newest(confinement.output_bytes)
        self._threads: list[threading.Thread] = []
        self._kept_open: list[int] = []
        """The write ends of pipes that are not its standard input: nobody writes there, and the pipes do not end."""
        readers: list[tuple[int, str]] = []
        theirs = [(self._pipe(end, name, confinement.identity, readers), inode) for inode, end, name in tree["pipes"]]
        kept = tuple(descriptor for descriptor, _ in theirs)
        try:
            self._process = _start("restore", pass_fds=kept)
        finally:
            for descriptor in kept:
                os.close(descriptor)
        for reader, name in readers:
            self._listen(lambda reader=reader, name=name: self._drain(reader, name))  # type: ignore[misc]
        self._request(confinement, tree, folder, last_pid, theirs)

    def _pipe(self, end: str, name: str, identity: int, readers: list[tuple[int, str]]) -> int:
        """Make a pipe in place of one that the tree has an end of; return that end. A write end adds to ``readers``."""
        reader, writer = os.pipe()
        for descriptor in (reader, writer):
            os.fchown(descriptor, identity, identity)  # CRIU opens them anew
        if end == "w":
            readers.append((reader, name if name in self._output else OTHER))
            return writer
        if name == "stdin" and self._input < 0:
            self._input = writer
        else:
            self._kept_open.append(writer)
        return reader

    def _request(
        self, confinement: Confinement, tree: KeptTree, folder: str, last_pid: int, pipes: list[tuple[int, int]]
    ) -> None:
        limits = {int(number): text for number, text in tree["limits"].items()}
        held = confinement
        request: RestoreRequest = {
            "first": held.first, "ids": held.ids, "identity": held.identity, "criu": criu.find(), "folder": folder,
            "enter": held.enter, "wall": held.wall, "filter": held.filter, "profile": held.profile,
            "watched": list(held.watched), "last_pid": last_pid, "expected": limits, "resume": list(tree["resume"]),
            "pipes": pipes, "wired": held.wired, "wall_time_s": held.wall_time_s,
        }  # fmt: skip
        message = wire.packed(request)
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(len(message).to_bytes(8, "big") + message)
            self._process.stdin.flush()
            said = json.loads(self._process.stdout.readline() or b'{"problem": "the process that drives criu ended"}')
        except (OSError, ValueError) as error:
            said = {"problem": str(error)}
        if said.get("problem"):
            self.end()
            raise CheckpointError(str(said["problem"])[:300])

    def go_on(self) -> None:
        """Let the processes go on, which stood still until now."""
        assert self._process.stdin is not None
        self._process.stdin.write(restoring.GO)
        self._process.stdin.flush()
        self._listen(self._hear)

    def _listen(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="ringfence-restored", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._lock:
                self._note(json.loads(line))
                self._heard.notify_all()
        with self._lock:
            self._is_over = True
            self._heard.notify_all()

    def _note(self, said: dict[str, Any]) -> None:
        if "page" in said:
            self._pages.append(said["page"])
            self._pages_heard += 1
            self._is_told = self._is_told or bool(said.get("last"))
        elif len(self.attempts) < _MAX_ATTEMPTS:
            self.attempts.append(said.get("attempt", {}))
        else:
            self._unkept += 1

    def take_late(self, within_s: float) -> tuple[list[dict[str, object]], list[dict[str, object]], bool]:
        """What they tried since the last time; what the recorder says of itself; whether it has said all up to now."""
        with self._lock:
            before = self._pages_heard
            said = self._is_told or (self._asked() and self._heard.wait_for(
                lambda: self._pages_heard > before or self._is_over, within_s))  # fmt: skip
            said = said and (self._is_told or self._pages_heard > before)
            notes, self._taken = self.attempts[self._taken :], len(self.attempts)
            pages, self._pages = self._pages, []
            pages.append({"unnamed": self._unkept})
            self._unkept = 0
        return notes, pages, said

    def _asked(self) -> bool:
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(restoring.TELL)
            self._process.stdin.flush()
        except (OSError, ValueError):  # it has ended, and its last word is on its way
            return not self._is_over
        return True

    def _drain(self, reader: int, name: str) -> None:
        with open(reader, "rb", buffering=0) as file:
            while piece := file.read(1 << 16):
                self._add(name, piece)
        if name != OTHER:  # which stands for several pipes
            self._output[name].end()

    @property
    def done(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> None:
        """End what is left of it."""
        self.close_input()
        while self._kept_open:
            os.close(self._kept_open.pop())
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except OSError:
                pass
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join(1.0)
        self._end_output()
        if self._process.stdout is not None:
            self._process.stdout.close()


def restore(confinement: Confinement, trees: list[KeptTree], folder: str) -> list[RestoredTree]:
    """Restore all of them or none; they all go on together."""
    last_pid = _free_room({int(number) for tree in trees for number in tree["limits"]})
    back: list[RestoredTree] = []
    try:
        for number, tree in enumerate(trees):
            back.append(RestoredTree(confinement, tree, os.path.join(folder, str(number)), last_pid))
        for each in back:
            each.go_on()
    except BaseException:
        for each in back:
            each.end()
        raise
    return back


def _free_room(taken: set[int]) -> int:
    """Pids for processes of ours that no restored process needs."""
    with open("/proc/sys/kernel/pid_max", encoding="ascii") as file:
        most = int(file.read())
    for start in range(1000, most - _PID_ROOM, _PID_ROOM):
        if not any(start <= number <= start + _PID_ROOM for number in taken):
            return start
    raise CheckpointError("no free range of process IDs beside those that are to be restored")
