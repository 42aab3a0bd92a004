"""What does the size of the workspace cost a launch: 10, 10,000, 100,000 files? It should be flat.

The job writes one file, which goes into a layer; bubblewrap has no layer to throw away, so it writes for good. A copy
of the tree is what one does without a layer.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import peers
from bench.contenders import RUN, STRICT, Action, Maker, expect, gather
from bench.harness import Answer, Effort, Turn, race, timed_ms
from ringfence import Job, run

QUESTION = "One small write in a workspace of 10, 10,000 and 100,000 files"
ARGV = ("/bin/sh", "-c", "echo 1 > written.txt")


def ask(effort: Effort) -> Answer:
    counts = {Effort.FULL: (10, 10_000, 100_000), Effort.SHORT: (10, 10_000), Effort.TINY: (10, 100)}[effort]
    with tempfile.TemporaryDirectory() as folder:
        makers: dict[str, Maker] = {}
        for kind, make in {RUN: _ours, "bubblewrap, no layer": _bubblewrap}.items():
            for count in counts:
                tree = _tree(Path(folder) / str(count), count)
                makers[f"{kind}: {count:,} files"] = partial(_timed, make, tree)
        gathered = gather(makers)
        table = race("sh -c 'echo 1 > written.txt'", gathered.turns, turns=effort.pick(30, 8))
        copies = {f"copy: {count:,} files": timed_ms(_copy(Path(folder), count)) for count in counts}
        return gathered.answer(table, race("a copy of the tree instead", copies, turns=effort.pick(3, 1), warm=0))


def _tree(top: Path, count: int) -> str:
    """Made once, in directories of a hundred."""
    if not top.exists():
        for number in range(count):
            path = top / str(number // 100) / f"{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{number}\n")
        top.chmod(0o777)
        top.parent.chmod(0o755)
    return os.fspath(top)


def _timed(make: Callable[[str], Action], tree: str) -> Turn:
    return timed_ms(make(tree))


def _ours(tree: str) -> Action:
    job = Job(argv=ARGV, cwd=tree)
    return lambda: expect(run(job, STRICT), b"")


def _bubblewrap(tree: str) -> Action:
    command = peers.bubblewrap_in(tree, ARGV)
    return lambda: peers.plain(command)


def _copy(folder: Path, count: int) -> Action:
    """With its removal, as it is for each run."""

    def copy() -> None:
        shutil.copytree(folder / str(count), folder / "copy")
        shutil.rmtree(folder / "copy")

    return copy
