"""The private directory of a run: while it is there nobody is given what is around it, and then it is forgotten."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ringfence.errors import UnavailableError, UsageError
from ringfence.model import state_folder
from ringfence.proctor import Task, proctor, staging
from ringfence.proctor.place.workplace import MARK, workplace
from ringfence.proctor.template import write_task

pytestmark = pytest.mark.privileges


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def _noted(place: str) -> None:
    """As a transaction in it is."""
    os.mkdir(f"{place}/agent", 0o700)
    state_folder.note_root(f"{place}/agent")


def _give(folder: Path) -> None:
    """As a policy with this writable path does."""
    state_folder.refuse_ours(state_folder.own_places(), (), [str(folder)])


def test_the_folder_around_a_run_is_refused_while_it_goes_on_and_not_afterwards(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    with workplace(str(tmp_path / "work" / "out")) as place:
        _noted(place)
        with pytest.raises(UsageError, match="which no guest may write"):
            _give(tmp_path / "work")
    _give(tmp_path / "work")


def test_what_a_killed_run_left_is_forgotten_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    with monkeypatch.context() as killed:
        killed.setattr("ringfence.proctor.place.workplace.remove_tree", lambda _: None)
        killed.setattr(state_folder, "forget_in", lambda _: None)
        with workplace(str(tmp_path / "work" / "out")) as place:
            _noted(place)
    with pytest.raises(UsageError, match=MARK):
        _give(tmp_path / "work")
    with workplace(str(tmp_path / "work" / "next")):
        _give(tmp_path / "work")


def _refusing(*fixes: str) -> Callable[..., None]:
    def stage(*_: object) -> None:
        raise UnavailableError("no namespaces", missing=("namespaces",), fixes=fixes)

    return stage


def test_a_refusal_gives_no_advice_that_proctor_can_not_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_task(str(tmp_path / "task"))
    task = Task.from_folder(tmp_path / "task")
    monkeypatch.setattr(staging, "stage", _refusing("sysctl", "or accept less with allow_partial (--allow-partial)"))
    with pytest.raises(UnavailableError) as refused:
        proctor(task, "true", tmp_path / "out")
    assert refused.value.fixes == ("sysctl",) and refused.value.missing == ("namespaces",)
    assert refused.value.hint == "sysctl"
