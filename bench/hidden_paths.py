"""What does hiding 0, 100 or 10,000 paths cost a launch? It should be flat.

The paths lie in the job's own directory, where they would be seen. bubblewrap covers each with a mount; it takes no
command line as long as 10,000 of them need.
"""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path

from bench import peers
from bench.contenders import RUN, STRICT, Maker, expect, gather
from bench.harness import Answer, Effort, NotHere, Turn, race, timed_ms
from ringfence import Job, run

QUESTION = "/bin/true with 0, 100 and 10,000 hidden paths in its directory"
BUBBLEWRAP_MOST = 2_900
"""It takes 9,000 words, and each path needs three."""


def ask(effort: Effort) -> Answer:
    counts = (0, 100) if effort is Effort.TINY else (0, 100, 10_000)
    with tempfile.TemporaryDirectory() as folder:
        paths = _files(Path(folder), max(counts))
        makers: dict[str, Maker] = {}
        for count in counts:
            makers[f"{RUN}: {count:,} hidden"] = partial(_ours, folder, paths[:count])
        for count in counts:
            makers[f"bubblewrap: {count:,} hidden"] = partial(_bubblewrap, folder, paths[:count])
        gathered = gather(makers)
        return gathered.answer(race("/bin/true", gathered.turns, turns=effort.pick(20, 5)))


def _files(folder: Path, count: int) -> list[str]:
    folder.chmod(0o755)
    paths = [folder / f"answer_{number}.txt" for number in range(count)]
    for path in paths:
        path.write_text("42\n")
    return [os.fspath(path) for path in paths]


def _ours(folder: str, hidden: list[str]) -> Turn:
    policy = STRICT.with_changes(hidden_paths=tuple(hidden))
    job = Job(argv=("/bin/true",), cwd=folder)
    return timed_ms(lambda: expect(run(job, policy), b""))


def _bubblewrap(folder: str, hidden: list[str]) -> Turn:
    if len(hidden) > BUBBLEWRAP_MOST:
        raise NotHere("its command line takes at most 9,000 words")
    covers = [word for path in hidden for word in ("--ro-bind", "/dev/null", path)]
    command = peers.bubblewrap_in(folder, ["/bin/true"], *covers)
    return timed_ms(lambda: peers.plain(command))
