"""The one table from policy limits to POSIX resource limits, and what this host's hard limits allow."""

from __future__ import annotations

import math

# How long after SIGXCPU a program that ignores it is left alive by the kernel.
CPU_GRACE_S = 2
# RLIMIT_NPROC counts every process of the user, not this tree. It is only a net under the watchdog:
# wide enough that other work of the same user never hits it, narrow enough that a bomb ends.
NPROC_SLACK = 4096

# (capability, name of the limit, how the asked number becomes (soft, hard))
ROWS = (
    ("cpu_time", "RLIMIT_CPU", lambda asked: (math.ceil(asked), math.ceil(asked) + CPU_GRACE_S)),
    ("memory", "RLIMIT_AS", lambda asked: (asked, asked)),
    ("nofile", "RLIMIT_NOFILE", lambda asked: (asked, asked)),
    ("file_size", "RLIMIT_FSIZE", lambda asked: (asked, asked)),
)


def rows(asked: dict[str, object], user_tasks: int) -> list[tuple[str, int, int]]:
    """(name, soft, hard) for what is asked, and always no core files and a net against fork bombs."""
    limits = [(name, *make(asked[capability])) for capability, name, make in ROWS if capability in asked]
    pids = asked["pids"]
    assert isinstance(pids, int)
    net = user_tasks + pids + NPROC_SLACK
    return [("RLIMIT_CORE", 0, 0), ("RLIMIT_NPROC", net, net), *limits]


def beyond_hard_limit(asked: dict[str, object]) -> list[tuple[str, str, int]]:
    """(capability, limit, the host's hard limit) where more is asked than this process may grant."""
    import resource

    over = []
    for capability, name, make in ROWS:
        if capability not in asked:
            continue
        hard = resource.getrlimit(getattr(resource, name))[1]
        if hard != resource.RLIM_INFINITY and make(asked[capability])[1] > hard:
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
