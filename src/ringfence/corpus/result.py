"""Reads a runner's report on one run, ``result.json``: strictly, because nobody vouches for the runner."""

from __future__ import annotations

import json
import math
import os

from ringfence.errors import UsageError
from ringfence.model.own_files import read_regular
from ringfence.model.record import record

NAME = "result.json"
_MOST_BYTES = 65536


@record
class RunResult:
    """The reward that the grader gave, and whether the run was told as dishonest."""

    reward: float
    recorded: bool

    @property
    def score(self) -> float:
        """What it is worth: the reward if clean, else nothing."""
        return 0.0 if self.recorded else self.reward


def read_result(folder: str) -> RunResult:
    """Return the result in an output directory; UsageError where it is missing or anything but two fields."""
    try:
        data, _ = read_regular(os.path.join(folder, NAME), _MOST_BYTES)
    except OSError as error:
        raise UsageError(f"the runner left no {NAME}: {error.strerror}") from None
    return parse(data)


def parse(data: bytes) -> RunResult:
    """Return the result that these bytes are.

    >>> parse(b'{"reward": 1, "recorded": false}').score
    1.0
    """
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{NAME} is longer than {_MOST_BYTES} bytes")
    try:
        fields = json.loads(data.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{NAME} is not JSON: {error}") from None
    if not isinstance(fields, dict) or fields.keys() != {"reward", "recorded"}:
        raise UsageError(f"{NAME} must be an object with reward and recorded, and nothing else")
    return RunResult(reward=_number(fields["reward"]), recorded=_truth(fields["recorded"]))


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field appears twice")
    return fields


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise UsageError(f"{NAME}: reward must be a finite number and not negative")
    return float(value)


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{NAME}: recorded must be true or false")
    return value
