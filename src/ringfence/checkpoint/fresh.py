"""Writes a whole tree into an empty directory that nobody else knows of: each entry once, at its place.

``apply`` can be broken off and done again, over what is there already; here there is nothing to replace, and nobody
sees a half-written tree, so a file costs one name and no second look. Everything by descriptors.
"""

from __future__ import annotations

import os
from _collections_abc import Callable

from ringfence.checkpoint import content
from ringfence.checkpoint import entry as entries
from ringfence.checkpoint.entry import FILE, FOLDER, LINK, Entry, Manifest
from ringfence.checkpoint.tree import NEW_FILE_FLAGS, Tree
from ringfence.model.own_files import set_mode, set_time

Open = Callable[[str], int]
"""A descriptor of the content of the file at a path."""


def write_tree(target: Tree, wanted: Manifest, open_content: Open, each: Callable[[], None] = lambda: None) -> None:
    """Write files, directories and links; other kinds are left out. An OSError names the path. ``each`` is called
    before every entry, and may raise."""
    order = entries.ordered(wanted)
    for path in order:
        each()
        try:
            _write(target, path, wanted[path], wanted, open_content)
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"{target.path}/{path}") from error
    for path in reversed(order):  # writing into a directory changes its time, and its mode may keep us out
        if wanted[path].kind == FOLDER:
            _finish(target, path, wanted[path])


def _write(target: Tree, path: str, entry: Entry, wanted: Manifest, open_content: Open) -> None:
    name, where = target.at(path)
    if entry.kind == FOLDER:
        os.mkdir(name, 0o700, **where)
    elif entry.kind == LINK:
        os.symlink(entry.target, name, **where)
        if os.utime in os.supports_follow_symlinks:
            os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False, **where)
    elif entry.kind == FILE and not (entries.joins(entry, wanted) and target.join(entry.twin, path)):
        reader = open_content(path)
        try:
            name, where = target.at(path)
            _fill(reader, os.open(name, NEW_FILE_FLAGS, 0o600, **where), name, entry)
        finally:
            os.close(reader)


def _fill(reader: int, writer: int, name: str, entry: Entry) -> None:
    try:
        content.pour(reader, writer)
        set_mode(writer, entry.mode)
        set_time(writer, name, entry.mtime_ns)
    finally:
        os.close(writer)


def _finish(target: Tree, path: str, entry: Entry) -> None:
    target.allow(path, entry.mode)
    name, where = target.at(path)
    os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), **where)
