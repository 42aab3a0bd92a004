"""What is committed was told before: no number of changes ends what is shown while a commit carries over the rest."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from undo_arena import Arena, in_child

from ringfence.checkpoint import overlay, scan, snapshot
from ringfence.checkpoint.diff.texts import CUT
from ringfence.checkpoint.transaction import Transaction
from ringfence.checkpoint.workspace import Workspace, open_overlay
from ringfence.cli.attached import explain
from ringfence.engine.run import run
from ringfence.errors import CheckpointError, ConflictError
from ringfence.model.job import Job
from ringfence.model.outcome import Changes
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace

pytestmark = [pytest.mark.system, pytest.mark.privileges]

COPIES = ("upper", "store/work")


def _of(place: str, top: Path) -> Workspace:
    """With a layer that is written directly, at ``place``."""
    (top / "base").mkdir()
    (top / "base/old").write_text("old")
    return _open(place, top)


def _open(place: str, top: Path) -> Workspace:
    (top / "upper").mkdir()
    if place == "upper":
        return open_overlay(*(str(top / name) for name in ("upper", "base", "store")))
    return Arena("snapshot", top).open()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (overlay, snapshot):
        monkeypatch.setattr(module, "MAX_ENTRIES", 10)


@pytest.mark.long
@pytest.mark.once
def test_more_than_a_hundred_thousand_changes_are_all_told(tmp_path: Path) -> None:
    workspace = _of("upper", tmp_path)
    many = tmp_path / "upper/many"
    many.mkdir()
    for each in range(4):
        (many / f"{each}").touch()
        for number in range(25_001):
            os.link(many / f"{each}", many / f"{each}_{number}")
    (tmp_path / "upper/zz").write_text("evil")
    told = workspace.changes()
    assert len(told) == 100_010 and told.complete and told[-1].path == "zz"
    assert "+evil" in "".join(workspace.diffs(("zz",)))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("place", COPIES)
def test_what_is_too_much_to_be_told_is_not_committed(place: str, tmp_path: Path) -> None:
    workspace = _of(place, tmp_path)
    for number in range(11):
        (tmp_path / place / f"new{number}").write_text("x")
    told = workspace.changes()
    assert not told.complete and len(told) >= 10 and {str(change.kind) for change in told} == {"added"}
    assert workspace.diff().endswith(CUT)
    with pytest.raises(CheckpointError, match="too many to look through"):
        workspace.commit()
    with pytest.raises(CheckpointError):
        workspace.commit(paths=("new1",))
    assert os.listdir(tmp_path / "base") == ["old"]
    workspace.discard()
    assert workspace.changes() == () and workspace.changes().complete
    assert not [name for name in os.listdir(tmp_path / place) if name.startswith("new")]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("place", COPIES)
def test_as_much_as_can_be_told_is_committed(place: str, tmp_path: Path) -> None:
    workspace = _of(place, tmp_path)
    for number in range(10):
        (tmp_path / place / f"new{number}").write_text("x")
    assert workspace.changes().complete and CUT not in workspace.diff()
    workspace.commit()
    assert len(os.listdir(tmp_path / "base")) == 11


@pytest.mark.usefixtures("few")
def test_long_names_and_links_count_for_more(tmp_path: Path) -> None:
    workspace = _of("upper", tmp_path)
    for number in range(4):
        (tmp_path / f"upper/link{number}").symlink_to("x" * 3000)
    assert not workspace.changes().complete


def test_what_is_too_deep_is_missed_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "MAX_DEPTH", 2)
    workspace = _of("upper", tmp_path)
    (tmp_path / "upper/a/b/c/d").mkdir(parents=True)
    assert not workspace.changes().complete and workspace.diff().endswith(CUT)
    with pytest.raises(CheckpointError, match="directories deep"):
        workspace.commit()


@pytest.mark.usefixtures("few")
def test_a_folder_with_more_names_than_are_told_is_not_listed_whole(tmp_path: Path) -> None:
    """Names that are hidden, or vanish in the middle, do not make up for those that were not read."""
    (tmp_path / "base").mkdir()
    (tmp_path / "upper").mkdir()
    hidden = tuple(str(tmp_path / f"base/n{number}") for number in range(5))
    workspace = open_overlay(*(str(tmp_path / name) for name in ("upper", "base", "store")), hidden=hidden)
    for number in range(13):
        (tmp_path / f"upper/n{number}").touch()
    assert not workspace.changes().complete
    with pytest.raises(CheckpointError):
        workspace.commit()


@pytest.mark.usefixtures("few")
def test_a_transaction_is_told_whole_only_if_all_of_its_folders_are(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with Transaction.create(tmp_path / "t", [tmp_path / "one", tmp_path / "two"]) as transaction:
        for number in range(11):
            Path(transaction.layers[1][1], "upper", f"n{number}").touch()
        Path(transaction.layers[0][1], "upper/a").touch()
        assert not transaction.changes().complete and CUT in transaction.diff()
        with pytest.raises(CheckpointError):
            transaction.commit()
        assert not os.listdir(tmp_path / "one"), "nor is anything of the others"


def test_changes_are_a_tuple_that_knows_whether_it_is_all() -> None:
    assert Changes() == () and Changes().complete and not Changes((), complete=False).complete


def test_a_text_of_everything_has_a_bound_and_still_names_all(tmp_path: Path) -> None:
    workspace = _of("upper", tmp_path)
    for name in "abc":
        (tmp_path / "upper" / name).write_text("line\n" * 100)
    parts = list(workspace.diffs(most=200))
    assert parts[0].count("+line") == 100
    assert [part[:35] for part in parts[1:]] == [f"file {name}: added, mode 0644, not shown" for name in "bc"]
    assert "".join(workspace.diffs()).count("+line") == 300


@pytest.mark.parametrize("mask", (0o022, 0o077, 0))
@pytest.mark.parametrize("place", COPIES)
def test_a_commit_gives_modes_as_if_the_caller_had_made_the_files(place: str, mask: int, tmp_path: Path) -> None:
    def work() -> None:
        os.umask(mask)
        (tmp_path / "base").mkdir()
        for name in ("shared", "plain", "script"):
            (tmp_path / "base" / name).write_text("old")
        (tmp_path / "base/shared").chmod(0o666)
        (tmp_path / "base/plain").chmod(0o640)
        (tmp_path / "base/script").chmod(0o4755)
        (tmp_path / "base/sticky").mkdir()
        (tmp_path / "base/sticky").chmod(0o1777)
        workspace = _open(place, tmp_path)
        top = tmp_path / place
        for name in ("shared", "plain", "script", "new"):
            (top / name).write_text("new!")
            (top / name).chmod(0o777 if name in ("new", "plain") else 0o666)
        for name in ("sticky", "wide"):
            (top / name).mkdir(exist_ok=True)
            (top / name).chmod(0o1777)
        os.link(top / "shared", top / "twin")
        workspace.commit(mounted=True)
        modes = {path.name: path.stat().st_mode & 0o7777 for path in (tmp_path / "base").iterdir()}
        assert modes == {
            "shared": 0o666, "twin": 0o666, "plain": 0o777 & (~mask | 0o640), "script": 0o666 & (~mask | 0o755),
            "new": 0o777 & ~mask, "sticky": 0o1777, "wide": 0o777 & ~mask,
        }, {name: oct(mode) for name, mode in modes.items()}  # fmt: skip
        assert workspace.changes() == (), "what the caller does not give is no change that is left"

    assert in_child(work) == 0


@pytest.mark.usefixtures("few")
def test_a_run_that_changed_too_much_says_so_and_carries_nothing_over(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    here = tmp_path / "here"
    here.mkdir()
    policy = SandboxPolicy(isolation="strict")
    job = Job(argv=("sh", "-c", "for n in 1 2 3 4 5 6 7 8 9 10 11; do : > $n; done"), cwd=str(here))
    outcome = run(job, policy, commit=True, keep=str(tmp_path / "kept"))
    assert outcome.ok and not outcome.changes_complete and not outcome.committed and "too many" in outcome.reason
    assert "and more, too deep or too many" in explain(outcome)[-1] and outcome.to_dict()["changes_complete"] is False
    with pytest.raises(CheckpointError, match="too many"):
        run(job, policy, commit=True)
    assert not os.listdir(here)
    few = run(replace(job, argv=("sh", "-c", ": > 1")), policy, commit=True)
    assert few.committed and few.changes_complete and os.listdir(here) == ["1"]


@pytest.mark.parametrize("kind", ("overlay", "snapshot"))
@pytest.mark.parametrize("way", ("discard", "rollback"))
def test_more_attributes_than_can_be_listed_are_missed_in_words(
    way: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may hide what the overlay notes there. The control: without them it is committed."""
    with _changed(tmp_path, kind) as (transaction, layer):
        (layer / "d").mkdir()
        (layer / "d/file").write_text("x")
        made = transaction.create_checkpoint()
        (layer / "file").write_text("x")
        for path in (layer / "d", layer / "file"):
            os.setxattr(path, "user.many", b"")
        monkeypatch.setattr(os, "listxattr", partial(_too_many, os.listxattr))
        for _ in range(2):
            assert not transaction.changes().complete and CUT in transaction.diff()
            for refused in (transaction.commit, transaction.seal, transaction.create_checkpoint):
                with pytest.raises(CheckpointError, match="more attributes"):
                    refused()
        transaction.rollback(made.checkpoint_id) if way == "rollback" else transaction.discard()
        assert sorted(os.listdir(layer)) == (["d"] if way == "rollback" else [])
        if way == "rollback":
            assert "user.many" not in os.listxattr(layer / "d") and transaction.changes().complete
            transaction.commit()
            assert (tmp_path / "base/d/file").read_text() == "x"


