"""Walls by Seatbelt, for jobs that are plain child processes on macOS: an extra for policies that ask for what it
holds.

A job is started by ``sandbox-exec``, which puts the profile on itself and becomes the job's program. Files come and go
in the same way, through an interpreter under the same profile, so a link that the guest made leads no further than the
job could go.
"""

from __future__ import annotations

import os
import sys
from _collections_abc import Iterable, Mapping
from types import MappingProxyType

import ringfence
from ringfence.errors import SetupError, UnavailableError
from ringfence.macos import seatbelt, trial
from ringfence.model import state_folder
from ringfence.model.job import Job
from ringfence.model.lack import NO_EGRESS, Lack
from ringfence.model.outcome import Enforcement, Mechanism
from ringfence.model.paths import within
from ringfence.model.policy import HOST_NETWORK, NO_NETWORK, PATH_FIELDS, SandboxPolicy
from ringfence.model.ways import led
from ringfence.model.ways.walk import Look, absolute, real
from ringfence.steps.executor import found as program_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.contract import Steps
    from ringfence.backends.scratch import Scratch
    from ringfence.backends.tables import Mechanisms
    from ringfence.checkpoint.transaction import Transaction
    from ringfence.transport.request import Step

_ENOENT = 2
_PACKAGE = os.path.dirname(os.path.abspath(ringfence.__file__))
_TRANSFER = """
import sys
sys.path.insert(0, sys.argv[1])
from ringfence.roles import file_transfer
file_transfer.put(sys.argv[3]) if sys.argv[2] == "put file" else file_transfer.get(sys.argv[3], int(sys.argv[4]))
"""
SEATBELT: Mechanisms = {
    "network": ("Seatbelt", "no connection can be made or taken, not even a local one", Mechanism.SEATBELT),
    "readable_paths": ("Seatbelt", "contents elsewhere can't be read; names, sizes and owners can be seen",
                       Mechanism.SEATBELT),
    "writable_paths": ("Seatbelt", "nothing elsewhere can be written, made or removed", Mechanism.SEATBELT),
    "hidden_paths": ("Seatbelt", "refused with EPERM, not absent; another hard link of a file is another file",
                     Mechanism.SEATBELT),
}  # fmt: skip
FIX = "use macOS with sandbox-exec, outside of any other sandbox; or Linux, under isolation strict"


def rows(policy: SandboxPolicy) -> tuple[Mechanisms, tuple[Lack, ...]]:
    """What a profile enforces of a policy, and what it lacks here; nothing if the policy asks for none of it."""
    asked = [name for name in (*PATH_FIELDS, "network") if name in policy.requested()]
    if not asked:
        return {}, ()
    why = trial.problem()
    listed = policy.network_rule not in (NO_NETWORK, HOST_NETWORK)
    missing = [Lack(capability=name, missing=f"a Seatbelt that holds: {why}", fix=FIX)
               for name in asked if why and not (listed and name == "network")]  # fmt: skip
    return {} if why else SEATBELT, (*missing, *((NO_EGRESS,) if listed else ()))


