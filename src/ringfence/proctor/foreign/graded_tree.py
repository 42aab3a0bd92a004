"""The tree that SWE-bench's tests run in: what the agent left, with everything that runs tests as in the base commit.

Files that the test patch touches, ``conftest.py``, options of pytest and names of plug-ins are never the agent's. All
writes go through descriptors: a link that an agent left is removed, not followed.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping

from ringfence.checkpoint.tree import NEW_FILE_FLAGS, Tree
from ringfence.errors import UsageError
from ringfence.model.own_files import set_mode
from ringfence.proctor.foreign.patches import Content, FilePatch, PatchError, applied, read_below
from ringfence.proctor.foreign.repositories import METADATA
from ringfence.proctor.import_filter import TEST_SETTINGS
from ringfence.roles.removal import remove_tree

Files = Mapping[str, "Content | None"]
"""By their paths in the repository; None: there is none."""
_TEST_FOLDERS = frozenset({"test", "tests", "testing"})
_OBJECTS = "/.git/objects/"
MAX_HARNESS_BYTES = 256 << 20


def patched(patches: list[FilePatch], folder: str, where: str) -> dict[str, Content | None]:
    """Return the files that patches change in a directory; UsageError where they do not fit."""
    try:
        return applied(patches, read_below(folder))
    except PatchError as error:
        raise UsageError(f"{where}: {error}", hint="is it a patch for base_commit?") from error


def is_harness(path: str, own: Collection[str] = ()) -> bool:
    """Whether a file decides how tests are run. ``own``: further ones of the repository. Python reads metadata whatever
    the case of its name is."""
    parts = path.split("/")
    return parts[-1] in TEST_SETTINGS or path in own or any(part.lower().endswith(METADATA) for part in parts)


def is_test(path: str) -> bool:
    """Whether a file's name says that it has tests; others may be code under test with examples in docstrings."""
    *folders, name = path.split("/")
    named = name.startswith(("test_", "tests.")) or name.endswith(("_test.py", "_tests.py"))
    return named or any(folder in _TEST_FOLDERS for folder in folders)


def harness_of(folder: str, own: Collection[str]) -> dict[str, Content | None]:
    """Return all such files of a staged repository. Links stay what they are: nobody replaces them."""
    read, found, total = read_below(folder), dict[str, "Content | None"](), 0
    for path in _paths(folder, lambda path: is_harness(path, own)):
        if stat.S_ISREG(os.lstat(os.path.join(folder, path)).st_mode):
            content = read(path)
            total += len(content.data) if content else 0
            if total > MAX_HARNESS_BYTES:
                raise UsageError(f"{folder} has more than {MAX_HARNESS_BYTES} bytes of files that run tests")
            found[path] = content
    return found


def _paths(folder: str, chosen: Callable[[str], bool]) -> Iterator[str]:
    """What is no directory, and links to directories; not what lies in ``.git``."""
    for place, folders, files in os.walk(folder):
        above = os.path.relpath(place, folder)
        folders[:] = [name for name in folders if name != ".git"]
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in (*files, *links):
            path = os.path.normpath(os.path.join(above, name))
            if chosen(path):
                yield path


def copied(source: str, target: str) -> str:
    """Return a new copy of a repository, links as links. Git's objects, which nobody changes, are hard links where
    possible."""
    shutil.copytree(source, target, symlinks=True, copy_function=_copy)
    return target


def _copy(source: str, target: str) -> str:
    if _OBJECTS in source:
        try:
            os.link(source, target, follow_symlinks=False)
            return target
        except OSError:
            pass  # on another disk
    return shutil.copy2(source, target, follow_symlinks=False)


def lay_over(folder: str, files: Files) -> list[str]:
    """Put these files into a tree; return the paths that had something else. A file larger than any of them is not
    read: an agent may have left gigabytes of holes."""
    read = read_below(folder, max((len(content.data) for content in files.values() if content), default=0))
    replaced = [path for path, content in files.items() if _differs(read, path, content)]
    tree = Tree(folder)
    try:
        for path in replaced:
            _put(tree, path, files[path])
    finally:
        tree.close()
    return replaced


def restore(folder: str, files: Files, own: Collection[str]) -> list[str]:
    """The same, and remove every other file that runs tests, or that Python would import in place of these."""
    modules = {path.removesuffix(".py") for path in files if path.endswith(".py")}

    def is_planted(path: str) -> bool:
        return path not in files and (is_harness(path, own) or not modules.isdisjoint(_shadows(path)))

    planted = [*_paths(folder, is_planted)]
    return lay_over(folder, {**dict.fromkeys(planted), **files})


def _shadows(path: str) -> set[str]:
    """The modules, without their ``.py``, that it comes before as a package or as a compiled module."""
    above, _, name = path.rpartition("/")
    word = name.partition(".")[0]
    packages = {above} if word == "__init__" else set()
    return packages | ({f"{above}/{word}".lstrip("/")} if name.endswith((".so", ".pyd")) else set())


def _differs(read: Callable[[str], Content | None], path: str, content: Content | None) -> bool:
    try:
        found = read(path)
    except (PatchError, OSError):
        return True
    return (found.data if found else None) != (content.data if content else None)


def _put(tree: Tree, path: str, content: Content | None) -> None:
    """Remove what is in the way: an agent may have replaced a directory by a link, or a file by a directory."""
    parts = path.split("/")
    for count in range(1, len(parts)):
        above = "/".join(parts[:count])
        status = tree.status(above)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            _remove(tree, above)
    _remove(tree, path)
    if content is None:
        return
    if len(parts) > 1:
        tree.make("/".join(parts[:-1]), 0o755)
    name, where = tree.at(path)
    descriptor = os.open(name, NEW_FILE_FLAGS, 0o644, **where)
    with open(descriptor, "wb") as file:
        file.write(content.data)
        set_mode(descriptor, 0o755 if content.executable else 0o644)


def _remove(tree: Tree, path: str) -> None:
    status = tree.status(path)
    if status is None:
        return
    tree.forget(path)
    name, where = tree.at(path)
    if stat.S_ISDIR(status.st_mode):
        remove_tree(os.path.join(tree.path, path))
    else:
        os.unlink(name, **where)
