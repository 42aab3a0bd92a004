"""Rewards for 500 machine-written programs: each runs in a sandbox of its own, as many at a time as the pool runs.

A program must define ``solve(number)``. It is given the inputs and gives back answers; whether they are right is
decided out here. What is right never goes into a sandbox, and no program can grade itself or another.

    python examples/reward_500.py [HOW_MANY]
"""

from __future__ import annotations

import sys
from collections import Counter

from ringfence import Pool, SandboxPolicy

INPUTS = [1, 2, 10, 99]
RIGHT = [n * n for n in INPUTS]
# How many of 500 a model writes like this.
PROGRAMS = {
    "right": (220, "def solve(n): return n * n"),
    "wrong": (200, "def solve(n): return n + n"),
    "syntax error": (40, "def solve(n) return n * n"),
    "exit": (10, "import os\ndef solve(n): os._exit(0)"),
    "forged": (10, "import os\nos.write(3, b'[1, 4, 100, 9801]')\nos._exit(0)"),
    "memory": (10, "def solve(n):\n    kept = []\n    while True: kept.append(bytearray(b'x') * 2**24)"),
    "loop": (5, "def solve(n):\n    while True: pass"),
    "fork bomb": (5, "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"),
}


def answers(source: str) -> list[object]:
    """In the sandbox."""
    space: dict[str, object] = {}
    exec(source, space)
    return [space["solve"](number) for number in INPUTS]  # type: ignore[operator]


def main(how_many: int) -> None:
    names = [name for name, (share, _) in PROGRAMS.items() for _ in range(max(1, share * how_many // 500))]
    policy = SandboxPolicy(isolation="strict", mem_bytes="256M", wall_time_s=10)
    with Pool(policy, warm=4) as pool:
        ended = pool.try_map(answers, [PROGRAMS[name][1] for name in names], timeout=5)
    rewards = [float(done.ok and done.value == RIGHT) for done in ended]
    told = ["value" if done.ok else done.problem.partition(":")[0] for done in ended]
    for (name, reward, how), count in Counter(zip(names, rewards, told, strict=True)).items():
        print(f"{count:4} x {name:12} reward {reward:g}  {how}")
    print(f"mean reward {sum(rewards) / len(rewards):.2f} of {len(rewards)} programs")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
