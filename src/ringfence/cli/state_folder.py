"""Where the command line stands, and where it keeps what outlives a command. Nothing is made here."""

from __future__ import annotations

import os

from ringfence.errors import UsageError


def current_folder() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise UsageError(f"the current folder: {error.strerror}", hint="change to one that is there") from error


def sandboxes_folder() -> str:
    """``$XDG_STATE_HOME/ringfence/sandboxes``; a relative value counts as none, as that standard has it."""
    return os.path.join(_state_folder(), "sandboxes")


def usage_folder() -> str:
    """Where recorded runs lie that were given no file of their own."""
    return os.path.join(_state_folder(), "usage")


def new_place() -> str:
    """For a layer that may be kept; see ``Registry.making``, which is not loaded before there is something to keep.

    Empty: there is no place, as for a user without a home.
    """
    try:
        return os.path.join(sandboxes_folder(), f".making-{os.urandom(6).hex()}")
    except UsageError:
        return ""


def _state_folder() -> str:
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        state = os.path.join(os.path.expanduser("~"), ".local", "state")
    if not os.path.isabs(state):  # nobody knows a home; else it would be a folder «~» in the current one
        raise UsageError("there is no home folder to keep it in", hint="set HOME or XDG_STATE_HOME")
    return os.path.join(state, "ringfence")
