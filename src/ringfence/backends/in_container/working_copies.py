"""Directories of a transaction in a container: working copies, bound over the originals' paths; what is written is
bounded.

They are owned by the job's user. A layer does not compare owners and a commit does not carry them over: what comes into
the base belongs to the owner of the base. Transactions of other kinds need mounts of ours, which an engine does not
see.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ringfence.backends import own_paths
from ringfence.backends.scratch import place_on
from ringfence.container import job_spec
from ringfence.container.hardening import Bind, ContainerSpec
from ringfence.errors import SetupError, UsageError
from ringfence.model.limits import disk_in_container
from ringfence.model.outcome import Enforcement, Mechanism
from ringfence.model.paths import within
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace
from ringfence.model.ways.walk import real
from ringfence.roles.layer_room import LayerRoom
from ringfence.sandbox import hiding, host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.checkpoint.transaction import Transaction

_BLOCK_BYTES = 512


class WorkingCopies:
    """Binds the working copies of one transaction into the container of one box."""

    def __init__(self, transaction: Transaction, policy: SandboxPolicy) -> None:
        place_on(transaction)  # UsageError where it is of another kind
        hiding.refuse_unhidden(transaction, host.every_name(policy.hidden_paths))
        for path in policy.writable_paths:
            if any(within(path, base) for base in transaction.bases):
                raise UsageError(f"{path} is in a directory that is worked on as a copy, but would be written directly",
                                 hint="leave it out of writable_paths")  # fmt: skip
        self.transaction = transaction
        self._most = disk_in_container(policy.disk_bytes, policy.mem_bytes)
        self._places = [transaction.place(base) for base in transaction.bases]
        self._room = LayerRoom(self._places, self._free)

    def folder(self, asked: str | None) -> str:
        """Where a job begins; UsageError if that is not a directory of the transaction."""
        if asked is None:
            return self.transaction.bases[0]
        if not os.path.isdir(self.transaction.working_copy(asked)):
            raise UsageError(f"{asked}: no such directory", hint="the working directory must exist")
        return asked

    def added(self, spec: ContainerSpec, folder: str) -> ContainerSpec:
        """Return the container with the copies, writable, at the originals' own paths."""
        own = [Bind(source=real(place), target=base, read_only=False)
               for place, base in zip(self._places, self.transaction.bases, strict=True)]  # fmt: skip
        others = [bind for bind in spec.binds if not any(within(bind.target, base) for base in self.transaction.bases)]
        return replace(spec, binds=(*others, *own), workdir=folder)

    def enforced(self, table: dict[str, Enforcement]) -> dict[str, Enforcement]:
        entry = own_paths.enforcement(self.transaction, "")
        if "disk" in table and not table["disk"].applied:
            return {**table, own_paths.CAPABILITY: entry}
        disk = Enforcement(
            requested=self._most, applied=True, mechanism="watchdog and tmpfs",
            details="what grows in working copies ends the box; in memory no more than that fits",
            by=(Mechanism.WATCHDOG, Mechanism.MOUNT_NAMESPACE),
        )  # fmt: skip
        return {**table, own_paths.CAPABILITY: entry, "disk": disk}

    def give_to_job(self) -> None:
        """A caller that is not root shares its ids with the job, and has nothing to hand over."""
        uid, _, gid = job_spec.user().partition(":")
        try:
            if os.geteuid() == 0:
                self.transaction.give_to((int(uid), int(gid)))
            self._room.given = sum(map(_taken, self._places))
        except OSError as error:
            raise SetupError("give the working copy to the job", str(error.strerror), errno=error.errno or 0) from error

    def written(self, pids: Sequence[int]) -> int:
        """How much they have grown, if that is more than allowed; 0 if it is not, or is still being added up."""
        grown = self._room.taken(self._most, lambda: pids)
        return grown if grown > self._most else 0

    def _free(self) -> int:
        found = os.statvfs(self._places[0])
        return found.f_bfree * found.f_frsize


def _taken(place: str) -> int:
    """The bytes that it takes on disk. What an earlier job nested too deep to be reached is left out."""
    total, waiting = 0, [place]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    total += entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError:
            continue
    return total