def _too_many(plain: Callable[..., list[str]], place: str, **how: bool) -> list[str]:
    names = plain(place, **how)
    if "user.many" in names:
        raise OSError(errno.E2BIG, "too many")
    return names


@pytest.mark.parametrize("kind", ("overlay", "snapshot"))
def test_a_commit_can_be_held_to_what_was_looked_at(tmp_path: Path, kind: str) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base/old").write_text("old")
    with Transaction.create(tmp_path / "t", [tmp_path / "base"], kind=kind) as transaction:
        place = transaction.place(tmp_path / "base")
        layer = Path(transaction.layers[0][1], "upper") if kind == "overlay" else Path(place)
        (layer / "a").write_text("shown")
        sealed = transaction.seal()
        assert sealed == transaction.seal()
        wider, another = partial((layer / "a").chmod, 0o777), (layer / "b").touch
        for change in (wider, another, partial(_same_size, layer / "a")):
            change()
            assert transaction.seal() != sealed
            with pytest.raises(ConflictError, match="since it was looked at"):
                transaction.commit(sealed=sealed)
            assert os.listdir(tmp_path / "base") == ["old"]
            sealed = transaction.seal()
        transaction.commit(sealed=sealed)
        assert (tmp_path / "base/a").read_text() == "other"


@pytest.mark.parametrize("kind", ("overlay", "snapshot"))
def test_what_is_shown_after_a_seal_is_what_a_commit_held_to_it_writes(tmp_path: Path, kind: str) -> None:
    """A program that sees each look could show something else to every one."""
    with _changed(tmp_path, kind) as (transaction, layer):
        _put(layer, "evil")
        (layer / "link").symlink_to("evil")
        sealed = transaction.seal()
        _put(layer, "good")
        (layer / "also").touch()
        shown = (transaction.diff(), [each.path for each in transaction.changes()], transaction.links())
        assert "+evil" in shown[0] and "good" not in shown[0] and str(tmp_path / "base/also") not in shown[1]
        with pytest.raises(ConflictError, match="since it was looked at"):
            transaction.commit(sealed=sealed)
        assert transaction.diff() == shown[0], "until there is a new seal, for this one could be used again"
        _put(layer, "evil")
        (layer / "also").unlink()
        transaction.commit(sealed=sealed)
        assert (tmp_path / "base/file").read_text() == "evil\n"


