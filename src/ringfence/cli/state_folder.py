"""Where the command line keeps what outlives a command. Nothing is made here."""

from __future__ import annotations

import os


def sandboxes_folder() -> str:
    """``$XDG_STATE_HOME/ringfence/sandboxes``; a relative value counts as none, as that standard has it."""
    return _folder("sandboxes")


def usage_folder() -> str:
    """Where recorded runs lie that were given no file of their own."""
    return _folder("usage")


def _folder(name: str) -> str:
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        state = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(state, "ringfence", name)


def new_place() -> str:
    """For a layer that may be kept; see ``Registry.making``, which is not loaded before there is something to keep."""
    return os.path.join(sandboxes_folder(), f".making-{os.urandom(6).hex()}")
