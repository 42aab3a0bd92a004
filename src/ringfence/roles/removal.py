"""Removes a tree that a hostile program filled: any depth, any mode, any name, nothing followed.

Part of: caller, leader, warden, scratch cleaner

``shutil.rmtree`` recurses, so a tree some thousand levels deep ends it, and it stops at a directory
without permissions. Here every directory is first moved up to the top, so depth costs nothing.
Nobody should be writing into the tree any more; somebody who is being killed may still be, for a moment.
"""

from __future__ import annotations

import os
import stat
import time

from ringfence.errors import is_of_a_call

_PAUSES_S = (0.0, 0.01, 0.05, 0.2, 0.5)


def remove_tree(path: str) -> None:
    """Remove ``path`` with everything in it; what is gone already is no error."""
    if os.name == "nt":
        from ringfence.windows import removal

        removal.remove_tree(path)
        return
    for pause_s in _PAUSES_S:
        try:
            _remove(path)
            return
        except OSError as error:
            if not is_of_a_call(error):
                raise
            time.sleep(pause_s)
    _remove(path)


def _remove(path: str) -> None:
    if not os.path.lexists(path):
        return
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        return
    _allow(path)
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _empty(top)
    finally:
        os.close(top)
    os.rmdir(path)


def _allow(name: str, parent: int | None = None) -> None:
    """Let us list and change a directory, never what a link put in its place points to."""
    if os.chmod in os.supports_follow_symlinks:  # macOS; Linux has no such call, but descriptors of names
        os.chmod(name, 0o700, dir_fd=parent, follow_symlinks=False)
        return
    folder = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        os.chmod(f"/dev/fd/{folder}", 0o700)
    finally:
        os.close(folder)


def _empty(top: int) -> None:
    serial = 0
    while names := os.listdir(top):
        for name in names:
            if not _is_folder(name, top):
                os.unlink(name, dir_fd=top)
                continue
            serial = _lift_folders(name, top, serial)
            os.rmdir(name, dir_fd=top)


def _is_folder(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _lift_folders(name: str, top: int, serial: int) -> int:
    """Empty one directory: its files are removed, its directories moved up beside it."""
    _allow(name, top)
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    try:
        for entry in os.listdir(folder):
            if not _is_folder(entry, folder):
                os.unlink(entry, dir_fd=folder)
                continue
            serial = _free_name(top, serial)
            _allow(entry, folder)
            os.rename(entry, _lifted(serial), src_dir_fd=folder, dst_dir_fd=top)
    finally:
        os.close(folder)
    return serial


def _free_name(top: int, serial: int) -> int:
    """The next number whose name is not taken: an existing empty directory would swallow the rename."""
    while True:
        serial += 1
        try:
            os.stat(_lifted(serial), dir_fd=top, follow_symlinks=False)
        except FileNotFoundError:
            return serial


def _lifted(serial: int) -> str:
    return f".ringfence-lifted-{serial}"
