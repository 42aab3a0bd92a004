"""Which calls are told only for what they say of a job: a large mapping and the end of a process that fails, why it
failed; a socket, that its network namespace is used.

They go on whatever is seen (``witness``). A filter knows no limit: what it can tell apart are sizes with a bit from
2 MiB upwards, which arenas of interpreters and heaps of small programs never have.
"""

from __future__ import annotations

from ringfence.kernel.seccomp.rules import ALL_64, Action, Kind, Profile, Rule, any_bit, one_of
from ringfence.model.record import replace

LARGE_BYTES = 2 << 20
_LARGE = ALL_64 & ~(LARGE_BYTES - 1)
_PROT_WRITE = 2
_MAP_PRIVATE, _MAP_TYPE = 0x02, 0x0F
_WITNESS = Action(kind=Kind.WITNESS)
_ALLOW = Action(kind=Kind.ALLOW)

EXITS = (
    Rule(calls=("exit_group",), action=_WITNESS, reason="a process fails: what it holds now", when=(any_bit(0, 0xFF),)),
)
MAPPINGS = (
    Rule(
        calls=("mmap",), action=_WITNESS, reason="the memory limit may refuse it",
        when=(any_bit(1, _LARGE), any_bit(2, _PROT_WRITE), one_of(3, _MAP_PRIVATE, bits=_MAP_TYPE)),
    ),
    Rule(
        calls=("mprotect", "pkey_mprotect"), action=_WITNESS, reason="as mmap; stacks of threads are made so",
        when=(any_bit(1, _LARGE), any_bit(2, _PROT_WRITE)),
    ),
    Rule(calls=("mremap",), action=_WITNESS, reason="as mmap", when=(any_bit(2, _LARGE),)),
)  # fmt: skip
SOCKETS = (
    Rule(calls=("socket",), action=_WITNESS, reason="no other job gets a network namespace in which one was made"),
)
_OPEN = Rule(calls=(), action=_ALLOW, reason="this filter closes nothing")


def witnessing(profile: Profile, *, memory: bool, sockets: bool = False) -> Profile:
    """The same profile, with a supervisor that sees why a job fails. ``memory``: a limit for each process holds it;
    ``sockets``: it sees whether any was made."""
    noted = (*profile.noted, *EXITS, *(MAPPINGS if memory else ()), *(SOCKETS if sockets else ()))
    return replace(profile, noted=noted)


def alone(*, memory: bool) -> Profile:
    """A filter that closes nothing, for a job without walls."""
    return witnessing(Profile(name="witness", closed=(), open=(), unknown=_OPEN, foreign=_OPEN), memory=memory)
