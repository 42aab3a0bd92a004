"""A step of a plan as data: its name in an error, and the error."""

from __future__ import annotations

import os


class StepFailed(Exception):
    """A step of the plan failed; carries its name and the error."""

    def __init__(self, step: str, error: BaseException) -> None:
        super().__init__(step)
        self.step = step
        self.errno = error.errno or 0 if isinstance(error, OSError) else 0
        self.problem = _describe(error)


def _describe(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        name = error.filename
        where = f": {os.fsdecode(name)}" if isinstance(name, str | bytes) else ""
        return f"{error.strerror}{where}"
    return f"{type(error).__name__}: {error}"


def label(name: str, arguments: list[object]) -> str:
    """Return what a step is called in an error."""
    shown = name in ("rlimit", "attach", "file system", "overlay", "show", "whiteouts")
    return f"{name} {arguments[0]}" if shown else name
