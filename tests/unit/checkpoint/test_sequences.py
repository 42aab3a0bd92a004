"""Random sequences on every kind of workspace, and a kill before every single change that an action makes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from undo_arena import KINDS, Arena
from undo_sequences import crash_everywhere, run_in, sequence

from ringfence.checkpoint import tree
from ringfence.checkpoint.commit import commit_plan

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]

SEQUENCES = int(os.environ.get("RINGFENCE_SEQUENCES", "60"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_workspace_does_what_its_model_says(kind: str, tmp_path: Path) -> None:
    run_in(kind, tmp_path, range(SEQUENCES), sequence)


def test_a_workspace_does_the_same_without_descriptors_of_folders(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tree, "_BY_DESCRIPTOR", False)
    run_in("snapshot", tmp_path, range(20), sequence)


@pytest.mark.long
@pytest.mark.once
@pytest.mark.parametrize("action", ("commit", "rollback"))
@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_before_any_change_leaves_the_old_or_the_new_state(kind: str, action: str, tmp_path: Path) -> None:
    def everywhere(kind: str, folder: Path, seed: int) -> None:
        changes = crash_everywhere(kind, folder, seed, action)
        assert changes >= 5

    run_in(kind, tmp_path, range(7, 8), everywhere)


def test_the_crash_test_sees_a_commit_that_is_not_finished(tmp_path: Path, monkeypatch) -> None:
    """The control: without the journal's second half the state would be neither old nor new."""
    monkeypatch.setattr("ringfence.checkpoint.workspace.Workspace.recover", lambda self: None)
    with pytest.raises(AssertionError):
        run_in("snapshot", tmp_path, range(7, 8), lambda k, f, s: crash_everywhere(k, f, s, "commit"))


def test_the_random_test_sees_a_deletion_that_is_forgotten(tmp_path: Path, monkeypatch) -> None:
    plan = commit_plan.plan

    def forgetful(layer, base, hidden):
        return plan({path: entry for path, entry in layer.items() if entry.kind != "deleted"}, base, hidden)

    monkeypatch.setattr(commit_plan, "plan", forgetful)
    with pytest.raises(AssertionError):
        run_in("snapshot", tmp_path, range(20), sequence)


def test_the_arena_has_a_program_that_sees_the_base(tmp_path: Path) -> None:
    arena = Arena("snapshot", tmp_path)
    (arena.base / "a").write_text("x")
    arena.open().close()
    assert (arena.seen / "a").read_text() == "x"
