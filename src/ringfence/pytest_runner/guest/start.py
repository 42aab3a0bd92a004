"""Starts pytest as ``python -m pytest`` does, with our plugin loaded by its path and never by its name.

``-m`` puts the current directory first on the search path, so a file there with the plugin's name would replace it.
pytest does not search for what it finds in ``sys.modules``.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys

PLUGIN = "ringfence_reporter"
CHANNEL_VARIABLE = "RINGFENCE_CHANNEL"
USAGE_ERROR = 4
"""Of pytest."""


def load(path: str, name: str = PLUGIN) -> None:
    """Load the plugin from this file, whatever else has its name."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def end_without_pytest() -> None:
    """Report it over the channel: only the caller knows how to choose another interpreter."""
    os.write(int(os.environ[CHANNEL_VARIABLE]), b'{"missing": "pytest"}\n')
    sys.exit(USAGE_ERROR)


def main() -> None:
    if importlib.util.find_spec("pytest") is None:
        end_without_pytest()
    load(os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{PLUGIN}.py"))
    # In place of this file's directory: from here on all is as under -m.
    sys.path[0] = os.getcwd()
    # pytest has no function for this that all versions have and that none warns about.
    runpy.run_module("pytest", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
