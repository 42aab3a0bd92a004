"""What of the project Python may import outside, before and while the sandbox is made; refused where that is anything.

Asked before the rest of the plug-in is imported, so this file imports nothing that pytest has not imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

_INSIDE_ONLY = "«ringfence test» starts all of pytest inside"
_FIX = "use the script «pytest», or «python -P -m pytest»"


Folder = tuple[int, int]
"""By which directories are compared: a text may lead through links."""


def refuse_the_projects_code(config: pytest.Config, flag: str) -> None:
    """UsageError if the current directory is on the search path and nobody has put it there on purpose, or if a module
    was found by the ``pythonpath`` of the project's configuration. That path is taken away: it is for the inside."""
    if _has_the_current_directory():
        raise pytest.UsageError(f"{flag}: the current directory is on Python's search path, so code of the project may "
                                f"have run outside of the sandbox; {_FIX}")  # fmt: skip
    found = _loaded_from(_taken_away(config))
    if found:
        raise pytest.UsageError(f"{flag}: the project's own {', '.join(found)} was found by its pythonpath and was "
                                f"loaded outside of the sandbox; {_INSIDE_ONLY}")  # fmt: skip


def _has_the_current_directory() -> bool:
    """``-m`` and ``-c`` put it there, and an empty part of PYTHONPATH. A part that names it is the caller's choice, as
    is an environment into which the project is installed."""
    if "" in sys.path:
        return True
    named, here = _named_by_the_caller(), _folder(os.curdir)
    if here in [_folder(part) for part in named if part]:
        return False
    by_itself = "" in named or (not sys.flags.safe_path and _is_without_a_script())
    return by_itself and here in map(_folder, sys.path)


def _named_by_the_caller() -> list[str]:
    text = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    return text.split(os.pathsep) if text else []


def _is_without_a_script() -> bool:
    main = sys.modules["__main__"]
    return getattr(main, "__spec__", None) is not None or not hasattr(main, "__file__")


def _taken_away(config: pytest.Config) -> list[Folder]:
    """pytest 9.1 has put these first before it loads any plug-in, earlier ones would do so later."""
    places = [str(path) for path in config.getini("pythonpath")]
    for place in places:
        if place in sys.path:
            sys.path.remove(place)
    return [folder for folder in (_folder(place) for place in places if place not in sys.path) if folder]


def _loaded_from(places: list[Folder]) -> list[str]:
    modules = [(name, module) for name, module in list(sys.modules.items()) if "." not in name]
    return sorted(name for name, module in modules if any(home in places for home in _homes(module)))


def _homes(module: object) -> Iterator[Folder | None]:
    """The directories in which a module or package itself lies."""
    parts = getattr(module, "__path__", None)
    file = getattr(module, "__file__", None)
    for place in [file] if parts is None else list(parts):
        if isinstance(place, str):
            yield _folder(os.path.dirname(place))


def _folder(path: str) -> Folder | None:
    """None: it is not there."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino
