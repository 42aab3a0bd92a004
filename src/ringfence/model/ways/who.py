"""Who could put something else in the place of a name: by owner and mode of the directory that it lies in.

Root and the caller are not counted, nor is the owner of ``/``, who decides over everything anyway: inside a user
namespace that is nobody's id. Access lists are not read; where one lets somebody write, the group's bit is set too.
"""

from __future__ import annotations

import os
import stat

ROOT = 0


def trusted(top: os.stat_result) -> frozenset[int]:
    """The users who may decide where a path leads; ``top``: what is known of ``/``."""
    return frozenset((ROOT, os.geteuid(), top.st_uid))


def open_to(folder: os.stat_result, entry: os.stat_result | None, users: frozenset[int]) -> str:
    """Who, beside these users, could do it; empty: nobody. ``entry``: what has the name; absent: nothing has it yet.

    In a directory with the sticky bit everybody can replace their own files. A group with a user's number is that
    user's own. """
    if folder.st_uid not in users:
        return f"user {folder.st_uid}"
    mode = folder.st_mode
    if not mode & (stat.S_IWGRP | stat.S_IWOTH):
        return ""
    if mode & stat.S_ISVTX and entry is not None:
        return "" if entry.st_uid in users else f"user {entry.st_uid}"
    if mode & stat.S_IWOTH:
        return "everybody"
    return "" if folder.st_gid in users else f"group {folder.st_gid}"
