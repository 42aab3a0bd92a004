"""The one table from policy limits to POSIX resource limits, and what this host's hard limits allow."""

from __future__ import annotations

import math
from _collections_abc import Mapping

# How long after SIGXCPU a program that ignores it is left alive by the kernel.
CPU_GRACE_S = 2
# RLIMIT_NPROC counts every process of the user, not this tree. It is only a net under the watchdog:
# wide enough that other work of the same user never hits it, narrow enough that a bomb ends.
NPROC_SLACK = 4096

# (capability, name of the limit, seconds or bytes between the soft and the hard limit)
ROWS = (
    ("cpu_time", "RLIMIT_CPU", CPU_GRACE_S),
    ("memory", "RLIMIT_AS", 0),
    ("nofile", "RLIMIT_NOFILE", 0),
    ("file_size", "RLIMIT_FSIZE", 0),
)


def rows(asked: Mapping[str, float], host_tasks: int) -> list[tuple[str, int, int]]:
    """(name, soft, hard) for what is asked, and always no core files and a net against fork bombs."""
    limits = [
        (name, math.ceil(asked[capability]), math.ceil(asked[capability]) + grace)
        for capability, name, grace in ROWS
        if capability in asked
    ]
    net = host_tasks + int(asked["pids"]) + NPROC_SLACK
    return [("RLIMIT_CORE", 0, 0), ("RLIMIT_NPROC", net, net), *limits]


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
    """Set one limit; the net against fork bombs is lowered to what the host allows."""
    import resource

    number = getattr(resource, name)
    ceiling = resource.getrlimit(number)[1]
    if name == "RLIMIT_NPROC" and ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(number, (soft, hard))
