"""A run whose caller named no directory writes into a new one, which nobody else can exchange. A run that does not come
to write anything leaves no directory."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from ringfence.errors import UsageError
from ringfence.evidence.keyfile import SEED_FILE
from ringfence.proctor.place.new_output import FOLDER, new_output, output_of_run

pytestmark = pytest.mark.skipif(os.name == "nt", reason="proctored runs need Linux")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_is_named_by_task_and_time_and_is_for_us_alone(tmp_path: Path) -> None:
    with new_output("sum") as path:
        assert Path(path).parent == tmp_path / FOLDER and os.listdir(path) == []
        assert re.fullmatch(r"sum-\d{8}T\d{6}Z", os.path.basename(path))
        assert {os.stat(each).st_mode & 0o777 for each in (path, FOLDER)} == {0o700}


def test_two_runs_in_one_second_have_folders_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "gmtime", lambda: time.struct_time((2030, 1, 2, 3, 4, 5, 0, 1, 0)))
    with new_output("sum") as first, new_output("sum") as second:
        assert (os.path.basename(first), os.path.basename(second)) == ("sum-20300102T030405Z", "sum-20300102T030405Z-2")


def test_what_was_written_stays_and_an_empty_folder_goes(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), new_output("sum"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with new_output("sum") as path:
        Path(path, "verdict.json").touch()
    assert Path(path, "verdict.json").exists()


def test_no_id_leads_elsewhere(tmp_path: Path) -> None:
    with new_output("../../elsewhere") as path:
        assert Path(path).parent == tmp_path / FOLDER


@pytest.mark.parametrize("trap", ["link", "file", "open to others"])
def test_a_folder_that_somebody_else_may_change_is_refused(tmp_path: Path, trap: str) -> None:
    place = tmp_path / FOLDER
    if trap == "link":
        place.symlink_to(tmp_path)
    elif trap == "file":
        place.touch()
    else:
        place.mkdir()
        place.chmod(0o777)
    with pytest.raises(UsageError), new_output("sum"):
        pytest.fail("it was taken")
    assert {each.name for each in tmp_path.iterdir()} == {FOLDER}


def test_a_current_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    os.rmdir(tmp_path / "gone")
    with pytest.raises(UsageError, match="No such file") as told, new_output("sum"):
        pytest.fail("there is no directory")
    assert "--out" in told.value.hint


# ---- one that was named


@pytest.mark.parametrize("key", [False, True])
def test_a_refused_run_takes_back_all_that_was_made_for_it(tmp_path: Path, key: bool) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(UsageError), output_of_run(str(tmp_path / "there" / "a" / "b" / "out")) as folder:
        if key:
            Path(folder, SEED_FILE).write_text("00" * 32)
        raise UsageError("found late")
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "there"]


def test_a_folder_that_was_there_stays_and_is_empty_again(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir(mode=0o700)
    with pytest.raises(KeyboardInterrupt), output_of_run(str(tmp_path / "out")) as folder:
        Path(folder, SEED_FILE).write_text("00" * 32)
        raise KeyboardInterrupt
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "out"]


def test_what_a_run_wrote_stays_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(UsageError), output_of_run(str(tmp_path / "out")) as folder:
        for name in (SEED_FILE, "final.diff"):
            Path(folder, name).touch()
        raise UsageError("found late")
    assert {each.name for each in (tmp_path / "out").iterdir()} == {SEED_FILE, "final.diff"}
    with output_of_run(str(tmp_path / "good")) as folder:
        Path(folder, SEED_FILE).touch()
    assert Path(folder, SEED_FILE).exists(), "control: a run that ends well keeps what it made"


def test_an_output_that_is_refused_itself_leaves_no_folder_above_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError), output_of_run(str(tmp_path / "a" / ("o" * 300))):
        pytest.fail("no directory has such a name")
    assert list(tmp_path.iterdir()) == []
