"""Leaves out what the kernel lets only root do, rather than skip it; what others get is tested at the doors."""

from __future__ import annotations

import os
import sys

import pytest

_ROOT = sys.platform == "linux" and os.geteuid() == 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _ROOT:
        return
    left_out = [item for item in items if item.path.name == "test_live_state.py"]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
