"""The current directory, and where the command line keeps what outlives a command. Nothing is created here."""

from __future__ import annotations

import os

from ringfence.errors import UsageError
from ringfence.model.own_files import check_shared, open_private
from ringfence.model.state_folder import sandboxes_folder, state_folder
from ringfence.model.ways.walk import real

__all__ = ["current_folder", "new_place", "sandboxes_folder", "usage_folder"]

_NO_PLACE = "set XDG_STATE_HOME to a directory of your own, or discard the changes with --discard"


def current_folder() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise UsageError(f"the current directory: {error.strerror}", hint="change to an existing directory") from error


def usage_folder() -> str:
    """Where recorded runs lie that have no file of their own."""
    return os.path.join(state_folder(), "usage")


def new_place() -> str:
    """For a layer that may be kept; see ``Registry.making``, which is not loaded before there is something to keep.

    UsageError where nothing can be kept: that is reported before anything has run, not when the work is done.
    """
    folder = sandboxes_folder()
    try:
        _check_writable(folder)
        if os.path.isdir(state_folder()):
            os.close(open_private(state_folder()))
        if os.path.isdir(folder):
            check_shared(os.stat(folder), folder)
    except UsageError as error:
        raise UsageError(f"the changes of this run could not be kept: {error}", hint=_NO_PLACE) from error
    return os.path.join(real(folder), f".making-{os.urandom(6).hex()}")


def _check_writable(folder: str) -> None:
    """Check the nearest directory that exists: the rest is made in it when needed."""
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        raise UsageError(f"{folder} is not a directory")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{folder} can't be written")
