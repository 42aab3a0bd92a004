"""What of the host a strict box changes: nothing, one folder in a layer of the box's own, or the folders of a
transaction in layers that outlive the box.

Opens and closes layers and says what is to be shown; mounts nothing (``linux.rootfs``).
"""

from __future__ import annotations

import os

from ringfence.backends import hiding, showing
from ringfence.checkpoint.workspace import Workspace, open_overlay
from ringfence.errors import UsageError
from ringfence.linux import rootfs
from ringfence.linux.hidden import HiddenPaths
from ringfence.linux.rootfs import Laid
from ringfence.model import state_folder
from ringfence.model.outcome import Changes
from ringfence.model.paths import within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.checkpoint.transaction import Transaction

IN_SCRATCH = ("layer", "layer/upper", "layer/work")


class Layers:
    """Of one box."""

    def __init__(self, hidden: HiddenPaths) -> None:
        self._hidden = hidden
        self._own: Workspace | None = None
        self._ours: tuple[str, ...] | None = None
        self.transaction: Transaction | None = None
        self.written: tuple[str, ...] = ()
        """Folders whose disks are written, once it is known."""

    def work_on(self, transaction: Transaction) -> None:
        if transaction.kind != "overlay":
            raise UsageError(f"a transaction of kind {transaction.kind} is not for isolation strict here",
                             hint="create it with the kind that transaction_kind(policy) tells")  # fmt: skip
        transaction.hide(tuple(self._hidden))
        self.transaction, self._ours = transaction, None

    def prepare(self, scratch: str, workspace: str | None) -> tuple[str, ...]:
        """Open what is to be changed; the folders whose disks are written."""
        self.written = self._opened(scratch, workspace)
        return self.written

    def _opened(self, scratch: str, workspace: str | None) -> tuple[str, ...]:
        if self.transaction is not None:
            for base in self.transaction.bases:
                _refuse_absent(base)
            self.transaction.note_box(scratch)
            return (self.transaction.folder, *self.transaction.bases)
        for name in IN_SCRATCH:
            os.makedirs(os.path.join(scratch, name), mode=0o755, exist_ok=True)
        if not workspace:
            return ()
        _refuse_absent(workspace)
        if self._own is None:
            self._keep_ours(workspace)
            upper, store = (os.path.join(scratch, name) for name in ("layer/upper", "store"))
            self._own = open_overlay(upper, workspace, store, hidden=(*self._hidden, *self.ours))
        return (workspace,)

    def _keep_ours(self, workspace: str) -> None:
        """What is not there yet a guest could make, and a commit would carry it over: a key that the guest knows."""
        if any(within(own, os.path.realpath(workspace)) for own in self.ours):
            state_folder.made()

    @property
    def ours(self) -> tuple[str, ...]:
        """Our own folders, which no guest sees and no commit touches. Looked up once: that reads the mount table."""
        if self._ours is None:
            self._ours = self.transaction.ours if self.transaction else state_folder.own_places()
        return self._ours

    def laid(self, workspace: str | None) -> tuple[Laid, ...]:
        """What is shown at its own path and changed in a layer only; the folder that the job begins in is first."""
        if self.transaction is None:
            rows = [(os.path.realpath(workspace), "")] if workspace else []
        else:
            rows = list(self.transaction.layers)
        hiding.refuse_covered(self._hidden, workspace=[path for path, _ in rows])
        found = tuple(self._one(path, layer) for path, layer in rows)
        if self.transaction is None:  # the bases of one are checked when it is made; its own workspace is ours
            hiding.refuse_ours(self.ours, [each.path for each in found], ())
        for each in found:
            if each.path == "/" or each.path in rootfs.SYSTEM_FOLDERS:
                raise UsageError(f"{each.path} can't be a workspace", hint="change to a folder of your own first")
            showing.refuse_mounts_within(each.path)
        return found

    def _one(self, path: str, layer: str) -> Laid:
        absent = [*self._hidden.below(path), *HiddenPaths(self.ours).below(path)]
        if self.transaction:
            absent += HiddenPaths(self.transaction.hidden).below(path)
        owner: tuple[int, ...] = ()
        if os.geteuid() == 0:  # as root, files of the folder's owner appear as the job's own
            status = os.stat(path)
            owner = (status.st_uid, status.st_gid)
        return Laid(path=path, owner=owner, layer=layer, absent=tuple(dict.fromkeys(absent)))

    def first_folder(self, workspace: str | None, laid: tuple[Laid, ...]) -> str:
        """Where the job begins."""
        if not laid:
            return rootfs.WORK
        if self.transaction is None or workspace is None:
            return laid[0].path
        path = os.path.realpath(workspace)
        if not any(path == each.path or path.startswith(each.path + "/") for each in laid):
            raise UsageError(f"{workspace} is in none of the transaction's folders",
                             hint=f"they are {', '.join(self.transaction.bases)}")  # fmt: skip
        return path

    def changes(self) -> Changes:
        if self.transaction is not None:
            return self.transaction.changes()
        return self._own.changes() if self._own else Changes()

    def commit(self, *, mounted: bool) -> None:
        if self.transaction is not None:
            self.transaction.commit(mounted=mounted)
        elif self._own:
            self._own.commit(mounted=mounted)

    def keep(self, folder: str, scratch: str) -> bool:
        """Make a transaction of the box's own layer; the box has no layer any more."""
        if self._own is None:
            return False
        from ringfence.checkpoint.adoption import adopt

        workspace, self._own = self._own, None
        try:
            adopt(workspace, folder, os.path.join(scratch, "layer")).close()
        finally:
            workspace.close()
        return True

    def close(self) -> None:
        if self._own is not None:
            self._own.close()


def _refuse_absent(folder: str) -> None:
    if not os.path.isdir(folder):
        raise UsageError(f"{folder}: no such folder", hint="the working folder must exist")
