"""What a strict box changes on the host: nothing, one directory in a layer of the box's own, or the directories of a
transaction in layers that outlive the box.

Opens and closes layers and says what is to be shown; mounts nothing (``sandbox.root``).
"""

from __future__ import annotations

import os

from ringfence.errors import UsageError
from ringfence.model import state_folder
from ringfence.model.outcome import Changes
from ringfence.model.paths import within
from ringfence.model.policy import SandboxPolicy
from ringfence.model.ways.walk import real
from ringfence.sandbox import hiding, showing, workplaces
from ringfence.sandbox import root as rootfs
from ringfence.sandbox.hidden import HiddenPaths
from ringfence.sandbox.root import WorkspaceMount
from ringfence.sandbox.strict_plan import IN_SCRATCH
from ringfence.sandbox.view import Laying

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.checkpoint.late import LateAttempts
    from ringfence.checkpoint.transaction import Transaction
    from ringfence.checkpoint.workspace import Workspace


class Layers:
    """Opens the layers of one box over directories of the host; commits them, keeps them, or closes them."""

    def __init__(self, policy: SandboxPolicy, hidden: HiddenPaths) -> None:
        self._policy, self._hidden = policy, hidden
        self._own: Workspace | None = None
        self._to_open: tuple[str, str] | tuple[()] = ()
        self._ours: tuple[str, ...] | None = None
        self.stamp: tuple[object, ...] = ()
        """Stands for our own directories before they were looked up."""
        self._led: dict[str, str] = {}
        self._root = _root_of(policy) if policy.root else ""
        """The real path of the directory that is the root; empty: the root is the host's system."""
        self.transaction: Transaction | None = None
        self._scratch = ""
        """As noted in the transaction."""
        self._late: LateAttempts | None = None

    def work_on(self, transaction: Transaction) -> None:
        if transaction.kind != "overlay":
            raise UsageError(f"isolation strict can't use a transaction of kind {transaction.kind} here",
                             hint="create it with the kind that transaction_kind(policy) returns")  # fmt: skip
        inside = [self._root + path for path in self._hidden] if self._root else []
        transaction.hide((*self._hidden, *inside))
        self.transaction, self._ours = transaction, None

    def prepare(self, scratch: str, workspace: str | None) -> tuple[str, ...]:
        """Prepare what is to be changed; return the directories whose disks are read and written."""
        if self.transaction is not None:
            for base in self.transaction.bases:
                _refuse_absent(base)
            self.transaction.note_box(scratch)
            self._scratch = scratch
            return (self.transaction.folder, *self.transaction.bases)
        for name in IN_SCRATCH:
            os.makedirs(os.path.join(scratch, name), mode=0o755, exist_ok=True)
        if not workspace:
            return ()
        real = self._real(workspace)
        _refuse_absent(real if real == self._root else workspace)
        if self._own is None:
            state_folder.keep_in(real, self.ours)
            self._to_open = (scratch, real)
        return (real,)

    def open(self) -> None:
        """The layer of what was prepared. A separate step, so that its modules are loaded while a zygote is built."""
        if not self._to_open:
            return
        from ringfence.checkpoint.store import Store
        from ringfence.checkpoint.workspace import open_overlay

        (scratch, real), self._to_open = self._to_open, ()
        store = Store(os.path.join(scratch, "store"), passing=True)
        self._own = open_overlay(os.path.join(scratch, "layer/upper"), real, store, hidden=(*self._hidden, *self.ours))

    def _real(self, workspace: str) -> str:
        """Looked up once: what is shown, what is reported as changed and what is committed must be one directory, even
        if somebody replaces links above it meanwhile."""
        if self._in_root(workspace) is not None:
            return self._root
        if workspace not in self._led:
            self._led[workspace] = workplaces.led_to(workspace, self._policy)
        return self._led[workspace]

    def _in_root(self, path: str) -> str | None:
        """The path inside of a host path that lies in the root; None: it does not. Decided by its text alone: links in
        there are for the job to follow, and we follow none."""
        plain = os.path.abspath(path)
        for top in (self._root, self._policy.root) if self._root else ():
            if within(plain, top):
                return plain[len(top) :] or "/"
        return None

    @property
    def ours(self) -> tuple[str, ...]:
        """Our own directories, which no guest sees and no commit touches. Looked up once: that reads the mount table.
        What is made later is noticed by ``own_watch``, and by each look at a layer."""
        if self._ours is None:
            self.stamp = state_folder.own_stamp()
            self._ours = self.transaction.ours if self.transaction else state_folder.own_places()
        return self._ours

    def laying(self, workspace: str | None, scratch: str) -> Laying:
        """What is shown and changed for a job that works in this directory."""
        if self._root and not state_folder.is_image_root(self._root):
            state_folder.refuse_ours(self.ours, [self._root], ())
        laid = self._laid(workspace)
        showing.refuse_covering(self._policy, [each.path for each in laid if not each.at] if laid else [rootfs.WORK])
        folder = self._first_folder(workspace, laid)
        root = next((each for each in laid if each.path == self._root), None)
        if self._root and root is None:
            showing.refuse_mounts_within(self._root)
            root = self._one(self._root, "")
        return Laying(workspaces=laid, folder=folder, ours=self.ours, scratch=scratch, image=root)

    def _laid(self, workspace: str | None) -> tuple[WorkspaceMount, ...]:
        """What is shown at its own path and changed in a layer only; the directory that the job begins in is first."""
        if self.transaction is None:
            rows = [(self._real(workspace), "")] if workspace else []
        else:
            rows = list(self.transaction.layers)
        hiding.refuse_covered(self._hidden, workspace=[path for path, _ in rows if path != self._root])
        found = tuple(self._one(path, layer) for path, layer in rows)
        if self.transaction is None:  # the bases of one are checked when it is made; its own workspace is ours
            state_folder.refuse_ours(self.ours, [each.path for each in found if each.path != self._root], ())
        for each in found:
            if self.transaction is None:
                workplaces.refuse(each.path, self._policy)
            showing.refuse_mounts_within(each.path)
        return found

    def _one(self, path: str, layer: str) -> WorkspaceMount:
        is_root = path == self._root
        absent = [*self._hidden.below("/" if is_root else path), *HiddenPaths(self.ours).below(path)]
        if self.transaction:
            absent += HiddenPaths(self.transaction.hidden).below(path)
        owner: tuple[int, ...] = ()
        if os.geteuid() == 0:  # as root, files of the directory's owner appear as the job's own
            status = os.stat(path)
            owner = (status.st_uid, status.st_gid)
        at = showing.places(self._policy).get(path, "") if self._policy.shown_at else ""
        at = "/" if is_root else at
        return WorkspaceMount(path=path, owner=owner, layer=layer, absent=tuple(dict.fromkeys(absent)), at=at)

    def _first_folder(self, workspace: str | None, laid: tuple[WorkspaceMount, ...]) -> str:
        """Where the job begins."""
        if not laid:
            return rootfs.WORK
        inside = self._in_root(workspace) if workspace is not None else None
        if inside is not None:
            return inside
        if self.transaction is None or workspace is None:
            return rootfs.place(laid[0])
        path = real(workspace)
        if not any(path == each.path or path.startswith(each.path + "/") for each in laid):
            raise UsageError(f"{workspace} is in none of the transaction's directories",
                             hint=f"they are {', '.join(self.transaction.bases)}")  # fmt: skip
        return showing.inside(self._policy, path)

    def changes(self) -> Changes:
        if self.transaction is not None:
            return self.transaction.changes()
        return self._looked_at(self._own).changes() if self._own else Changes()

    def late(self) -> LateAttempts:
        """What was tried on these layers after the last result."""
        if self._late is None:
            from ringfence.checkpoint.late import LateAttempts

            self._late = self.transaction.late if self.transaction else LateAttempts()
        return self._late

    def checkpoint(self) -> str:
        """The last one; empty: there is none."""
        return self.transaction.current if self.transaction else ""

    def commit(self, *, mounted: bool) -> None:
        if self.transaction is not None:
            if not mounted:
                self.transaction.forget_box(self._scratch)
            self.transaction.commit(mounted=mounted)
        elif self._own:
            self.late().refuse()
            self._looked_at(self._own).commit(mounted=mounted)

    def _looked_at(self, workspace: Workspace) -> Workspace:
        """What we have made in it since is not the job's change."""
        if state_folder.own_stamp() != self.stamp:
            workspace.also_hide(state_folder.own_places())
        return workspace

    def keep(self, folder: str, scratch: str) -> bool:
        """Make a transaction of the box's own layer; the box has no layer any more."""
        if self._own is None:
            return False
        from ringfence.checkpoint.from_layer import adopt

        workspace, self._own = self._looked_at(self._own), None
        try:
            adopt(workspace, folder, os.path.join(scratch, "layer")).close()
        finally:
            workspace.close()
        return True

    def close(self) -> None:
        if self._own is not None:
            self._own.close()


def _root_of(policy: SandboxPolicy) -> str:
    from ringfence.sandbox.image import folder_of

    return folder_of(policy)


def _refuse_absent(folder: str) -> None:
    if not os.path.isdir(folder):
        raise UsageError(f"{folder}: no such directory", hint="the working directory must exist")
