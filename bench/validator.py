"""What does it cost to look through code before it is run, against parsing the same code?

The goal is at most five times ``ast.parse``. Sizes differ because a fixed cost would show in small code alone. Both
only compute, so processor time is what is compared: a turn of half a millisecond must not pay for whoever else runs.
"""

from __future__ import annotations

import _pydecimal
import ast
import gc
import inspect
import statistics
import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial

from bench.harness import Answer, Effort, Table, Turn, race
from ringfence.validation import SecurityValidator

QUESTION = "SecurityValidator.validate against ast.parse of the same code"
PARSED, VALIDATED = "ast.parse", "SecurityValidator.validate"
MOST = 5.0
_STRATEGY = """
import math

def run(data):
    closes = [float(row["close"]) for row in data["rows"]]
    fast = [sum(closes[max(0, i - 5):i + 1]) / min(i + 1, 6) for i in range(len(closes))]
    slow = [sum(closes[max(0, i - 20):i + 1]) / min(i + 1, 21) for i in range(len(closes))]
    position, equity, peak, worst = 0, 1.0, 1.0, 0.0
    for i in range(1, len(closes)):
        equity *= 1 + position * (closes[i] / closes[i - 1] - 1)
        peak = max(peak, equity)
        worst = min(worst, equity / peak - 1)
        position = 1 if fast[i] > slow[i] else 0
    return {"total": equity - 1, "drawdown": worst, "log": math.log(equity)}
"""


def ask(effort: Effort) -> Answer:
    codes = {
        "a strategy of 15 lines": _STRATEGY,
        "a module of 1,000 lines (fractions)": inspect.getsource(inspect.getmodule(Fraction)),  # type: ignore[arg-type]
        "a module of 1,400 lines (statistics)": inspect.getsource(statistics),
        "a module of 6,300 lines (decimal in Python)": inspect.getsource(_pydecimal),
    }
    tables = tuple(_table(title, code, effort.pick(60, 15)) for title, code in codes.items())
    ratios = [row.ratio for table in tables for row in table.rows if row.name == VALIDATED and row.ratio]
    reached = "reached" if max(ratios) <= MOST else "not reached"
    return Answer(tables=tables, findings=(f"at most {max(ratios):.2f} times, asked ≤ {MOST:g}: {reached}",))


def _table(title: str, code: str, turns: int) -> Table:
    validator = SecurityValidator()
    gc.collect()
    actions = {PARSED: partial(ast.parse, code), VALIDATED: partial(validator.validate, code)}
    contenders = {name: _processor_ms(action) for name, action in actions.items()}
    return race(title, contenders, turns=turns, unit="ms of processor")


def _processor_ms(action: Callable[[], object]) -> Turn:
    def turn() -> float:
        start = time.thread_time()
        action()
        return (time.thread_time() - start) * 1e3

    return turn
