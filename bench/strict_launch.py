"""What does ``/bin/true`` cost under STRICT, against bubblewrap with the same namespaces and mounts?

bubblewrap builds the same root (system directories, the same files of /etc, private /tmp, /dev, /proc, covered parts of
/proc) in C, with a mount for each small file of /etc that STRICT copies; it sets no limit, joins no control group,
has no filter and watches nothing. A plain child shows what remains.
"""

from __future__ import annotations

from bench import peers
from bench.contenders import RUN, gather, peer, run_strict
from bench.harness import Answer, Effort, race, timed_ms
from ringfence import IsolationLevel, SandboxPolicy

QUESTION = "/bin/true under STRICT against bubblewrap with the same namespaces and mounts"
ARGV = ["/bin/true"]


def ask(effort: Effort) -> Answer:
    process = SandboxPolicy(isolation=IsolationLevel.PROCESS)
    gathered = gather(
        {
            "bubblewrap": peer("bubblewrap", ARGV, b""),
            RUN: lambda: timed_ms(run_strict(ARGV, b"")),
            "ringfence run, process": lambda: timed_ms(run_strict(ARGV, b"", process)),
            "no sandbox": lambda: timed_ms(lambda: peers.plain(ARGV)),
        }
    )
    return gathered.answer(race("/bin/true", gathered.turns, turns=effort.pick(60, 15), warm=2))
