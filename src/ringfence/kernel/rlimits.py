"""The one table from policy limits to POSIX resource limits, and what this host's hard limits allow."""

from __future__ import annotations

import math
import sys
from _collections_abc import Mapping

# How long after SIGXCPU a program that ignores it is left alive by the kernel.
CPU_GRACE_S = 2
# RLIMIT_NPROC counts every process of the user, not this tree. It is only a net under the watchdog:
# wide enough that other work of the same user never hits it, narrow enough that a bomb ends.
NPROC_SLACK = 4096
# In a user namespace of its own it counts the sandbox alone, since Linux 5.14. Wide enough that the watchdog sees more
# than are allowed and says so; narrow enough that many bombs at once do not starve it.
NAMESPACE_SLACK, _UNBOUND = 64, 1 << 20
_COUNTS_BY_NAMESPACE = (5, 14)

# Linux takes 1 as «no core, not by a helper at the end of a pipe either»; 0 only keeps files from being written.
NO_CORE = 1 if sys.platform == "linux" else 0
NET = "RLIMIT_NPROC"
# What the kernel counts for a user as a whole, or lets only some users have. Signals and queues are counted for each
# user namespace too, so that a sandbox has this share of the user's and no more.
SHARES = (
    ("RLIMIT_SIGPENDING", 1024),
    ("RLIMIT_MSGQUEUE", 128 * 1024),
    ("RLIMIT_MEMLOCK", 256 * 1024),
    ("RLIMIT_RTPRIO", 0),
    ("RLIMIT_NICE", 0),
)

# Private writable memory, and not address space: node, Go and Java reserve gigabytes that they never use (ADR 0046).
# Elsewhere it does not count what mmap gives, and macOS takes RLIMIT_AS without holding it: the watchdog does.
MEMORY = "RLIMIT_DATA"

# (capability, name of the limit, seconds or bytes between the soft and the hard limit)
ROWS = (
    ("cpu_time", "RLIMIT_CPU", CPU_GRACE_S),
    *((("memory", MEMORY, 0),) if sys.platform == "linux" else ()),
    ("nofile", "RLIMIT_NOFILE", 0),
    ("file_size", "RLIMIT_FSIZE", 0),
)


def namespace_slack(release: str) -> int:
    """How many tasks beyond its limit the kernel lets a sandbox with its own user namespace have."""
    major, minor, *_ = (*release.split("."), "0", "0")
    known = (int(major), int("".join(filter(str.isdigit, minor)) or 0)) if major.isdigit() else (0, 0)
    return NAMESPACE_SLACK if known >= _COUNTS_BY_NAMESPACE else _UNBOUND


def rows(asked: Mapping[str, float], slack: int) -> list[tuple[str, int, int]]:
    """(name, soft, hard) for what is asked, and always no core files and a net against fork bombs. ``slack``: how many
    tasks beyond the limit it lets through."""
    limits = [
        (name, math.ceil(asked[capability]), math.ceil(asked[capability]) + grace)
        for capability, name, grace in ROWS
        if capability in asked
    ]
    net = int(asked["pids"]) + slack
    return [("RLIMIT_CORE", NO_CORE, NO_CORE), (NET, net, net), *limits]


def shares() -> list[tuple[str, int, int]]:
    """(name, soft, hard) of the share that a job behind walls may have of its user's."""
    return [(name, most, most) for name, most in SHARES] if sys.platform == "linux" else []


def beyond_hard_limit(asked: Mapping[str, float]) -> list[tuple[str, str, int]]:
    """(capability, limit, the host's hard limit) where more is asked than this process may grant."""
    import resource

    over = []
    for capability, name, grace in ROWS:
        hard = resource.getrlimit(getattr(resource, name))[1]
        if hard != resource.RLIM_INFINITY and math.ceil(asked.get(capability, 0)) + grace > hard:
            over.append((capability, name, hard))
    return over


def apply(name: str, soft: int, hard: int) -> None:
    """Set one limit; what is not asked for by the policy is lowered to what the host allows."""
    import resource

    number = getattr(resource, name)
    ceiling = resource.getrlimit(number)[1]
    if name in GIVES_WAY and ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(number, (soft, hard))


GIVES_WAY = {"RLIMIT_CORE", NET, *(name for name, _ in SHARES)}
