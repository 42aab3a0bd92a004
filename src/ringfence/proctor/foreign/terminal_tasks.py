"""Which format a terminal task has, told by its files, and its task."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ringfence.errors import UsageError
from ringfence.proctor.foreign import harbor, terminal_bench
from ringfence.proctor.task import Task

_NOTHING: Mapping[str, str] = MappingProxyType({})
_BY_FILES = {"harbor": (harbor.FILE,), "terminal-bench": (terminal_bench.FILE, terminal_bench.SCRIPT)}


def kind_of(folder: str) -> str:
    """Return ``harbor`` or ``terminal-bench``; empty: it is neither."""
    found = (kind for kind, names in _BY_FILES.items() if all(map(os.path.lexists, _in(folder, names))))
    return next(found, "")


def _in(folder: str, names: Sequence[str]) -> list[str]:
    return [os.path.join(folder, name) for name in names]


def load(
    folder: str, *, rootfs: str, allow: Sequence[str] = (), environment: Mapping[str, str] = _NOTHING,
    build_network: str = "",
) -> Task:  # fmt: skip
    """Load the task, whichever format it has; UsageError where it has neither."""
    kind = kind_of(folder)
    if not kind:
        raise UsageError(f"{folder} is not a Harbor or Terminal-Bench task: it has neither {harbor.FILE} nor "
                         f"{terminal_bench.FILE} and {terminal_bench.SCRIPT}",
                         hint="proctor run takes tasks in ringfence's own format")  # fmt: skip
    made = harbor.load if kind == "harbor" else terminal_bench.load
    return made(folder, rootfs=rootfs, allow=allow, environment=environment, build_network=build_network)
