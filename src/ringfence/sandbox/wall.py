"""Landlock behind the mounts of a strict sandbox: everything that is there may be read, only some places written."""

from __future__ import annotations

from ringfence.kernel import landlock
from ringfence.model.paths import within
from ringfence.sandbox import image_root
from ringfence.sandbox import root as rootfs
from ringfence.sandbox.root import RootSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.transport.request import WallStep

_IN_A_LAYER = ("/dev/shm", "/dev/pts")
"""The private places if the whole root has a layer."""


def wall(
    root_spec: RootSpec, shared: list[str], abi: int, scopes: tuple[str, ...] = tuple(landlock.SCOPES)
) -> WallStep:
    """The step that puts it up. In directories that are ``shared`` with the host, the job reaches only its own sockets,
    which need no rule."""
    private = _IN_A_LAYER if image_root.is_layered(root_spec) else rootfs.PRIVATE
    writable = [*private, *rootfs.workspace_paths(root_spec), *shared]
    rules = [("/", landlock.READ), ("/dev", landlock.DEVICES), ("/proc", (*landlock.READ, "write_file"))]
    rules += [(path, landlock.READ) for path in _near(root_spec, writable)]
    for path in writable:
        # A rule covers everything below it.
        above = any(within(each, path) for each in shared)
        rules.append((path, (*landlock.WRITE, "ioctl_dev", *(() if above else ("resolve_unix",)))))
    ruleset = landlock.Ruleset(files=tuple(landlock.FILE_RIGHTS), beneath=tuple(rules), scopes=scopes)
    return ("landlock", *landlock.compiled(ruleset, abi))


def _near(root_spec: RootSpec, writable: list[str]) -> list[str]:
    """Shown directories that get a rule of their own. It opens nothing that the rule on / does not open, but at every
    open the kernel looks for a rule from the file upwards, and stops at the first that is enough.

    Only directories in the bare root itself: the way to them is ours, and no earlier guest could change it.
    """
    if root_spec.image is not None:
        return []
    shown = [rootfs.place(entry) for entry in rootfs.entries(root_spec) if entry.folder]
    tops = {*shown, *writable, "/etc", "/proc", "/dev", *(path for path, _ in root_spec.links)}
    alone = (path for path in shown if not any(within(path, top) for top in tops if top != path))
    return [path for path in alone if path not in writable]
