"""Removes a tree that a hostile program filled: any depth, any mode, any name, nothing followed.

``shutil.rmtree`` recurses, so a tree some thousand levels deep ends it, and it stops at a folder
without permissions. Here every folder is first moved up to the top, so depth costs nothing.
Nobody may be writing into the tree any more.
"""

from __future__ import annotations

import os
import stat


def remove_tree(path: str) -> None:
    """Remove ``path`` with everything in it; what is gone already is no error."""
    try:
        top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        os.unlink(path)
        return
    try:
        _empty(top)
    finally:
        os.close(top)
    os.rmdir(path)


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
    """Empty one folder: its files are removed, its folders moved up beside it."""
    os.chmod(name, 0o700, dir_fd=top)  # it is a folder, and nobody is left who could swap it
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    try:
        for entry in os.listdir(folder):
            if not _is_folder(entry, folder):
                os.unlink(entry, dir_fd=folder)
                continue
            serial = _free_name(top, serial)
            os.chmod(entry, 0o700, dir_fd=folder)
            os.rename(entry, _lifted(serial), src_dir_fd=folder, dst_dir_fd=top)
    finally:
        os.close(folder)
    return serial


def _free_name(top: int, serial: int) -> int:
    """The next number whose name is not taken: an existing empty folder would swallow the rename."""
    while True:
        serial += 1
        try:
            os.stat(_lifted(serial), dir_fd=top, follow_symlinks=False)
        except FileNotFoundError:
            return serial


def _lifted(serial: int) -> str:
    return f".ringfence-lifted-{serial}"
