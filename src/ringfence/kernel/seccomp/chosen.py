"""Which profile a sandbox has: one of the closed ones, for its ids, with what its supervisor is told."""

from __future__ import annotations

from _collections_abc import Mapping

from ringfence.kernel.seccomp import profiles, witness_rules
from ringfence.kernel.seccomp.rules import Profile


def profile_of(
    name: str, ids: tuple[int, int], *, watched: bool, wired: bool = False, witness: Mapping[str, int] | None = None
) -> Profile:
    """What the filter of a sandbox is compiled from and its supervisor answers by. ``ids``: its user and group.

    ``watched``: it has hidden paths, and the calls that name a file are told; ``wired``: only those of them that fail
    before any tripwire could see them. ``witness``: the limits that calls are compared with, and whether
    sockets are watched for (``filters.witnessed``); absent: there is no witness.
    """
    profile = profiles.alone(profiles.noting(profiles.PROFILES[name]), *ids)
    if witness is not None:
        sockets = bool(witness.get("sockets"))
        profile = witness_rules.witnessing(profile, memory=bool(witness["memory"]), sockets=sockets)
    if not watched:
        return profile
    return profiles.watching_denied(profile) if wired else profiles.watching(profile)
