"""A directory of ours that is made where a living guest could see it: nobody is let into that sandbox any more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import eventually

import ringfence
from ringfence import Job, Pool, SandboxConfig, SandboxManager, SandboxPolicy, Transaction, UsageError, run
from ringfence.checkpoint.commit.commit_plan import CommitPlan, outside
from ringfence.checkpoint.entry import Entry, Seen
from ringfence.model import state_folder
from ringfence.model.own.own_watch import OwnWatch

pytestmark = [pytest.mark.system, pytest.mark.privileges]


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown/note").write_text("note")
    return tmp_path / "shown"


@pytest.fixture
def policy(shown: Path) -> SandboxPolicy:
    return SandboxPolicy(isolation="strict", readable_paths=(str(shown),))


def _make_root(place: Path) -> Iterator[Path]:
    """A sandbox of a manager whose root is there, and a file of its."""
    with SandboxManager(SandboxConfig(sandbox_root=place)) as manager:
        folder = Path(manager.create_sandbox().folder)
        (folder / "secret").write_text("secret")
        yield folder / "secret"


def _read(place: str) -> list[str]:
    import pathlib

    return [path.read_text() for path in pathlib.Path(place).rglob("*") if path.is_file() and path.suffix == ""]


def test_a_box_that_could_see_it_takes_no_visit_and_what_lives_in_it_is_ended(
    shown: Path, policy: SandboxPolicy
) -> None:
    with ringfence.open(policy) as box:
        left = box.start(["sleep", "600"])
        eventually(lambda: bool(box.watchable.leaders()))
        for secret in _make_root(shown / "boxes"):
            with pytest.raises(UsageError, match="directory of ringfence's own") as error:
                box.run(["cat", str(secret)])
            assert "a new box" in error.value.hint and box.ended
            assert left.wait(30).status != "OK"
            with ringfence.open(policy) as later:
                told = later.run(["sh", "-c", f"cat {shown}/note {secret}; ls {shown}"])
                assert told.stdout == b"notenote\n", "the control: it is hidden from one that is opened later"


def test_a_box_that_could_not_see_it_goes_on(policy: SandboxPolicy, tmp_path: Path) -> None:
    with ringfence.open(policy) as box:
        for secret in _make_root(tmp_path / "elsewhere"):
            assert box.run(["cat", str(secret)]).rc != 0 and not box.ended
            assert box.run(["true"]).ok


def test_a_sandbox_that_stood_by_is_not_used_any_more(shown: Path, policy: SandboxPolicy) -> None:
    with Pool(policy, warm=2) as pool:
        assert pool.call(_read, str(shown)) == ["note"]
        eventually(lambda: len(pool._warm) == 2)
        for _ in _make_root(shown / "boxes"):
            assert [pool.call(_read, str(shown)) for _ in range(3)] == [["note"]] * 3


def test_a_managers_sandbox_is_opened_anew_and_no_commit_reaches_it(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    plant = "for each in boxes/*/; do echo bad > $each/planted; done; mkdir -p boxes/x; touch boxes/x/y new"
    with SandboxManager(SandboxConfig(isolation_level="strict", allowed_paths=[place])) as manager:
        context = manager.create_sandbox()
        assert manager.run(context, ["true"]).success
        for secret in _make_root(place / "boxes"):
            told = manager.run(context, ["sh", "-c", f"cat {secret}; {plant}"])
            assert told.stdout == "" and "opened" not in (told.error or "")
            assert manager.commit(context).paths == (f"{place}/new",)
            assert sorted(os.listdir(secret.parent.parent)) == [secret.parent.name]
            assert "planted" not in os.listdir(secret.parent)


@pytest.mark.parametrize("kind", ["overlay", "snapshot"])
def test_a_commit_leaves_out_what_has_become_ours_since(kind: str, tmp_path: Path) -> None:
    """The control: what lies beside it is carried over."""
    (tmp_path / "base/boxes").mkdir(parents=True)
    with Transaction.create(tmp_path / "tx", [tmp_path / "base"], kind=kind) as tx:
        layer = Path(tx.layers[0][1], "upper") if kind == "overlay" else Path(tx.place(tmp_path / "base"))
        for name in ("boxes", "beside"):
            (layer / name).mkdir(exist_ok=True)
            (layer / name / "new").write_text("x")
        assert {os.path.basename(os.path.dirname(each.path)) for each in tx.changes()} >= {"boxes", "beside"}
        sealed = tx.seal()
        state_folder.note_root(str(tmp_path / "base/boxes"))
        assert not any("boxes" in each.path for each in tx.changes()) and "boxes" not in tx.diff()
        assert tx.seal() != sealed
        tx.commit()
    assert (tmp_path / "base/beside/new").exists() and os.listdir(tmp_path / "base/boxes") == []


def test_a_run_commits_nothing_into_what_was_made_meanwhile(tmp_path: Path) -> None:
    work, told = tmp_path / "work", []
    work.mkdir()

    def note(_: str, piece: bytes) -> None:
        if b"ready" in piece:
            (work / "boxes").mkdir()
            state_folder.note_root(str(work / "boxes"))
            told.append(piece)

    script = "echo ready; sleep 0.2; mkdir -p boxes/x; echo bad > boxes/x/y; echo x > new"
    outcome = run(Job(argv=("sh", "-c", script), cwd=str(work)), SandboxPolicy(isolation="strict"), commit=True,
                  on_output=note)  # fmt: skip
    assert told and outcome.committed, outcome.commit_problem
    assert [change.path for change in outcome.changes] == ["new"]
    assert os.listdir(work / "boxes") == [] and (work / "new").exists()


def test_what_was_broken_off_does_not_reach_what_is_hidden_now() -> None:
    entry = Entry(kind="file")
    plan = CommitPlan(now={"a/x": Seen(entry=entry, fingerprint=(0,) * 6)}, target={"a/y": entry, "b": entry})
    assert outside(plan, frozenset({"a"})) == CommitPlan(now={}, target={"b": entry})
    assert outside(plan, frozenset()) == plan


def test_only_what_lies_in_something_shown_and_was_not_known_counts(tmp_path: Path) -> None:
    (tmp_path / "shown/inner").mkdir(parents=True)
    (tmp_path / "known/inner").mkdir(parents=True)
    ended: list[str] = []
    watch = OwnWatch(state_folder.own_stamp(), [str(tmp_path / "known")], [str(tmp_path)], lambda: ended.append("x"))
    narrow = OwnWatch(state_folder.own_stamp(), [], [str(tmp_path / "known")], lambda: None)
    assert watch.exposed() == ""
    state_folder.note_root(str(tmp_path / "known/inner"))
    assert watch.exposed() == "" and narrow.exposed() == str(tmp_path / "known/inner")
    state_folder.note_root(str(tmp_path / "shown/inner"))
    assert watch.exposed() == watch.exposed() == str(tmp_path / "shown/inner") and ended == ["x"]


def test_of_two_who_ask_at_the_same_time_none_is_let_in_before_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inner").mkdir()
    watch = OwnWatch(state_folder.own_stamp(), [], [str(tmp_path)], lambda: None)
    state_folder.note_root(str(tmp_path / "inner"))
    looked, meanwhile = state_folder.own_places, []

    def slow() -> tuple[str, ...]:
        if not meanwhile:
            meanwhile.append("")  # the other one looks itself
            meanwhile.append(watch.exposed())
        return looked()

    monkeypatch.setattr(state_folder, "own_places", slow)
    assert watch.exposed() == meanwhile[-1] == str(tmp_path / "inner")
