"""Which system-call filter a policy means, and its program, compiled once for a process."""

from __future__ import annotations

from ringfence.model.limits import SyscallProfile
from ringfence.model.policy import SandboxPolicy

_compiled: dict[tuple[str, tuple[int, int], bool, bool], bytes] = {}


def profile_name(policy: SandboxPolicy) -> str:
    if policy.syscall_profile is SyscallProfile.TIGHT:
        return "tight_exec"
    return "unix_pairs" if closes_unix_sockets(policy) else "default"


def closes_unix_sockets(policy: SandboxPolicy) -> bool:
    """Whether only the filter can keep the job from sockets of the host: a writable path is the host's own directory,
    and a kernel that can't tell a job's sockets from others closes them all (ADR 0074)."""
    from ringfence.backends import strict_table

    return bool(policy.writable_paths) and not strict_table.landlock_holds_unix_sockets()


def compiled(name: str, ids: tuple[int, int], watched: bool, wired: bool) -> bytes:
    """The filter of a profile for these ids; for the rest see ``telling.profile_of``."""
    from ringfence.linux import seccomp, syscall_numbers, telling

    key = (name, ids, watched, wired)
    if key not in _compiled:
        profile = telling.profile_of(name, ids, watched=watched, wired=wired)
        _compiled[key] = seccomp.compile(profile, syscall_numbers.architecture(), notify=True)
    return _compiled[key]
