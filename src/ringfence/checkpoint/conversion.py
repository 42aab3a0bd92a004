"""Errors of the file system become ours, once, around every operation of a workspace."""

from __future__ import annotations

import os
from _collections_abc import Callable, Iterator

from ringfence.checkpoint.entry import shown
from ringfence.checkpoint.store import JOURNAL
from ringfence.errors import CheckpointError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Concatenate, ParamSpec, TypeVar

    from ringfence.checkpoint.workspace import Workspace

    P = ParamSpec("P")
    T = TypeVar("T")


def converted(method: Callable[Concatenate[Workspace, P], T]) -> Callable[Concatenate[Workspace, P], T]:
    """Around every operation: it begins with a fresh look, and errors of the file system become ours."""

    def call(self: Workspace, /, *args: P.args, **kwargs: P.kwargs) -> T:
        for tree in (self.base, self.layer.scan.tree):
            tree.forget()  # others may have replaced directories since
        try:
            self.layer.scan.tree.open_top()
            return method(self, *args, **kwargs)
        except OSError as error:
            raise as_ours(self, error) from error

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


def guarded(self: Workspace, parts: Iterator[str]) -> Iterator[str]:
    """The same for what is made piece by piece, after the operation has returned."""
    try:
        yield from parts
    except OSError as error:
        raise as_ours(self, error) from error


def as_ours(workspace: Workspace, error: OSError) -> CheckpointError:
    """The error to raise in its place; content that was kept in vain is removed first."""
    name = shown(os.fsdecode(error.filename)) if error.filename else workspace.base.path
    hint = "fix that; then recover(), or opening it again, completes the operation"
    begun = workspace.store.holds(JOURNAL)
    if not begun:
        workspace.tidy()
    return CheckpointError(f"{name}: {error.strerror or error}", hint=hint if begun else "")
