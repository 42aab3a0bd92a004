"""Where the command line stands, and where it keeps what outlives a command. Nothing is made here."""

from __future__ import annotations

import os

from ringfence.errors import UsageError
from ringfence.model.state_folder import sandboxes_folder, state_folder

__all__ = ["current_folder", "new_place", "sandboxes_folder", "usage_folder"]


def current_folder() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise UsageError(f"the current folder: {error.strerror}", hint="change to one that is there") from error


def usage_folder() -> str:
    """Where recorded runs lie that were given no file of their own."""
    return os.path.join(state_folder(), "usage")


def new_place() -> str:
    """For a layer that may be kept; see ``Registry.making``, which is not loaded before there is something to keep.

    Empty: there is no place, as for a user without a home.
    """
    try:
        return os.path.join(sandboxes_folder(), f".making-{os.urandom(6).hex()}")
    except UsageError:
        return ""
