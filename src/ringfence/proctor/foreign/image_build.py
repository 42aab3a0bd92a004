"""What an image's build left in its copy of the repository: compiled modules, versions, metadata.

The agent's repository is made anew from the base commit, so nothing later is in it. Files that the image's installation
added to that commit are copied over, because many packages can't be imported without them.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Sequence

from ringfence.errors import UsageError
from ringfence.proctor.foreign.leak_scan import MAX_FILE_BYTES, has_fix, marks_of
from ringfence.proctor.foreign.patches import FilePatch

MAX_BYTES = 4 << 30
_LEFT_OUT = frozenset({".git", "__pycache__", ".pytest_cache", ".tox", "node_modules"})


def lay_build(built: str, staged: str, patches: Sequence[FilePatch]) -> list[str]:
    """Copy what ``built`` has and ``staged`` has not; return the paths. Links and what has the fix stay out."""
    marks, done, total = marks_of(patches), list[str](), 0
    for path in _new_files(built, staged):
        source, size = os.path.join(built, path), os.lstat(os.path.join(built, path)).st_size
        total += size
        if total > MAX_BYTES:
            raise UsageError(f"{built} has more than {MAX_BYTES} bytes that are not in the repository")
        if size <= MAX_FILE_BYTES and has_fix(_data(source), marks):
            continue
        target = os.path.join(staged, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(source, target, follow_symlinks=False)
        os.chmod(target, 0o755 if os.lstat(source).st_mode & 0o100 else 0o644)
        done.append(path)
    return done


def _new_files(built: str, staged: str) -> Iterator[str]:
    """Only in directories that the repository has as directories, or not at all: a link there would lead elsewhere."""
    for place, folders, files in os.walk(built):
        above = os.path.relpath(place, built)
        folders[:] = [name for name in folders if name not in _LEFT_OUT and _is_way(os.path.join(staged, above, name))]
        for name in files:
            path = os.path.normpath(os.path.join(above, name))
            if stat.S_ISREG(os.lstat(os.path.join(place, name)).st_mode) and not os.path.lexists(
                os.path.join(staged, path)
            ):
                yield path


def _is_way(path: str) -> bool:
    return not os.path.lexists(path) or (os.path.isdir(path) and not os.path.islink(path))


def _data(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
