"""Hidden paths of STRICT: which can't be hidden, and what records attempts on the others.

Also our own directories, on every level that has walls: no guest may have the key and the records in them.
"""

from __future__ import annotations

import os
from _collections_abc import Iterable

from ringfence.errors import PolicyError, UsageError
from ringfence.model.lack import Lack
from ringfence.model.paths import within
from ringfence.model.policy import SandboxPolicy
from ringfence.model.ways.walk import real
from ringfence.sandbox import host, showing
from ringfence.sandbox.hidden import HiddenPaths
from ringfence.sandbox.root import RootSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.checkpoint.transaction import Transaction

# Each name beside a hidden one is a mount of its own: more of them than this would cost every launch too much.
MOST_MOUNTS = 512


def details_of(root_spec: RootSpec) -> str:
    """What the table says of hidden paths."""
    recorder = "tripwires" if root_spec.tripwires else "open notification"
    return f"absent; attempts are recorded by {recorder}" if root_spec.hidden else "absent"


def looked_up(policy: SandboxPolicy) -> HiddenPaths:
    """What is hidden; PolicyError if the policy also shows some of it by name."""
    hidden = hidden_by(policy)
    placed = (*policy.shown_at, *policy.shown_at.values())
    refuse_covered(hidden, readable_paths=policy.readable_paths, writable_paths=policy.writable_paths, shown_at=placed)
    return hidden


def hidden_by(policy: SandboxPolicy) -> HiddenPaths:
    """By every name that they have, on the host and inside."""
    if policy.root:
        return HiddenPaths(_hidden_in_root(policy))
    meant = {path: showing.on_host(policy, path) for path in policy.hidden_paths}
    there = (path for path, other in meant.items() if path != other and os.path.lexists(path))
    found = host.every_name(tuple(dict.fromkeys((*meant.values(), *there))))
    return HiddenPaths((*found, *showing.by_every_place(policy, found)))


def _hidden_in_root(policy: SandboxPolicy) -> list[str]:
    """In a root of its own a path means what it leads to inside; what is shown from the host is hidden under its host
    name too."""
    from ringfence.sandbox import image

    shown = {path: showing.on_host(policy, path) for path in policy.hidden_paths}
    elsewhere = host.every_name(tuple(dict.fromkeys(other for path, other in shown.items() if path != other)))
    own = [path for path in policy.hidden_paths if any(within(path, top) for top in policy.readable_paths)]
    inside = image.names_of(image.folder_of(policy), policy.hidden_paths)
    return [*inside, *elsewhere, *showing.by_every_place(policy, elsewhere), *host.every_name(tuple(own))]


def refuse_covered(hidden: HiddenPaths, **paths: Iterable[str]) -> None:
    """Something that is shown by name can't be hidden through a directory above it: the job would see it, and the table
    would say the opposite."""
    for field, path in ((field, path) for field, named in paths.items() for path in named):
        if hidden.cover(real(path)):
            problem = f"{path} ({field}) is in them, but the job must see it; hide only what you mean"
            raise PolicyError("hidden_paths", problem)


def refuse_workspace(ours: tuple[str, ...], workspaces: Iterable[str], readable: tuple[str, ...]) -> None:
    """UsageError if a workspace lies in a directory of ours that must be absent from a readable directory."""
    for path in workspaces:
        above = next((each for each in readable if within(path, real(each))), "")
        if above and any(within(path, own) for own in ours):
            problem = f"the private directory {path} of this sandbox is in the readable {above}, where it is hidden"
            raise UsageError(problem, hint="name allowed_paths, or a sandbox_root elsewhere")


def refuse_unhidden(transaction: Transaction, hidden: Iterable[str]) -> None:
    """UsageError if a working copy contains what is to be hidden: nothing can be taken out of an existing copy."""
    inside = [path for path in hidden if any(within(path, base) for base in transaction.bases)]
    late = [path for path in inside if not any(within(path, name) for name in transaction.hidden)]
    if transaction.kind == "snapshot" and late:
        raise UsageError(f"{', '.join(late)} was hidden only after the working copy was made, so the copy contains it",
                         hint="make a new sandbox")  # fmt: skip


def lacks(policy: SandboxPolicy, hidden: HiddenPaths) -> list[Lack]:
    """A lack for every path that can't be hidden, because no overlay can make it absent."""
    tops = ("/proc", "/dev", *map(real, policy.writable_paths))
    return [_lack(path) for path in dict.fromkeys(path for top in tops for path in hidden.within(top))]


def _lack(path: str) -> Lack:
    fix = "hide what is below a readable directory or the workspace, and give writable directories without secrets"
    return Lack(capability="hidden_paths", missing=f"a way to hide {path} where it is", fix=fix)
