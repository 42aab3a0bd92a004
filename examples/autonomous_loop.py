"""A loop that tries strategies which nobody has read: each runs in a container of its own, and the best one is kept.

    python examples/autonomous_loop.py [--file config/docker_config.yaml] [--iterations 10]

A model would write the strategies; here they are made up, and some of them are bad on purpose: one reads a file that is
none of its business, one never ends, one returns nonsense. The loop goes on.
"""

from __future__ import annotations

import argparse
import json
import random

from ringfence import DockerConfig, DockerExecutor

STRATEGY = """
def run(data):
    prices, window = data["prices"], {window}
    cash, shares = 100.0, 0.0
    for day in range(window, len(prices)):
        mean = sum(prices[day - window : day]) / window
        if prices[day] > mean and cash:
            cash, shares = 0.0, cash / prices[day]
        elif prices[day] < mean and shares:
            cash, shares = shares * prices[day], 0.0
    return {{"value": cash + shares * prices[-1], "window": window}}
"""
BAD = (
    "import os\ndef run(data): return {'stolen': os.listdir('/root')}",
    "def run(data):\n    while True: pass",
    "def run(data): return 'not a dict'",
)


def prices(days: int = 250) -> list[float]:
    walk, chance = [100.0], random.Random(7)
    for _ in range(days):
        walk.append(round(walk[-1] * (1 + chance.gauss(0.0004, 0.01)), 4))
    return walk


def next_strategy(iteration: int) -> str:
    """What a model would write."""
    return BAD[iteration // 3 % len(BAD)] if iteration % 3 == 2 else STRATEGY.format(window=3 + 4 * iteration)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--file", default="config/docker_config.yaml")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--timeout", type=int, default=5)
    asked = parser.parse_args(arguments)
    data, best, ended = {"prices": prices()}, {"value": 0.0}, {"ok": 0}
    with DockerExecutor(DockerConfig.from_yaml(asked.file, timeout_seconds=asked.timeout)) as executor:
        for iteration in range(asked.iterations):
            result = executor.execute(next_strategy(iteration), data)
            ended[str(result.status)] = ended.get(str(result.status), 0) + 1
            print(f"{iteration}: {result.status}: {result.metrics or result.error_message}", flush=True)
            if result.success:
                best = max(best, result.metrics, key=lambda each: each["value"])
    print(json.dumps({"iterations": asked.iterations, "ended": ended, "best": best}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
