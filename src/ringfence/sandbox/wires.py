"""Where tripwires can be laid, and which hidden names lie where every job may write. Pure."""

from __future__ import annotations

from _collections_abc import Iterable

from ringfence.model.paths import within
from ringfence.sandbox.root import PRIVATE, RootSpec, place, workspace_paths


def are_possible(root_spec: RootSpec) -> bool:
    """Whether every hidden name lies where a tripwire can be laid: in no directory that the job may write, where a veil
    would be in the way, and above nothing that is still shown."""
    if root_spec.image is not None:
        return False  # a veil over its own directories would hide what the job writes there
    closed = {"/proc", "/dev", *workspace_paths(root_spec), *PRIVATE}
    closed.update(place(entry) for entry in root_spec.shown if entry.mode == "rw")
    tops = closed.union(place(entry) for entry in root_spec.shown)
    if any(_top_of(folder, tops) in closed for folder in root_spec.hidden.folders):
        return False
    return not any(entry.explicit and root_spec.hidden.cover(entry.path) for entry in root_spec.shown)


def in_private(root_spec: RootSpec, paths: Iterable[str]) -> list[str]:
    """The hidden names that lie where every job may write, but not in something that is shown there."""
    tops = {*PRIVATE, *workspace_paths(root_spec), *(place(entry) for entry in root_spec.shown)}
    return [path for path in paths if _top_of(path, tops) in PRIVATE]


def _top_of(path: str, tops: Iterable[str]) -> str:
    """The innermost directory that contains it."""
    return max((top for top in tops if within(path, top)), key=len, default="/")
