"""A commit over several workspaces at once: before the first change it is all or nothing; and what it reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ringfence.checkpoint.commit import commit_plan
from ringfence.checkpoint.commit.conflicts import OnConflict
from ringfence.checkpoint.layer import Committed, Planned
from ringfence.checkpoint.layout import Parts
from ringfence.checkpoint.workspace import Workspace
from ringfence.errors import ConflictError
from ringfence.model.record import field_names

Absolute = Callable[[int, Iterable[str]], list[str]]
"""Paths in a workspace, by its number, as those of the host."""


def planned(
    workspaces: Sequence[Workspace], parts: Parts, how: OnConflict, absolute: Absolute, *, mounted: bool
) -> list[tuple[int, Planned]]:
    """Plan the commit of every base before the first is changed; report the conflicts of all of them together."""
    found, theirs, problems = [], [], []
    written = tuple(workspace.base.path for workspace in workspaces)
    for number, inside in parts.items():
        try:
            plan = workspaces[number].plan_commit(inside, mounted=mounted, on_conflict=how, untrusted=written)
        except ConflictError as error:
            theirs += absolute(number, error.paths)
            problems.append(error.problem)
            continue
        if inside is None or plan.chosen or plan.settled.anew:
            found.append((number, plan))  # if nothing changed at these paths nothing is done, so no history ends
    commit_plan.refuse(theirs, "; ".join(dict.fromkeys(problems)))
    return found


def stage(workspaces: Sequence[Workspace], plans: list[tuple[int, Planned]]) -> None:
    """Make all new files of all bases before the first is put in place; if one fails, none is left."""
    done: list[tuple[int, Planned]] = []
    try:
        for number, plan in plans:
            workspaces[number].stage(plan)
            done.append((number, plan))
        for number, plan in plans:
            workspaces[number].check_again(plan)
    except BaseException:
        for number, plan in done:
            workspaces[number].unstage(plan)
        raise


def end_history(workspaces: Sequence[Workspace]) -> None:
    """There is no going back from what was carried over: checkpoints go."""
    for workspace in workspaces:
        if workspace.store.checkpoint_ids():
            workspace.forget_checkpoints()


def told(done: list[tuple[int, Committed]], absolute: Absolute) -> Committed:
    """All results as one, with the host's paths."""
    rows = {name: tuple(path for number, each in done for path in absolute(number, getattr(each, name)))
            for name in field_names(Committed)}  # fmt: skip
    return Committed(**rows)
