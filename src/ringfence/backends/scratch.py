"""The private directory of one box, and the small clean environment that points into it."""

from __future__ import annotations

import os
from _collections_abc import Mapping
from types import MappingProxyType

from ringfence.errors import SandboxError, SetupError, UsageError, is_of_a_call
from ringfence.model import state_folder
from ringfence.model.job import Job
from ringfence.model.own import private_place
from ringfence.model.policy import SandboxPolicy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.checkpoint.transaction import Transaction

_FALLBACK_PATH = "/usr/local/bin:/usr/bin:/bin"
LANGUAGE = "C.UTF-8"


def place_on(transaction: Transaction) -> str:
    """Where jobs begin on working copies unless they say otherwise: in the first one's."""
    if transaction.kind != "snapshot":
        raise UsageError(f"a transaction of kind {transaction.kind} needs isolation strict",
                         hint="create it with the kind that transaction_kind(policy) returns")  # fmt: skip
    return transaction.place(transaction.bases[0])


class Scratch:
    """Made when it is first needed, mode 0700, removed with the box."""

    variable = "TMPDIR"
    """The variable by which a user chooses where it lies."""
    prefix = private_place.BOX
    """Of its name: short, for the paths of sockets below it have at most 108 bytes."""

    def __init__(self, folders: tuple[str, ...] = ("work", "home", "tmp")) -> None:
        self.path = ""
        self.folders = folders
        self._made = False
        self._lock = -1

    def prepare(self, job: Job | None = None) -> str:
        """The job's working directory, with its files in it; without one, the private directory that it may get."""
        if not self._made:
            self._make()
        if job is None:
            return os.path.join(self.path, "work")
        if job.cwd is not None and not os.path.isdir(job.cwd):
            raise UsageError(f"{job.cwd}: no such directory", hint="the working directory must exist")
        folder = job.cwd or os.path.join(self.path, "work")
        for name, content in job.files.items():
            self._write_file(folder, name, content)
        return folder

    def living_place(self, workspace: str | None, transaction: Transaction | None, place: str) -> str:
        """Where the visits of a living box go. ``place``: where its transaction has its jobs begin."""
        if transaction is not None:
            place = transaction.working_copy(workspace) if workspace else place
        else:
            place = workspace or self.prepare()
        if not os.path.isdir(place):
            raise UsageError(f"{workspace}: no such directory", hint="the working directory must exist")
        return place

    def name(self) -> str:
        """Where it is, or will be: the process that removes it can be told before there is anything to remove."""
        # Not by tempfile, whose imports take longer than the whole run of a small job.
        self.path = self.path or os.path.join(state_folder.private_place(), f"{self.prefix}{os.urandom(8).hex()}")
        return self.path

    def _make(self) -> None:
        try:
            self._make_top()
            self._lock = self._locked()
            for name in self.folders:
                os.mkdir(os.path.join(self.path, name), 0o700)
        except OSError as error:
            if not is_of_a_call(error):
                raise
            problem, hint = f"{error.strerror}: {self.path}", f"set {self.variable} to a directory with room"
            raise SetupError("make the private directory", problem, hint=hint) from error

    def _make_top(self) -> None:
        path = self.name()
        self._made = True  # before: Ctrl-C may come between the two
        try:
            os.mkdir(path, 0o700)
        except OSError as error:
            # Its name is new, so what is there is ours, whatever error was raised, unless it was there before.
            self._made = not isinstance(error, FileExistsError) and os.path.lexists(self.path)
            raise

    def environment(
        self, policy: SandboxPolicy, job: Job, level: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, str]:
        """What the job finds: little and known, then what the isolation level sets, what is passed on, set
        by the policy, by the job.
        """
        clean = {
            "PATH": os.environ.get("PATH", _FALLBACK_PATH),
            "HOME": os.path.join(self.path, "home"),
            "TMPDIR": os.path.join(self.path, "tmp"),
            "LANG": LANGUAGE,
        }
        if job.terminal:
            clean["TERM"] = os.environ.get("TERM", "dumb")
        passed = {name: os.environ[name] for name in policy.pass_environment if name in os.environ}
        return clean | dict(level) | passed | dict(policy.environment) | dict(job.environment)

    def remove(self) -> str:
        """Remove it. What could not be removed is returned, not raised, since the job may have caused that.

        Can be called again if Ctrl-C came in between: only then is it known to be done."""
        if not self._made:
            return ""
        left = ""
        try:
            self._remove_tree()
        except OSError as error:
            if not is_of_a_call(error):
                raise
            left = f"the private directory could not be removed, remove {self.path} by hand ({error.strerror})"
        gone, self.path, self._made = self.path, "", False
        self._unlock()
        self._sweep_once(gone)
        return left

    # ---- what differs from system to system

    def _remove_tree(self) -> None:
        from ringfence.roles.removal import remove_tree

        remove_tree(self.path)

    def _write_file(self, folder: str, name: str, content: bytes) -> None:
        _write_file(folder, name, content)

    def _locked(self) -> int:
        """A lock says that this process is there: without one, an old directory is removed by others."""
        return lock(self.path)

    def _sweep_once(self, gone: str) -> None:
        """Have removed what callers left behind that were killed before anybody else knew of it; once for each process.
        ``gone``: beside which, a directory that is removed already."""
        if os.getpid() in _swept:
            return
        _swept[:] = [os.getpid()]
        try:
            others = [name for name in os.listdir(os.path.dirname(gone)) if name.startswith(self.prefix)]
        except OSError:
            return  # somebody has removed the whole place
        if others:  # mostly there is none
            _start_cleaner(gone)

    def _unlock(self) -> None:
        held, self._lock = self._lock, -1
        if held >= 0:
            os.close(held)

    def __del__(self) -> None:
        """Dropped without being removed: unlock it, so that others who may remove it can."""
        self._unlock()


_swept: list[int] = []


def _start_cleaner(gone: str) -> None:
    """It clears beside us, since there may be much to remove."""
    from ringfence.backends.leader_client import LeaderClient
    from ringfence.backends.leader_sources import SCRATCH_CLEANERS
    from ringfence.roles import scratch_cleaner

    if not scratch_cleaner.orphans(os.path.dirname(gone)):
        return
    try:
        LeaderClient({"scratch": gone, "cgroups": []}, (), SCRATCH_CLEANERS).release()
    except SandboxError:
        pass  # no room for a process: another one tries again


def lock(folder: str) -> int:
    """Lock for as long as this process lives or keeps the descriptor open; -1: this file system has no locks."""
    import fcntl

    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(place, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(place)
        return -1
    return place


def _write_file(folder: str, name: str, content: bytes) -> None:
    """Put a new file there; what an earlier job left (a link, a pipe, a file linked elsewhere) is replaced."""
    *parents, leaf = name.split("/")
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for part in parents:
                place = _step_into(part, place)
            _replace_file(leaf, place, content)
        finally:
            os.close(place)
    except OSError as error:
        if not is_of_a_call(error):
            raise
        raise SetupError("put the job's files", f"{name}: {error.strerror}") from error


def _step_into(part: str, place: int) -> int:
    """The directory below, made if it is missing, never through a link; ``place`` is closed."""
    try:
        os.mkdir(part, 0o755, dir_fd=place)
    except FileExistsError:
        pass
    below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
    os.close(place)
    return below


def _replace_file(leaf: str, place: int, content: bytes) -> None:
    try:
        os.unlink(leaf, dir_fd=place)
    except FileNotFoundError:
        pass
    with open(os.open(leaf, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=place), "wb") as file:
        file.write(content)
