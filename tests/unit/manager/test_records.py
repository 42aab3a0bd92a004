"""Records on disk: only our own are believed, where they were written, and never for less protection."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringfence import (
    CheckpointError,
    IsolationLevel,
    Job,
    SandboxConfig,
    SandboxManager,
    SandboxPolicy,
    Transaction,
    UsageError,
    run,
)
from ringfence.checkpoint.workspace import Workspace
from ringfence.cli import main
from ringfence.errors import ForeignError
from ringfence.manager.registry import METADATA, Damaged, Registry
from ringfence.model import state_folder
from ringfence.model.paths import within

pytestmark = [pytest.mark.system, pytest.mark.privileges]

LEVELS = (IsolationLevel.STRICT, IsolationLevel.PROCESS)
FORGED = "demo"


def forge(root: str, base: str, *, upper: str = "", old: bool = True) -> str:
    """A sandbox as a repository or a guest can write it: whoever carries its journal out writes into ``base``, or into
    what the link ``upper`` points to. Runs inside a guest too."""
    top = os.path.join(root, "demo")
    store = os.path.join(top, "checkpoints/0")
    for name in ("workspace", "layers/0", "layers/0/work", "checkpoints/0/blobs", "checkpoints/0/checkpoints"):
        os.makedirs(os.path.join(top, name), exist_ok=True)
    if upper:
        os.symlink(upper, os.path.join(top, "layers/0/upper"))
    text = b"planted\n"
    digest = hashlib.sha256(b"%d\n0 %d\n%s" % (len(text), len(text), text)).hexdigest()  # as contents are named
    with open(os.path.join(store, "blobs", digest), "wb") as file:
        file.write(text)
    entry = {"kind": "file", "mode": 0o755, "mtime_ns": 1, "size": len(text), "digest": digest}
    journal: dict[str, Any] = {"temporary": ".ringfence-0011223344556677"}
    if upper:
        journal |= {"op": "rollback", "current": "", "layer": {"planted": entry}}
    else:
        journal |= {"op": "commit", "now": {}, "target": {"planted": entry}, "rest": {}, "whole": False}
    config = {"auto_cleanup": True, "cleanup_age_hours": 1}
    documents = {
        "checkpoints/0/journal.json": journal,
        "transaction.json": {"version": 1, "kind": "overlay", "bases": [base], "hidden": []},
        "metadata.json": {"version": 1, "sandbox_id": "demo", "created_s": 1.0, "isolation": "process", "bases": [],
                          "command": [], "config": config, "state_data": {}},
    }  # fmt: skip
    for name, document in documents.items():
        with open(os.path.join(top, name), "w") as written:
            json.dump(document, written)
    if old:
        os.utime(os.path.join(top, "metadata.json"), (1, 1))
    return top


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "sandboxes"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/precious").write_text("mine")
    return tmp_path / "victim"


@pytest.fixture
def manager(root: Path) -> Iterator[SandboxManager]:
    with SandboxManager(sandbox_root=root) as made:
        yield made


def config(level: IsolationLevel = IsolationLevel.PROCESS, **more: object) -> SandboxConfig:
    return SandboxConfig(isolation_level=level, **more)  # type: ignore[arg-type]


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


# ---- forged ones


@pytest.mark.parametrize("linked", [False, True])
def test_a_forged_sandbox_is_listed_and_nothing_of_it_is_done(
    linked: bool, root: Path, victim: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forge(str(root), "/usr" if linked else str(victim), upper=str(victim) if linked else "")
    with SandboxManager(sandbox_root=root) as manager:
        (found,) = manager.stored_sandboxes()
        assert isinstance(found, Damaged) and "seal" in found.problem and "trust" in found.problem
        with pytest.raises(ForeignError) as error:
            manager.attach(FORGED)
        assert "trust=True" in error.value.hint
    for words in (["sandboxes"], ["diff", FORGED], ["sandboxes", "--prune", "0s"], ["commit", FORGED]):
        main([words[0], "--root", str(root), *words[1:]])
    assert (root / FORGED).is_dir() and names(victim) == ["precious"]
    assert main(["discard", "--root", str(root), FORGED]) == 0
    assert not (root / FORGED).exists() and names(victim) == ["precious"]


def test_the_control_a_forged_one_that_somebody_trusts_is_carried_out(root: Path, victim: Path) -> None:
    forge(str(root), str(victim))
    with SandboxManager(sandbox_root=root) as manager:
        manager.attach(FORGED, trust=True)
    assert (victim / "planted").read_text() == "planted\n"


def test_a_link_in_the_place_of_a_layer_is_followed_by_nobody_trusted_or_not(root: Path, victim: Path) -> None:
    (root.parent / "base").mkdir()
    forge(str(root), str(root.parent / "base"), upper=str(victim))
    with SandboxManager(sandbox_root=root) as manager, pytest.raises(CheckpointError):
        manager.attach(FORGED, trust=True)
    assert names(victim) == ["precious"] and (victim / "precious").read_text() == "mine"


@pytest.mark.parametrize("level", LEVELS)
def test_what_a_guest_plants_and_a_commit_carries_over_does_nothing(
    level: IsolationLevel, victim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "repo").mkdir()
    monkeypatch.chdir(tmp_path / "repo")
    with SandboxManager(config(level, allowed_paths=["."])) as manager, manager.sandbox() as context:
        place = str(context.working_directory / "sandboxes")
        done = manager.execute_in_sandbox(context, forge, {"root": place, "base": str(victim)})
        assert done.success, done.stderr
        manager.commit(context)
    assert (tmp_path / "repo/sandboxes" / FORGED / "checkpoints/0/journal.json").exists()
    with pytest.warns(UserWarning, match=r"\./sandboxes holds sandboxes of an earlier version"):
        manager = SandboxManager(config(level, allowed_paths=["."]))
    assert FORGED not in [each.sandbox_id for each in manager.stored_sandboxes()]
    with SandboxManager(sandbox_root="sandboxes") as other:
        assert [each.sandbox_id for each in other.stored_sandboxes()] == [FORGED]
    assert names(victim) == ["precious"]


def test_old_sandboxes_are_told_on_the_command_line_and_used_after_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()
    with SandboxManager(sandbox_root="sandboxes") as manager:
        context = manager.create_sandbox(config(allowed_paths=["base"]))
        manager.run(context, ["sh", "-c", "echo new > file"])
    unsealed(tmp_path / "sandboxes" / context.sandbox_id)
    assert main(["sandboxes"]) == 0
    assert "./sandboxes holds 1 sandbox of an earlier version" in capsys.readouterr().err
    assert main(["commit", "--root", "sandboxes", context.sandbox_id]) != 0
    assert main(["sandboxes", "--root", "sandboxes", "--trust", context.sandbox_id]) == 0
    assert "accepted as yours; it is based on base" in capsys.readouterr().out
    assert main(["commit", "--root", "sandboxes", context.sandbox_id]) == 0
    assert (tmp_path / "base/file").read_text() == "new\n"


def unsealed(folder: Path) -> None:
    """As an earlier version wrote it."""
    for path in folder.rglob("*.json"):
        if path.name in (METADATA, "transaction.json") or path.parent.parent.name == "checkpoints":
            document = json.loads(path.read_text())
            document.pop("seal")
            path.write_text(json.dumps(document))


# ---- our own, changed or elsewhere


def test_metadata_that_was_changed_is_not_believed(manager: SandboxManager, root: Path) -> None:
    context = manager.create_sandbox(config())
    manager.detach(context.sandbox_id)
    place = root / context.sandbox_id / METADATA
    sealed = place.read_text()
    place.write_text(sealed.replace('"isolation_level": "process"', '"isolation_level": "none"'))
    with pytest.raises(ForeignError):
        SandboxManager(sandbox_root=root).attach(context.sandbox_id)
    place.write_text(sealed)
    assert SandboxManager(sandbox_root=root).attach(context.sandbox_id)


@pytest.mark.parametrize("name", [METADATA, "transaction.json", "checkpoints/0/state.json"])
def test_records_of_one_sandbox_mean_nothing_in_another(name: str, manager: SandboxManager, root: Path) -> None:
    one, other = (manager.create_sandbox(config()).sandbox_id for _ in range(2))
    for each in (one, other):
        manager.detach(each)
    text = (root / one / name).read_text()
    (root / other / name).write_text(text.replace(one, other) if name != METADATA else text)
    with pytest.raises((ForeignError, UsageError)):
        SandboxManager(sandbox_root=root).attach(other)


def test_a_copy_of_a_sandbox_is_none_and_a_moved_root_must_be_trusted(
    manager: SandboxManager, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "base").mkdir()
    sandbox_id = manager.create_sandbox(config(allowed_paths=[str(tmp_path / "base")])).sandbox_id
    manager.detach(sandbox_id)
    shutil.copytree(root / sandbox_id, tmp_path / "copy")
    (root / sandbox_id).rename(tmp_path / "away")
    (tmp_path / "copy").rename(root / sandbox_id)
    with pytest.raises(ForeignError):
        SandboxManager(sandbox_root=root).attach(sandbox_id)
    shutil.rmtree(root / sandbox_id)
    (tmp_path / "away").rename(root / sandbox_id)
    root.rename(tmp_path / "moved")
    moved = SandboxManager(sandbox_root=tmp_path / "moved")
    with pytest.raises(ForeignError):
        moved.attach(sandbox_id)
    assert moved.attach(sandbox_id, trust=True)
    assert str(root) not in state_folder.own_places(), "it is not there any more"
    assert any(within(f"{tmp_path}/moved/{sandbox_id}", each) for each in state_folder.own_places())
    moved.close()


def broken_off(root: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A commit that stopped in the middle."""

    def stop(*_: object) -> None:
        raise OSError(5, "pulled out")

    base.mkdir()
    with SandboxManager(sandbox_root=root) as manager:
        context = manager.create_sandbox(config(allowed_paths=[str(base)]))
        manager.run(context, ["sh", "-c", "echo new > file"])
        with monkeypatch.context() as patch:
            patch.setattr(Workspace, "_finish_commit", stop)
            with pytest.raises(CheckpointError):
                manager.commit(context)
    return context.sandbox_id


