"""Can 1,000 idle sandboxes stand at once, how soon, what does each hold, and is everything gone afterwards?"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bench import standing
from bench.contenders import RUN, gather
from bench.harness import Answer, Effort, NotHere, Table, compare
from bench.process_tree import available_bytes, descendants, memory, tree

QUESTION = "1,000 idle sandboxes at once"
MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Stood:
    seconds: float
    close_s: float
    private_mib: float | None
    """Absent, and the next too: this user may not look at the memory of these processes."""
    added_mib: float | None
    whole_mib: float
    left: int


def ask(effort: Effort) -> Answer:
    count, turns = effort.pick(1000, 200, 3), effort.pick(3, 1)
    # Each run has a thread of this process that waits for it: a thousand of them would measure threads.
    kinds = {name: kind for name, kind in standing.KINDS.items() if name != RUN}
    gathered = gather({name: partial(partial, stand, kind, 2) for name, kind in kinds.items()})
    found: dict[str, list[Stood]] = {name: [] for name in gathered.turns}
    for _ in range(turns):
        for name in found:
            found[name].append(stand(kinds[name], count))
    tables = [_table(f"{count:,}: {title}", unit, found, of) for title, unit, of in FIGURES]
    left = [f"{name}: {sum(one.left for one in stood)} processes left after the end" for name, stood in found.items()]
    return gathered.answer(*tables, findings=left)


FIGURES: tuple[tuple[str, str, Callable[[Stood], float | None]], ...] = (
    ("until all stand", "s", lambda one: one.seconds),
    ("until all are gone", "s", lambda one: one.close_s),
    ("private memory of each", "MiB", lambda one: one.private_mib),
    ("memory that each adds", "MiB", lambda one: one.added_mib),
    ("less memory on the machine, for each", "MiB", lambda one: one.whole_mib),
)


def _table(title: str, unit: str, found: dict[str, list[Stood]], of: Callable[[Stood], float | None]) -> Table:
    told = {name: [of(one) for one in stood] for name, stood in found.items()}
    known = {name: [each for each in values if each is not None] for name, values in told.items()}
    return Table(title=title, unit=unit, rows=compare({name: values for name, values in known.items() if values}))


def stand(kind: standing.Standing, count: int) -> Stood:
    with kind(1):
        standing.all_stand(1)  # what is started once for all is started here, and stays
    before, held, available = descendants(), memory(tree()), available_bytes()
    start = time.perf_counter()
    with kind(count):
        stood = standing.all_stand(count)
        if not stood:
            raise NotHere(f"{count} did not come to stand in {standing.PATIENCE_S} s")
        holds, new = memory(tree()), memory(descendants() - before)
        less = available - available_bytes()
        closing = time.perf_counter()
    left, readable = standing.all_gone(before), holds.unreadable <= held.unreadable
    return Stood(
        seconds=stood - start,
        close_s=time.perf_counter() - closing,
        private_mib=new.private_bytes / count / MIB if readable else None,
        added_mib=(holds.anonymous_bytes - held.anonymous_bytes) / count / MIB if readable else None,
        whole_mib=less / count / MIB,
        left=len(left),
    )