class SeatbeltWalls:
    """The profile of one box."""

    shares: tuple[Step, ...] = ()
    before_transfer: tuple[Step, ...] = ()
    environment: Mapping[str, str] = MappingProxyType({"GIT_CONFIG_NOSYSTEM": "1"})

    def __init__(self, policy: SandboxPolicy) -> None:
        self._policy = policy
        self._transaction: Transaction | None = None

    def work_on(self, transaction: Transaction) -> dict[str, Enforcement]:
        self._transaction = transaction
        return {}

    def admit(self, job: Job) -> None:
        return

    def refuse_standby(self) -> None:
        raise UnavailableError("there are no standby sandboxes under a policy that names paths or closes the "
                               "network", missing=("standby",),
                               hint="name no paths and leave the network open")  # fmt: skip

    def copies(self) -> list[str]:
        return [self._transaction.place(base) for base in self._transaction.bases] if self._transaction else []

    def steps(self, job: Job, folder: str, scratch: Scratch, limits: Steps) -> Steps:
        return [("chdir", folder), *limits]

    def through(self, last: Step, folder: str, scratch: Scratch) -> Step:
        """The program, or the transfer of a file, behind the profile."""
        name, *arguments = last
        if name != "exec":
            words = [sys.executable, "-I", "-S", "-c", _TRANSFER, os.path.dirname(_PACKAGE), str(name),
                     *map(str, arguments)]  # fmt: skip
            return self._confined(words, {"LANG": "C.UTF-8"}, folder, scratch)
        argv, environment = arguments[:2]
        assert isinstance(argv, list) and isinstance(environment, dict)
        program = os.path.join(folder, program_of(argv[0], environment.get("PATH", "")) or "/nonexistent/program")
        if not os.path.lexists(program):  # sandbox-exec would have a message of its own for that, and an exit code
            raise SetupError("exec", f"No such file or directory: {argv[0]}", errno=_ENOENT)
        return self._confined([program, *argv[1:]], environment, folder, scratch)

    def _confined(self, words: list[str], environment: dict[str, str], folder: str, scratch: Scratch) -> Step:
        profile = self._profile(words[0], folder, scratch)
        return ("exec", [trial.SANDBOX_EXEC, "-p", profile, *words], environment, trial.SANDBOX_EXEC)

    def _profile(self, program: str, folder: str, scratch: Scratch) -> str:
        ours = self._transaction.ours if self._transaction else state_folder.own_places()
        own = [os.path.join(scratch.path, name) for name in scratch.folders]
        work = self._work(folder, own, ours)
        led.refuse(self._policy, (*work, *(self._transaction.bases if self._transaction else ())), Look())
        places = seatbelt.Places(
            folders=_real(own, work, self.copies()),
            programs=_real(trial.own_programs(), (_PACKAGE, program)),
            originals=_real(self._transaction.bases if self._transaction else ()),
            closed=_real(ours),
        )  # fmt: skip
        resolved = self._policy.with_changes(
            readable_paths=_real(self._policy.readable_paths), writable_paths=_real(self._policy.writable_paths),
            hidden_paths=_real(self._policy.hidden_paths, self._hidden_in_copies()),
        )  # fmt: skip
        return seatbelt.profile(resolved, places)

    def _work(self, folder: str, own: list[str], ours: tuple[str, ...]) -> list[str]:
        """The working directory, if nothing else grants it. In directories that a guest writes, the guest chooses where
        links lead, so we grant nothing through them."""
        tops = [name for top in (*own, *self.copies(), *self._policy.writable_paths)
                for name in (absolute(top), real(top))]  # fmt: skip
        named = absolute(folder), real(folder)
        if self._is_only_read(folder) or any(within(path, top) for path in named for top in tops):
            return []
        state_folder.refuse_ours(ours, (), [folder])
        return [folder]

    def _hidden_in_copies(self) -> list[str]:
        """Under the names that they have in the working copies."""
        if self._transaction is None:
            return []
        named = [path for name in self._policy.hidden_paths for path in (name, real(name))]
        return [self._transaction.place(base) + path[len(base) :] for base in self._transaction.bases
                for path in named if within(path, base)]  # fmt: skip

    def _is_only_read(self, folder: str) -> bool:
        """The job may write a directory that the policy does not name, as on a host without walls."""
        place = real(folder)
        readable, writable = ([top for top in map(real, paths) if within(place, top)]
                              for paths in (self._policy.readable_paths, self._policy.writable_paths))  # fmt: skip
        return bool(readable) and not writable and not any(within(place, real(each))
                                                           for each in self.copies())  # fmt: skip


def _real(*groups: Iterable[str]) -> tuple[str, ...]:
    """Under every name: as written, where links lead, and as directories list them."""
    found: dict[str, None] = {}
    for path in (path for group in groups for path in group):
        place = real(path)
        found |= dict.fromkeys((absolute(path), place, seatbelt.spelled(place, os.listdir)))
    return tuple(found)
