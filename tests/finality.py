"""Which failures a second run can't mend: an attack that succeeded in the sandbox.

The gate runs a failed test once more, alone, since the machine may have been busy. An attack that got through once got
through: no later run takes that back. So in ``tests/escape`` every assertion that fails is final, but for controls (the
same attack without a sandbox), for what came too late, and for what was prepared.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.patience import TooLate

PROPERTY = "final"
_ATTACKS = Path(__file__).resolve().parent / "escape"


class AttackSucceeded(AssertionError):
    """Final wherever it is raised."""


class Unsure(AssertionError):
    """Something else than expected came out of an attack, and it did not succeed: e.g. another status."""


def is_final(item: pytest.Item, when: str, error: BaseException) -> bool:
    """``when``: the phase of the test, as pytest calls it."""
    if isinstance(error, AttackSucceeded):
        return True
    attack = _ATTACKS in item.path.parents and when == "call" and not item.get_closest_marker("control")
    return attack and isinstance(error, AssertionError) and not isinstance(error, TooLate | Unsure)
