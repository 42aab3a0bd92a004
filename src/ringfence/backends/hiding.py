"""Hidden paths of STRICT: which can't be hidden, and what records who asks for the others.

Also our own folders, on every level that has walls: the key and the records in them are for no guest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from ringfence.backends.facts import Lack
from ringfence.errors import PolicyError, UsageError
from ringfence.linux import host, rootfs
from ringfence.linux.hidden import HiddenPaths
from ringfence.linux.rootfs import Wish
from ringfence.model.paths import within
from ringfence.model.policy import SandboxPolicy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.checkpoint.transaction import Transaction

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
    few = wired and host.names_in(wish.hidden.folders) - len(wish.hidden) <= _MOST_MOUNTS
    return TRIPWIRES if few else OPEN_NOTIFICATION


def details_of(wish: Wish) -> str:
    """What the table says of a wish whose recorder is chosen."""
    return DETAILS[TRIPWIRES if wish.tripwires else OPEN_NOTIFICATION if wish.hidden else ""]


def hidden_by(policy: SandboxPolicy) -> HiddenPaths:
    return HiddenPaths(host.every_name(policy.hidden_paths))


def refuse_covered(hidden: HiddenPaths, **paths: Iterable[str]) -> None:
    """What is shown by its own name can't be hidden by a folder above it: the job would see it, and the table would
    say that it does not."""
    for field, path in ((field, path) for field, named in paths.items() for path in named):
        if hidden.cover(os.path.realpath(path)):
            problem = f"{path} ({field}) lies in them, and the job is to see it; name what is meant"
            raise PolicyError("hidden_paths", problem)


def refuse_ours(ours: tuple[str, ...], shown: Iterable[str], writable: Iterable[str]) -> None:
    """UsageError where a guest would be given a folder of ours: nothing can be hidden in what it writes directly."""
    for path in (*shown, *writable):
        for own in ours:
            if within(os.path.realpath(path), own):
                raise UsageError(f"{path} lies in a folder of ringfence's own ({own})", hint="name another folder")
    for path in writable:
        for own in ours:
            if within(own, os.path.realpath(path)):
                hint = "name folders below it, or keep the records elsewhere: XDG_STATE_HOME"
                raise UsageError(f"{path} holds {own}, which no guest may write", hint=hint)


def refuse_workspace(ours: tuple[str, ...], workspaces: Iterable[str], readable: tuple[str, ...]) -> None:
    """UsageError where a workspace lies in a folder of ours that has to be absent from a readable folder."""
    for path in workspaces:
        above = next((each for each in readable if within(path, os.path.realpath(each))), "")
        if above and any(within(path, own) for own in ours):
            problem = f"the private folder {path} of this sandbox lies in the readable {above}, where it is hidden"
            raise UsageError(problem, hint="name allowed_paths, or a sandbox_root elsewhere")


def refuse_unhidden(transaction: Transaction, hidden: Iterable[str]) -> None:
    """UsageError where a working copy holds what is to be hidden: from one that is there nothing can be taken away."""
    inside = [path for path in hidden if any(within(path, base) for base in transaction.bases)]
    late = [path for path in inside if not any(within(path, name) for name in transaction.hidden)]
    if transaction.kind == "snapshot" and late:
        raise UsageError(f"{', '.join(late)} was not hidden when the working copy was made, and is in it",
                         hint="make a new sandbox")  # fmt: skip


def lacks(policy: SandboxPolicy, hidden: HiddenPaths) -> list[Lack]:
    """One for every path that can't be hidden: that no overlay can make absent."""
    tops = ("/proc", "/dev", *map(os.path.realpath, policy.writable_paths))
    return [_lack(path) for path in dict.fromkeys(path for top in tops for path in hidden.within(top))]


def _lack(path: str) -> Lack:
    fix = "hide what lies below a readable folder or the workspace, and give writable folders without secrets"
    return Lack(capability="hidden_paths", missing=f"a way to hide {path} where it lies", fix=fix)
