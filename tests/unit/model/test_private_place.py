"""The one directory for what we make for ourselves: ours alone, or not used, and known to all who must hide it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringfence.errors import SetupError, UsageError
from ringfence.model import state_folder
from ringfence.model.own import noted_roots, private_place

pytestmark = pytest.mark.privileges
NAME = f"ringfence-{os.geteuid()}"


@pytest.fixture
def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where those lie who set no variable."""
    (tmp_path / "usual").mkdir()
    monkeypatch.setattr(private_place, "_USUAL", str(tmp_path / "usual"))
    monkeypatch.delenv("TMPDIR", raising=False)
    return tmp_path / "usual" / NAME


@pytest.fixture
def elsewhere(usual: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "elsewhere"))
    return tmp_path / "elsewhere" / NAME


@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_it_is_for_us_alone_whatever_the_umask(umask: int, usual: Path) -> None:
    before = os.umask(umask)
    try:
        assert state_folder.private_place() == str(usual)
    finally:
        os.umask(before)
    assert usual.stat().st_mode & 0o7777 == 0o700 and str(usual) in state_folder.own_places()
    assert state_folder.private_place() == str(usual), "and once more"


def _link(place: Path) -> None:
    (place.parent / "other").mkdir(mode=0o700)
    place.symlink_to("other")


def _open(place: Path) -> None:
    place.mkdir()
    place.chmod(0o755)


WRONG = {"a link": _link, "a file": Path.touch, "open to others": _open}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_not_ours_alone_is_never_used(what: str, usual: Path) -> None:
    WRONG[what](usual)
    before = sorted(usual.parent.iterdir())
    with pytest.raises(SetupError, match="private directory") as error:
        state_folder.private_place()
    assert str(usual) in str(error.value) and error.value.hint
    assert sorted(usual.parent.iterdir()) == before and (usual.is_file() or not list(usual.iterdir()))


def test_somebody_elses_is_never_used(usual: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state_folder.private_place()
    monkeypatch.setattr(private_place, "_in", lambda folder: os.path.join(folder, NAME))
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(SetupError, match="another user"):
        private_place.made()


def test_one_that_lies_elsewhere_is_known_to_those_who_have_the_usual_one(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert state_folder.private_place() == str(elsewhere)
    monkeypatch.delenv("TMPDIR")
    assert str(elsewhere) in state_folder.own_places()
    elsewhere.rmdir()
    other = elsewhere.with_name("other")
    other.mkdir()
    noted_roots.note(private_place.path(), str(other))
    assert str(elsewhere) not in state_folder.own_places(), "the control: it is gone"


def test_where_the_usual_one_is_taken_the_state_folder_knows_it(
    elsewhere: Path, usual: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _link(usual)
    assert state_folder.private_place() == str(elsewhere)
    assert str(elsewhere) in noted_roots.noted(state_folder.state_folder())
    monkeypatch.setattr("ringfence.model.state_folder.note_root", _refuse)
    with pytest.raises(UsageError):
        state_folder.private_place()


def _refuse(_: str) -> None:
    raise UsageError("nowhere")


def test_what_another_user_writes_down_in_its_place_is_not_believed(
    elsewhere: Path, usual: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be hidden from every guest, and no commit would carry over what changed in it."""
    (tmp_path / "project").mkdir()
    usual.mkdir(mode=0o700)
    noted_roots.note(str(usual), str(tmp_path / "project"))
    assert str(tmp_path / "project") in private_place.known(), "the control: in a directory of ours it counts"
    looked = os.lstat
    monkeypatch.setattr(os, "lstat", lambda path: _of_another(looked(path)) if path == str(usual) else looked(path))
    assert private_place.known() == [str(elsewhere), str(usual)]


def _of_another(status: os.stat_result) -> os.stat_result:
    return os.stat_result((*status[:4], status.st_uid + 1, *status[5:10]))


def test_a_link_in_its_place_makes_nothing_ours_and_keeps_nothing_of_ours_from_being_known(
    elsewhere: Path, usual: Path, tmp_path: Path
) -> None:
    usual.symlink_to(tmp_path)
    assert private_place.known() == [str(elsewhere), str(usual)]
    assert state_folder.private_place() == str(elsewhere)
    assert str(elsewhere) in noted_roots.noted(state_folder.state_folder())


def test_a_job_that_starts_sandboxes_itself_hides_its_own_alone(
    usual: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its working directory lies in the usual one, and would be hidden with it."""
    inner = Path(state_folder.private_place(), "0123456789abcdef", "tmp")
    inner.mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(inner))
    assert private_place.known() == [state_folder.private_place()] == [str(inner / NAME)]
    assert noted_roots.noted(str(usual)) == []
