"""Input and result of one task of a suite. Plain records: they travel to other processes and machines."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType

from ringfence.model.record import record
from ringfence.model.str_enum import StrEnum

_NAME_CHARS, _DIGEST_CHARS = 80, 16
_NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


@record
class Entry:
    """One task of a suite, described so that a process on another machine can load it. Nothing in it is secret."""

    id: str
    """Unique in its suite. It may have any character: the name of a directory is ``folder_name(id)``."""
    kind: str
    """One of ``ringfence.proctor.task.KINDS``."""
    path: str
    """The task's directory; of SWE-bench the file with the instance."""
    options: Mapping[str, str] = _NO_OPTIONS
    """``rootfs``: host or image, as the user said it. ``policy``: a file in place of the task's own. ``no-env``:
    ``yes`` where no variable of the caller's is passed on. Of Harbor and Terminal-Bench ``allow``: hosts, ``env``:
    names of variables, with spaces between them. Of SWE-bench ``repo``: the clone, ``grade``: ``yes`` or absent,
    ``python``: the interpreter. Paths are absolute."""


@record
class Order:
    """What is the same for all tasks of a suite. The seed and the variables are secret: they go from memory to memory,
    never to a disk or into the arguments of a program, and are no part of its repr."""

    agent: str
    """A command, or a name of ``agents.NAMES``."""
    seed: str
    """What every run is signed with: 64 hex digits."""
    suite: str
    """The number of this run of the suite, 64 hex digits: the nonce of every task comes from it."""
    scaffold: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None
    """The caller's variables that a task's policy may pass on to its agent; None: the process has them already."""
    cluster: tuple[str, ...] = ()
    """Addresses of the nodes, which no task may reach; empty: it runs on no cluster."""

    def __repr__(self) -> str:
        return f"Order(agent={self.agent!r}, suite={self.suite!r})"

    def nonce(self, entry_id: str) -> str:
        """The challenge of one task: no bundle of another task or of another run of the suite has it."""
        return nonce_of(self.suite, entry_id)


class State(StrEnum):
    """How the work on an entry ended."""

    VERDICT = "verdict"
    """Its directory is complete, with a bundle that verifies; also for a fail and for a compromised run."""
    FAILED = "failed"
    """The machine did not let it end: full disk, killed worker. It may be tried again."""
    REFUSED = "refused"
    """It can't be run as it is: it is malformed, asks for something that this host lacks, takes longer than any task
    may, or hit a bug of ours. Trying again would not help, or would help an agent that caused it."""
    CANCELLED = "cancelled"


@record
class Result:
    """What a worker says of one entry."""

    id: str
    state: State
    out: str = ""
    """The complete directory, where the state is a verdict."""
    error: str = ""
    hint: str = ""
    reused: bool = False
    """Whether the directory was complete before."""
    took_s: float = 0.0
    notes: tuple[str, ...] = ()
    """Where the run of the task differs from what its format says."""
    where: str = ""
    """The machine that ran it; empty: this one."""


def nonce_of(suite: str, entry_id: str) -> str:
    """The nonce of an entry in one run of a suite."""
    text = f"ringfence suite\n{suite}\n{entry_id}".encode("utf-8", "surrogateescape")
    return hashlib.sha256(text).hexdigest()


def folder_name(entry_id: str) -> str:
    """The name of an entry's directory: plain, never hidden, and another one for another id, but for ids made to
    collide.

    >>> folder_name("django__django-1"), folder_name("../../etc")
    ('django__django-1', '_._.._etc-74ccf3c5b4c19a81')
    """
    plain = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in entry_id)
    plain = f"_{plain[1:]}" if plain[:1] in ("", ".", "-") else plain
    if plain == entry_id and len(plain) <= _NAME_CHARS:
        return plain
    digest = hashlib.sha256(entry_id.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{plain[:_NAME_CHARS]}-{digest[:_DIGEST_CHARS]}"