def test_a_journal_that_was_carried_out_counts_no_more_when_somebody_puts_it_back(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox_id = broken_off(root, tmp_path / "base", monkeypatch)
    shutil.copytree(root / sandbox_id / "checkpoints", tmp_path / "kept")
    with SandboxManager(sandbox_root=root) as manager:
        manager.attach(sandbox_id)
    (tmp_path / "base/file").unlink()
    shutil.rmtree(root / sandbox_id / "checkpoints")
    (tmp_path / "kept").rename(root / sandbox_id / "checkpoints")
    with pytest.raises(ForeignError, match="journal"):
        SandboxManager(sandbox_root=root).attach(sandbox_id)
    assert names(tmp_path / "base") == []


def test_listing_and_cleaning_up_finish_nothing_and_opening_does(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sandbox_id = broken_off(root, tmp_path / "base", monkeypatch)
    os.utime(root / sandbox_id / METADATA, (1, 1))
    with SandboxManager(sandbox_root=root) as manager:
        assert [each.sandbox_id for each in manager.stored_sandboxes()] == [sandbox_id]
    for words in ([], ["--json"], ["--prune", "0s"]):
        assert main(["sandboxes", "--root", str(root), *words]) == 0
        assert "was interrupted in" in capsys.readouterr().out
    assert not (tmp_path / "base/file").exists() and (root / sandbox_id).is_dir()
    with SandboxManager(sandbox_root=root) as manager:
        manager.attach(sandbox_id)
    assert (tmp_path / "base/file").read_text() == "new\n"


# ---- who owns the directories


@pytest.mark.parametrize("bits", [0o777, 0o775, 0o722])
def test_a_root_in_which_others_can_replace_sandboxes_is_refused(bits: int, root: Path) -> None:
    root.mkdir()
    root.chmod(bits)
    with pytest.raises(UsageError, match="can be written by other users"):
        SandboxManager(sandbox_root=root)
    root.chmod(bits | 0o1000)
    SandboxManager(sandbox_root=root).close()


@pytest.mark.root
def test_a_root_of_another_user_is_refused(root: Path) -> None:
    root.mkdir(mode=0o755)
    os.chown(root, 12345, 12345)
    with pytest.raises(UsageError, match="belongs to another user"):
        SandboxManager(sandbox_root=root)


@pytest.mark.root
def test_folders_of_other_users_in_a_shared_root_are_not_even_opened(root: Path, victim: Path) -> None:
    top = forge(str(root), str(victim))
    Path(top, "lock").write_text("1\n/")
    for folder, _, files in os.walk(top):
        for name in ("", *files):
            os.chown(os.path.join(folder, name), 12345, 12345)
    root.chmod(0o1777)
    before = os.stat(top).st_atime_ns, os.stat(os.path.join(top, METADATA)).st_atime_ns
    with SandboxManager(sandbox_root=root) as manager:
        assert manager.stored_sandboxes() == []
        for use in (manager.attach, manager.destroy_sandbox):
            with pytest.raises(UsageError, match="another user"):
                use(FORGED)
        with pytest.raises(UsageError, match="another user"):
            manager.attach(FORGED, trust=True)
    assert before == (os.stat(top).st_atime_ns, os.stat(os.path.join(top, METADATA)).st_atime_ns)
    assert names(victim) == ["precious"]


@pytest.mark.parametrize("bits", [0o777, 0o770])
def test_a_sandbox_that_others_can_write_is_not_opened(bits: int, manager: SandboxManager, root: Path) -> None:
    sandbox_id = manager.create_sandbox(config()).sandbox_id
    manager.detach(sandbox_id)
    (root / sandbox_id).chmod(bits)
    with pytest.raises(UsageError, match="can be written by other users"):
        SandboxManager(sandbox_root=root).attach(sandbox_id)


@pytest.mark.parametrize("place", [b"/", b"/tmp", b"/tmp/ringfence-xyz", b"\0", b"0123456789abcdef\n/"])
def test_no_lock_makes_anybody_wait_for_a_folder_that_is_no_private_one(place: bytes, tmp_path: Path) -> None:
    Transaction.create(tmp_path / "tx", kind="snapshot").close()
    (tmp_path / "tx/lock").write_bytes(b"1\n" + place)
    began_s = time.monotonic()
    Transaction.open(tmp_path / "tx").close()
    assert time.monotonic() - began_s < 14, "it waits for 15 s where it believes the lock"


# ---- never for less protection


WEAKER: dict[str, dict[str, Any]] = {
    "isolation_level": {"isolation_level": "none", "allow_partial": True},
    "allow_network": {"allow_network": True, "allow_partial": True},
    "allow_partial": {"allow_partial": True},
    "environment_vars": {"environment_vars": {"LD_PRELOAD": "/tmp/evil.so"}},
    "readable_paths": {"readable_paths": ["/var"]},
    "enable_auto_rollback": {"enable_auto_rollback": False},
    "checkpoint_before_execution": {"checkpoint_before_execution": False},
}


@pytest.mark.parametrize("field", WEAKER)
def test_no_sandbox_on_disk_has_less_protection_than_the_manager_gives(
    field: str, manager: SandboxManager, root: Path
) -> None:
    less = SandboxConfig(**WEAKER[field])
    sandbox_id = manager.create_sandbox(less).sandbox_id
    manager.detach(sandbox_id)
    with SandboxManager(sandbox_root=root) as other:
        with pytest.raises(UsageError, match=field) as error:
            other.attach(sandbox_id)
        assert "attach(id, config)" in error.value.hint
        assert other.attach(sandbox_id, less).config == less
    with SandboxManager(less, sandbox_root=root) as other:
        assert other.attach(sandbox_id).config == less
    assert manager.attach(sandbox_id).config == less, "which it knows itself"


@pytest.mark.parametrize("hosts", [[], ["b.example"], ["a.example", "b.example"]])
def test_no_sandbox_on_disk_reaches_a_host_that_the_managers_list_has_not(
    hosts: list[str], manager: SandboxManager, root: Path
) -> None:
    level = "strict" if hosts else "process"  # which has all hosts or none
    online: dict[str, Any] = {"isolation_level": level, "allow_network": True, "allow_partial": True}
    sandbox_id = manager.create_sandbox(SandboxConfig(**online, allowed_hosts=hosts)).sandbox_id
    manager.detach(sandbox_id)
    narrow = SandboxConfig(**online, allowed_hosts=["a.example"])
    with SandboxManager(narrow, sandbox_root=root) as other, pytest.raises(UsageError, match="allowed_hosts"):
        other.attach(sandbox_id)
    for allowed in (["a.example", "b.example"], []) if hosts else ([],):
        with SandboxManager(SandboxConfig(**online, allowed_hosts=allowed), sandbox_root=root) as other:
            other.attach(sandbox_id)


def test_what_the_manager_blocks_is_blocked_in_every_sandbox_that_it_opens(
    manager: SandboxManager, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base/secret").write_text("secret")
    strict = config(IsolationLevel.STRICT, allowed_paths=[str(tmp_path / "base")], blocked_paths=[])
    sandbox_id = manager.create_sandbox(strict).sandbox_id
    assert manager.run(manager.attach(sandbox_id), ["cat", "secret"]).stdout == "secret"
    manager.detach(sandbox_id)
    with SandboxManager(config(blocked_paths=[str(tmp_path / "base/secret")]), sandbox_root=root) as other:
        context = other.attach(sandbox_id)
        assert context.blocked_paths == [tmp_path / "base/secret"]
        assert not other.run(context, ["cat", "secret"]).success


def test_from_a_working_copy_nothing_can_be_taken_away_later(
    manager: SandboxManager, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base/secret").write_text("secret")
    sandbox_id = manager.create_sandbox(config(allowed_paths=[str(tmp_path / "base")])).sandbox_id
    manager.detach(sandbox_id)
    other = SandboxManager(config(blocked_paths=[str(tmp_path / "base/secret")]), sandbox_root=root)
    with pytest.raises(UsageError, match="working copy"):
        other.attach(sandbox_id)


def test_the_folders_of_a_sandbox_stay_the_same_whatever_config_is_given(
    manager: SandboxManager, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "base").mkdir()
    sandbox_id = manager.create_sandbox(config(allowed_paths=[str(tmp_path / "base")])).sandbox_id
    manager.detach(sandbox_id)
    with SandboxManager(sandbox_root=root) as other:
        with pytest.raises(UsageError, match="is based on"):
            other.attach(sandbox_id, config(allowed_paths=[str(tmp_path)]))
        assert other.attach(sandbox_id, config(max_processes=7)).config.allowed_paths == [tmp_path / "base"]


# ---- what guests see of it


@pytest.mark.parametrize("level", LEVELS)
def test_no_guest_sees_any_sandbox_and_no_commit_changes_one(
    level: IsolationLevel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: what lies beside the root is seen, and changed."""
    for name in ("sandboxes", "beside"):
        (tmp_path / "repo" / name).mkdir(parents=True)
        (tmp_path / "repo" / name / "note").write_text("note")
    monkeypatch.chdir(tmp_path / "repo")
    look = "cat {0}/note {0}/*/transaction.json; mkdir -p {0}/new; for each in {0}/*/; do echo bad > $each/marker; done"
    with SandboxManager(config(level, allowed_paths=["."]), sandbox_root="sandboxes") as manager:
        neighbour, context = manager.create_sandbox(), manager.create_sandbox()
        assert manager.run(context, ["sh", "-c", f"{look.format('beside')}; true"]).stdout == "note"
        assert manager.run(context, ["sh", "-c", f"{look.format('sandboxes')}; true"]).stdout == ""
        paths = manager.commit(context).paths
        assert [path for path in paths if "/sandboxes/" in path] == []
        assert "marker" not in os.listdir(neighbour.folder) and "new" not in os.listdir("sandboxes")
    assert (tmp_path / "repo/beside/new/marker").read_text() == "bad\n"


@pytest.mark.parametrize("level", LEVELS)
def test_a_root_below_a_readable_folder_is_not_read(level: IsolationLevel, tmp_path: Path) -> None:
    (tmp_path / "wide/beside").mkdir(parents=True)
    (tmp_path / "wide/beside/note").write_text("note")
    (tmp_path / "base").mkdir()
    chosen = config(level, readable_paths=[str(tmp_path / "wide")], allowed_paths=[str(tmp_path / "base")])
    with SandboxManager(chosen, sandbox_root=tmp_path / "wide/sandboxes") as manager, manager.sandbox() as context:
        assert manager.run(context, ["cat", str(tmp_path / "wide/beside/note")]).stdout == "note"
        for name in (METADATA, "transaction.json"):
            told = manager.run(context, ["cat", str(context.folder / name)])
            assert not told.success and told.stdout == ""


def test_a_private_folder_that_would_be_hidden_is_refused_with_the_way_out(tmp_path: Path) -> None:
    chosen = config(IsolationLevel.STRICT, readable_paths=[str(tmp_path)])
    with SandboxManager(chosen, sandbox_root=tmp_path / "sandboxes") as manager, manager.sandbox() as context:
        with pytest.raises(UsageError, match="is in the readable") as error:
            manager.run(context, ["true"])
        assert "allowed_paths" in error.value.hint


def test_a_folder_of_ours_can_be_neither_worked_on_nor_read(tmp_path: Path) -> None:
    manager = SandboxManager(sandbox_root=tmp_path / "sandboxes")
    (tmp_path / "sandboxes").mkdir()
    state = Path(os.environ["XDG_STATE_HOME"], "ringfence")
    for level in LEVELS:
        for place in (state, tmp_path / "sandboxes"):
            with pytest.raises(UsageError, match="directory of ringfence's own"):
                manager.create_sandbox(config(level, allowed_paths=[str(place)]))
    assert Registry(tmp_path / "sandboxes").root and list(manager.stored_sandboxes()) == []


def test_no_warning_where_there_is_nothing_to_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sandboxes/notes").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SandboxManager().close()


def test_a_root_in_a_project_is_hidden_from_every_run_over_it(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    root = tmp_path / "project" / "kept"
    with SandboxManager(SandboxConfig(isolation_level="strict", sandbox_root=root)) as manager:
        context = manager.create_sandbox()
        job = Job(argv=("sh", "-c", "ls -A; mkdir -p kept/x; echo x > kept/x/y; echo x > new"), cwd=str(root.parent))
        outcome = run(job, SandboxPolicy(isolation="strict"), commit=True)
        assert outcome.stdout == b"" and [change.path for change in outcome.changes] == ["new"]
        assert (root.parent / "new").exists() and not (root / "x").exists()
        assert context.sandbox_id in os.listdir(root)


@pytest.mark.parametrize("level", LEVELS)
def test_no_guest_sees_a_transaction_that_is_no_managers(level: IsolationLevel, tmp_path: Path) -> None:
    """The control: what lies beside it is read."""
    (tmp_path / "wide/code").mkdir(parents=True)
    (tmp_path / "wide/note").write_text("note")
    with Transaction.create(tmp_path / "wide/tx", [tmp_path / "wide/code"], kind="snapshot"):
        look = f"cd {tmp_path}/wide; cat note tx/transaction.json tx/lock; ls tx"
        policy = SandboxPolicy(isolation=level, readable_paths=(str(tmp_path / "wide"),))
        assert run(["sh", "-c", look], policy).stdout == b"note"


@pytest.mark.parametrize("name", ["/dev/null", "file"])
def test_what_is_no_directory_is_not_noted(name: str, tmp_path: Path) -> None:
    """From then on no job on this host could be shown it."""
    (tmp_path / "file").write_text("")
    before = set(state_folder.own_places())
    with pytest.raises(UsageError, match="is not a directory"):
        state_folder.note_root(str(tmp_path / name))
    assert set(state_folder.own_places()) - before <= {state_folder.state_folder()}


def test_roots_that_are_gone_are_forgotten_and_none_is_lost(tmp_path: Path) -> None:
    places = [tmp_path / f"root{number}" for number in range(20)]
    for place in places:
        place.mkdir()
    threads = [threading.Thread(target=state_folder.note_root, args=(str(place),)) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {str(place) for place in places} <= set(state_folder.own_places())
    (tmp_path / "in its place").mkdir()
    for place in places[1:]:
        place.rmdir()
    (tmp_path / "in its place").rename(places[1])  # somebody else's directory
    (tmp_path / "another").mkdir()
    state_folder.note_root(str(tmp_path / "another"))
    now = set(state_folder.own_places())
    assert {str(places[0]), str(tmp_path / "another")} <= now and now.isdisjoint(map(str, places[1:]))


def test_a_folder_that_can_not_become_a_transaction_is_not_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project/file").write_text("x")
    with pytest.raises(UsageError, match="not empty"):
        Transaction.create(tmp_path / "project")
    assert str(tmp_path / "project") not in state_folder.own_places()


def test_a_root_on_a_disk_that_is_not_mounted_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays hidden, and so it is when the disk comes back."""
    (tmp_path / "disk/boxes").mkdir(parents=True)
    (tmp_path / "another").mkdir()
    seen = os.stat

    def on_a_disk(path: str, **more: Any) -> os.stat_result:
        found = seen(path, **more)
        return os.stat_result((*found[:2], found.st_dev + 1, *found[3:10])) if "disk" in str(path) else found

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", on_a_disk)
        state_folder.note_root(str(tmp_path / "disk/boxes"))
    (tmp_path / "disk/boxes").rmdir()  # as if it were unmounted: the bare directory is on another device
    state_folder.note_root(str(tmp_path / "another"))
    assert {str(tmp_path / "disk/boxes"), str(tmp_path / "another")} <= set(state_folder.own_places())


def test_the_usual_state_folder_is_hidden_from_those_who_have_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    usual = tmp_path / ".local/state/ringfence"
    assert str(usual) not in state_folder.own_places(), "the control: there is none"
    with monkeypatch.context() as others:
        others.delenv("XDG_STATE_HOME")
        Transaction.create(tmp_path / "tx").close()
    assert {str(usual), str(tmp_path / "tx")} <= set(state_folder.own_places())
