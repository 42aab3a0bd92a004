"""Whether the directories of a transaction can be shown at their own paths at the process level, and what the table
says.

They can where the job can have a mount namespace: its working copies are bound over the originals there. Else the job
finds them in the working copies themselves.
"""

from __future__ import annotations

import os
import sys

from ringfence.kernel import landlock
from ringfence.model.outcome import Enforcement, Mechanism
from ringfence.model.own import private_place
from ringfence.model.paths import within
from ringfence.model.ways.walk import real
from ringfence.sandbox import host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.checkpoint.transaction import Transaction

CAPABILITY = "allowed_paths"
"""The key of ``enforced`` that says where they are."""


def why_not(transaction: Transaction) -> str:
    """What prevents that; empty: nothing does."""
    if sys.platform != "linux" or not landlock.abi():
        return "a kernel with Landlock"
    blocked = host.user_namespaces_blocked()
    if blocked is not None or host.is_confined():
        return blocked[0] if blocked else "mounts, which a filter or a profile around this process may close"
    for base in transaction.bases:
        if within(real(private_place.path()), base):
            return f"a TMPDIR that is not in {base}"
        closed = _closed(base)
        if closed:
            return f"a way to {base} that is open without privileges ({closed} is closed)"
    return ""


def _closed(path: str) -> str:
    """The first directory on the way that this id can't enter without a capability, since the job has no capability."""
    way = path.split("/")
    above = ("/".join(way[:depth]) or "/" for depth in range(1, len(way)))
    return next((place for place in above if not _enters(os.stat(place))), "")


def _enters(status: os.stat_result) -> bool:
    if status.st_uid == os.geteuid():
        return bool(status.st_mode & 0o100)
    if status.st_gid in (os.getegid(), *os.getgroups()):
        return bool(status.st_mode & 0o010)
    return bool(status.st_mode & 0o001)


def places(transaction: Transaction) -> tuple[str, ...]:
    """Where jobs behind walls find the directories."""
    if transaction.kind == "snapshot" and why_not(transaction):
        return tuple(map(transaction.place, transaction.bases))
    return transaction.bases


def enforcement(transaction: Transaction, lacking: str) -> Enforcement:
    """``lacking``: what ``why_not`` says."""
    details = f"not at their own paths, which takes {lacking}" if lacking else "at their own paths"
    mechanism = "working copies" if lacking else "working copies, bound in a mount namespace"
    by = (Mechanism.WORKING_COPIES, *(() if lacking else (Mechanism.MOUNT_NAMESPACE,)))
    return Enforcement(requested=transaction.bases, applied=True, mechanism=mechanism, details=details, by=by)
