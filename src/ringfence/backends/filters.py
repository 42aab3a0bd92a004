"""Which system-call filter a policy means, and its program, compiled once for a process."""

from __future__ import annotations

from ringfence.model.limits import SyscallProfile
from ringfence.model.policy import SandboxPolicy

_compiled: dict[tuple[str, tuple[int, int], bool, bool], bytes] = {}


def profile_name(policy: SandboxPolicy) -> str:
    return "tight_exec" if policy.syscall_profile is SyscallProfile.TIGHT else "default"


def compiled(name: str, ids: tuple[int, int], watched: bool, wired: bool) -> bytes:
    """The filter of a profile for these ids; for the rest see ``telling.profile_of``."""
    from ringfence.linux import seccomp, syscall_numbers, telling

    key = (name, ids, watched, wired)
    if key not in _compiled:
        profile = telling.profile_of(name, ids, watched=watched, wired=wired)
        _compiled[key] = seccomp.compile(profile, syscall_numbers.architecture(), notify=True)
    return _compiled[key]
