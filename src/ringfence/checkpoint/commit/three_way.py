"""Merges three texts, line by line, with ``git merge-file``: on copies under names of ours, in a private directory.

The texts may be a hostile program's: git gets no name, setting, repository or environment from anybody else, is not
taken from where that program writes, and has a deadline. If the texts can't be merged, the reason is returned, not
raised.
"""

from __future__ import annotations

import os
from _collections_abc import Iterable, Mapping

from ringfence.model import state_folder
from ringfence.model.paths import within
from ringfence.model.ways.walk import real, walk

NO_GIT = "git is needed to merge, and is not installed"
NO_TEXT = "this is not a text file"
SAME_LINES = "both changed the same lines"
_NAMES = ("mine", "original", "theirs")
_DEADLINE_S = 30
_MOST_CONFLICTS = 127
"""As many links as the kernel follows."""


def merged(mine: bytes, original: bytes, theirs: bytes, *, without: Iterable[str]) -> bytes | str:
    """The text with both changes, or the reason why there is none. ``without``: where no git is taken from."""
    texts = (mine, original, theirs)
    if any(b"\0" in text for text in texts):
        return NO_TEXT
    git = _git(tuple(without))
    return _run(git, texts) if git else NO_GIT


def _git(without: tuple[str, ...]) -> str:
    """The program itself, behind all links; empty if there is none. Whoever can write a place on the way chooses it."""
    for folder in filter(os.path.isabs, os.get_exec_path()):
        path = os.path.join(folder, "git")
        way = walk(path)
        fit = os.path.isfile(way.end) and os.access(way.end, os.X_OK)
        if fit and not way.passes(*without) and not any(within(step, place) for step in (path, way.end)
                                                        for place in without):  # fmt: skip
            return way.end
    return ""


def _run(git: str, texts: tuple[bytes, ...]) -> bytes | str:
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory(prefix="merge-", dir=state_folder.private_place()) as folder:
        for name, text in zip(_NAMES, texts, strict=True):
            with open(os.path.join(folder, name), "xb") as file:
                file.write(text)
        command = [git, "merge-file", "-p", "-q", *_NAMES]
        try:
            done = subprocess.run(command, cwd=folder, env=_environment(folder), stdin=subprocess.DEVNULL,
                                  capture_output=True, timeout=_DEADLINE_S, check=False)  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"git could not merge it: {error}"
    if done.returncode == 0:
        return done.stdout
    return SAME_LINES if 0 < done.returncode <= _MOST_CONFLICTS else "git could not merge it"


def _environment(folder: str) -> Mapping[str, str]:
    """Nobody's settings: one could name a program to run."""
    return {
        "HOME": folder,
        "XDG_CONFIG_HOME": folder,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CEILING_DIRECTORIES": os.path.dirname(real(folder)),
        "LC_ALL": "C",
    }
