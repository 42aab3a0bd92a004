"""Hidden paths of STRICT: which can't be hidden, and what records who asks for the others."""

from __future__ import annotations

import os

from ringfence.backends.facts import Lack
from ringfence.linux import host, rootfs
from ringfence.linux.rootfs import Wish
from ringfence.model.policy import SandboxPolicy

TRIPWIRES, OPEN_NOTIFICATION = "tripwires", "open notification"
DETAILS = {
    TRIPWIRES: "absent; who asks is recorded by tripwires",
    OPEN_NOTIFICATION: "absent; who asks is recorded by open notification",
    "": "absent",
}
# Each name beside a hidden one is a mount of its own: more of them than this would cost every launch too much.
_MOST_MOUNTS = 512


def recorder_of(wish: Wish) -> str:
    """What records who asks for hidden paths; empty: nothing is hidden."""
    if not wish.hidden:
        return ""
    wired = rootfs.can_be_wired(wish) and host.has_fuse()
    few = wired and host.names_in(wish.hidden.folders()) - len(wish.hidden) <= _MOST_MOUNTS
    return TRIPWIRES if few else OPEN_NOTIFICATION


def is_watched(wish: Wish) -> bool:
    """Whether every call that names a file is told to the recorder."""
    return bool(wish.hidden) and not wish.tripwires


def lacks(policy: SandboxPolicy) -> list[Lack]:
    """One for every path that can't be hidden."""
    return [_lack(path) for path in _beyond(policy)]


def _beyond(policy: SandboxPolicy) -> list[str]:
    """Hidden paths that no overlay can make absent."""
    tops = ("/proc", "/dev", *map(os.path.realpath, policy.writable_paths))
    hidden = host.every_name(policy.hidden_paths)
    return [path for path in hidden if any(path == top or path.startswith(top + "/") for top in tops)]


def _lack(path: str) -> Lack:
    fix = "hide what lies below a readable folder or the workspace, and give writable folders without secrets"
    return Lack(capability="hidden_paths", missing=f"a way to hide {path} where it lies", fix=fix)
