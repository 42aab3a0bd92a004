"""Working copies at the places of their originals: a mount namespace of the job's own, on the host's root.

Runs in the job before its walls, which close mounting. From then on what lies at these places may be the work of an
earlier job, so nothing is loaded any more: what the later steps need is loaded before.
"""

from __future__ import annotations

import os
import sys

from ringfence.kernel.mount import mounts, namespaces
from ringfence.kernel.proc import processes


def bind_in_place(pairs: list[tuple[str, str]]) -> None:
    """Show each first directory at the place of the second."""
    import ctypes  # noqa: F401
    import resource  # noqa: F401
    import warnings  # noqa: F401

    try:
        namespaces.unshare(["mount"])
    except PermissionError:
        _enter_own_user_namespace()
    mounts.make_private()
    for tree, place in [(mounts.clone(copy, alone=True), place) for copy, place in pairs]:
        mounts.set_attributes(tree, mounts.WRITABLE)
        mounts.attach_at(tree, place)
        os.close(tree)
    sys.meta_path.clear()  # fail rather than load what a guest has written


def _enter_own_user_namespace() -> None:
    """Map the caller's one id to itself; a process that is not dumpable may not write the maps."""
    uid, gid = os.geteuid(), os.getegid()
    processes.show_memory()
    namespaces.unshare(["user", "mount"])
    namespaces.map_ids("self", (uid, gid), (uid, gid))
    processes.hide_memory()
