"""``SandboxSession``: the one living sandbox of an agent's session, made when the first call needs it.

It executes, keeps, goes back and ends. It decides nothing: the agent says what is kept or undone.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ringfence.errors import LateAttemptError, SandboxError, SupervisionError, UsageError
from ringfence.integrations.deep_agent.paths import goes_up_behind_a_name, leads_below, links_going_up, meeting
from ringfence.manager.config import SandboxConfig
from ringfence.manager.context import SandboxContext
from ringfence.manager.manager import SandboxManager
from ringfence.manager.result import ExecutionResult, RollbackResult
from ringfence.model.outcome import Changes
from ringfence.model.record import replace
from ringfence.model.ways.walk import real, walk

_OUT = "points outside the allowed paths"


class SandboxSession:
    """Over a manager that may have other sandboxes."""

    def __init__(self, manager: SandboxManager, config: SandboxConfig) -> None:
        self.manager = manager
        self.context: SandboxContext | None = None
        """Absent: nothing has been sandboxed yet."""
        self._config = config
        self._seen: frozenset[str] = frozenset()
        """The paths that had changed at the last look, and are not committed."""
        self._bent: dict[str, str] | None = None
        """Links that go up behind a name, once somebody has looked for them."""

    @property
    def sandbox_id(self) -> str:
        return self.context.sandbox_id if self.context else ""

    def exists(self) -> bool:
        """Whether something has been sandboxed, and nobody else has destroyed it."""
        return any(each is self.context for each in self.manager.list_active_sandboxes())

    def opened(self) -> SandboxContext:
        if self.context is None:
            self.context = self.manager.create_sandbox(self._config)
        return self.context

    def execute(self, tool: Callable[..., Any], parameters: Mapping[str, Any]) -> ExecutionResult:
        return self.manager.execute_in_sandbox(self.opened(), tool, dict(parameters))

    def without_links_out(self, done: ExecutionResult) -> ExecutionResult:
        """A link that leads out of the allowed paths is undone with the call that made it: a tool that runs outside
        would follow it. So is a link that makes an earlier link lead out."""
        said = self._why_undone()
        if not said:
            return done
        return replace(self.undone(done, f"violation: {said}"), violations=(*done.violations, said))

    def _why_undone(self) -> str:
        links, folders = self._links(), self._folders()
        if not links or not folders:
            return ""
        laid = {change.path: "" for change in self.manager.changes(self.context)} | links if self.context else links
        for path, target in links.items():
            if not leads_below(os.path.dirname(path), target, folders, laid):
                return f"link {_shown(path)} {_OUT}"
        for path, target in self._going_up().items():
            stays = leads_below(os.path.dirname(path), target, folders)
            if path not in laid and stays and not leads_below(os.path.dirname(path), target, folders, laid):
                return f"link {_shown(path)} {_OUT} through another link"
        return ""

    def _going_up(self) -> dict[str, str]:
        """The links in the allowed paths whose meaning another link can change; looked for once."""
        if self._bent is None:
            self._bent = links_going_up(self._folders())
        return self._bent

    def undone(self, done: ExecutionResult, error: str) -> ExecutionResult:
        """A call that succeeded, but must not stay."""
        self.go_back(done.checkpoint_id)
        return replace(done, success=False, value=None, error=error, rolled_back=True)

    def late(self, done: ExecutionResult, error: LateAttemptError) -> ExecutionResult:
        """A call that succeeded, while what an earlier one left running did not; the manager has undone both."""
        seen = (*done.violations, *error.attempts)
        return replace(done, success=False, value=None, error=f"violation: {seen[0]}", violations=seen,
                       rolled_back=self._config.enable_auto_rollback)  # fmt: skip

    def _links(self) -> dict[str, str]:
        return self.manager.links(self.context) if self.context else {}

    def _folders(self) -> tuple[str, ...]:
        return tuple(map(real, map(os.fspath, self._config.allowed_paths)))

    def changes(self) -> Changes:
        """What differs from the allowed paths."""
        found = self.manager.changes(self.context) if self.context else Changes()
        self._seen = frozenset(change.path for change in found)
        return found

    def changed(self) -> tuple[str, ...]:
        """The paths of these."""
        return tuple(change.path for change in self.changes())

    def holds(self, texts: Iterable[str]) -> bool:
        """Whether one of these texts is the path of something that had changed at the last look, or of a directory
        above or below it."""
        if not self._seen:
            return False
        starts = (os.getcwd(), *self._folders())
        return meeting(starts, texts, self._seen)

    def diff(self) -> str:
        return self.manager.diff(self.context) if self.context else ""

    def keep(self) -> tuple[str, ...]:
        """Commit what changed. Nothing changed: the sandbox is not disturbed."""
        if self.context is None or not self.changes():
            return ()
        paths = self.manager.commit(self.context).paths
        self._seen = frozenset()
        return paths

    def remove_links_out(self, paths: tuple[str, ...]) -> None:
        """A process in the sandbox may have made a link between the check and the commit."""
        folders, links = self._folders(), {path: os.readlink(path) for path in paths if os.path.islink(path)}
        if not links or not folders:
            return
        self._bent = self._going_up() | {path: text for path, text in links.items() if goes_up_behind_a_name(text)}
        for path in links:
            led = [each for each in self._bent if walk(each).passes(path)]
            if not all(_stays(each, folders) for each in (path, *led)):
                os.unlink(path)
                raise SupervisionError(f"{path!a} pointed outside the allowed paths, so it was removed")

    def go_back(self, checkpoint_id: str) -> dict[str, Any]:
        """End everything that runs and go back to a checkpoint; if that is gone, drop the whole sandbox."""
        if self.context is None:
            return {"rollback_type": "none", "files_restored": 0, "checkpoint_id": ""}
        done = self._rolled_back(checkpoint_id)
        if done is None:
            undone = self._count_changed()
            self.end()
            return {"rollback_type": "dropped", "files_restored": undone, "checkpoint_id": ""}
        return {"rollback_type": done.rollback_type, "files_restored": done.files_restored,
                "checkpoint_id": checkpoint_id, "processes_ended": len(done.processes_ended)}  # fmt: skip

    def _count_changed(self) -> int:
        try:
            return len(self.changes())
        except SandboxError:
            return 0  # somebody else has destroyed it

    def _rolled_back(self, checkpoint_id: str) -> RollbackResult | None:
        """None: it could not be. A checkpoint goes with a commit, or when there are too many."""
        try:
            done = self.manager.rollback_system.rollback_to_checkpoint(checkpoint_id)
        except SandboxError:
            return None
        return done if done.success else None

    def keep_or_leave(self, keep: Callable[[], object]) -> None:
        """Commit, and leave nothing; what can't be committed stays on disk, and the error says where."""
        try:
            keep()
        except SandboxError as error:
            if self.context is not None:
                gone, self.context = self.context, None
                first = error.hint if isinstance(error, LateAttemptError) else "nothing is lost"
                error.hint = f"{first}: SandboxManager.attach({gone.sandbox_id!r}) opens what changed"
                self.manager.detach(gone.sandbox_id)
            raise
        self.end()

    def end(self) -> None:
        """Leave nothing of it."""
        if self.context is not None:
            gone, self.context = self.context, None
            try:
                self.manager.destroy_sandbox(gone.sandbox_id)
            except UsageError:
                pass  # there is nothing of it


def _stays(link: str, folders: tuple[str, ...]) -> bool:
    return not os.path.islink(link) or leads_below(os.path.dirname(link), os.readlink(link), folders)


def _shown(path: str) -> str:
    return ascii(path)[1:-1]


def tell_unended(sessions: list[SandboxSession]) -> None:
    """Warn: the agent was never closed, so nobody said that its changes should be kept."""
    for session in sessions:
        if session.exists() and session.changed():
            warnings.warn(f"an agent was not closed, and nothing was committed; SandboxManager.attach("
                          f"{session.sandbox_id!r}) opens what changed", stacklevel=2)  # fmt: skip
