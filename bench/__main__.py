"""``python -m bench [QUESTION …]``: every question, or the named ones."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import bench

names = sys.argv[1:] or [module.name for module in pkgutil.iter_modules(bench.__path__)]
for name in names:
    module = importlib.import_module(f"bench.{name}")
    if hasattr(module, "QUESTION"):
        module.main()