@pytest.mark.parametrize("end", ("seal", "create_checkpoint", "unseal", "discard", "commit"))
def test_what_was_sealed_is_shown_until_something_else_is_done(tmp_path: Path, end: str) -> None:
    """The control: from then on the diff is of what is there."""
    with _changed(tmp_path, "overlay") as (transaction, layer):
        _put(layer, "evil")
        transaction.seal()
        _put(layer, "good")
        getattr(transaction, end)()
        _put(layer, "good")
        assert "evil" not in transaction.diff()


def test_what_was_sealed_can_be_shown_after_contents_that_nothing_needs_are_removed(tmp_path: Path) -> None:
    with _changed(tmp_path, "overlay") as (transaction, layer):
        made = transaction.create_checkpoint()
        for text in ("first", "other"):
            _put(layer, text)
            transaction.seal()
        transaction.delete_checkpoint(made.checkpoint_id)
        assert "+other" in transaction.diff()
        assert len(os.listdir(next(tmp_path.glob("t/**/blobs")))) == 1, "the control: of the first seal nothing is left"


@contextmanager
def _changed(top: Path, kind: str) -> Iterator[tuple[Transaction, Path]]:
    (top / "base").mkdir()
    with Transaction.create(top / "t", [top / "base"], kind=kind) as transaction:
        own = Path(transaction.layers[0][1], "upper")
        yield transaction, own if kind == "overlay" else Path(transaction.place(top / "base"))


def _put(layer: Path, text: str) -> None:
    """Always with the same time, as a program does that does not want to be noticed."""
    (layer / "file").write_text(f"{text}\n")
    os.utime(layer / "file", (1, 1))


def _same_size(path: Path) -> None:
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    path.write_text("other")
    os.utime(path, ns=times)
