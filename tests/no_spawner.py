"""For tests that must start the spawner anew."""

from __future__ import annotations

import gc

from ringfence.roles import spawner


def end_spawner() -> None:
    """It ends with its last leader, and that of a box which a test forgot ends when the box is garbage. The gate looks
    for garbage seldom."""
    gc.collect()
    spawner.shutdown()
