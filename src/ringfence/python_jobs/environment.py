"""The environment of a Python job, with what an interpreter takes from it at its start: time zone and locale.

Most jobs of a pool have the same one. It is set once in the process that is forked for them; a job pays only for the
differences of its own.
"""

from __future__ import annotations

import _locale
import os
import time
from _collections_abc import Mapping


class _Now:
    """What was set last."""

    environment: Mapping[str, str] | None = None
    """None: nothing; the environment is the process's own."""
    locale = ""
    """Of LC_CTYPE."""


_start_locale = _locale.setlocale(_locale.LC_CTYPE)


def put(environment: Mapping[str, str]) -> None:
    """Have exactly these variables, and what follows from them."""
    before = _Now.environment
    if before == environment:
        return
    if before is None:
        os.environ.clear()
        before = {}
    for name in [name for name in before if name not in environment]:
        del os.environ[name]
    for name, value in environment.items():
        if before.get(name) != value:
            os.environ[name] = value
    if _Now.environment is None or before.get("TZ") != environment.get("TZ"):
        time.tzset()
    _set_locale(environment)
    _Now.environment = dict(environment)


def _set_locale(environment: Mapping[str, str]) -> None:
    chosen = environment.get("LC_ALL") or environment.get("LC_CTYPE") or environment.get("LANG") or ""
    if not environment.get("LC_ALL") and chosen in ("C", "POSIX"):
        chosen = ""  # an interpreter takes UTF-8 instead, as this one has at its own start
    if chosen == _Now.locale:
        return
    _Now.locale = chosen
    try:
        _locale.setlocale(_locale.LC_CTYPE, "" if chosen else _start_locale)
    except _locale.Error:  # type: ignore[attr-defined]
        _locale.setlocale(_locale.LC_CTYPE, _start_locale)  # unknown here: Python, too, goes on without
