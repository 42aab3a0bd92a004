"""The private directory: files go where they should, whatever an earlier job left there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.private_folders import left_in

from ringfence.backends.scratch import Scratch
from ringfence.errors import SetupError, UsageError
from ringfence.model.job import Job
from ringfence.model.policy import SandboxPolicy

pytestmark = pytest.mark.privileges


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    made = Scratch()
    yield made
    made.remove()
    assert left_in(tmp_path / "tmp") == []


def test_files_are_put_below_the_private_folder(scratch) -> None:
    folder = Path(scratch.prepare(Job(argv=("x",), files={"a/b/c": b"1", "d": b"2"})))
    assert (folder / "a/b/c").read_bytes() == b"1" and (folder / "d").read_bytes() == b"2"
    assert os.stat(scratch.path).st_mode & 0o777 == 0o700


def test_a_folder_that_is_a_link_is_not_gone_through(scratch, tmp_path: Path) -> None:
    outside, work = tmp_path / "outside", tmp_path / "work"
    outside.mkdir()
    work.mkdir()
    (work / "sub").symlink_to(outside)
    with pytest.raises(SetupError, match="put the job's files"):
        scratch.prepare(Job(argv=("x",), cwd=str(work), files={"sub/file": b"evil"}))
    assert os.listdir(outside) == []
    (work / "sub" / "file").write_bytes(b"x")  # the control: a plain open goes through
    assert os.listdir(outside) == ["file"]


def test_a_file_that_is_a_link_of_either_kind_is_replaced_not_written_through(scratch, tmp_path: Path) -> None:
    precious, work = tmp_path / "precious", tmp_path / "work"
    precious.write_text("precious")
    work.mkdir()
    (work / "soft").symlink_to(precious)
    os.link(precious, work / "hard")
    scratch.prepare(Job(argv=("x",), cwd=str(work), files={"soft": b"new", "hard": b"new"}))
    assert precious.read_text() == "precious"
    assert (work / "soft").read_bytes() == (work / "hard").read_bytes() == b"new" and not (work / "soft").is_symlink()


def test_a_pipe_in_place_of_a_file_does_not_hold_the_caller(scratch, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    scratch.prepare(Job(argv=("x",), cwd=str(tmp_path), files={"pipe": b"new"}))
    assert (tmp_path / "pipe").read_bytes() == b"new"


def test_a_folder_in_place_of_a_file_is_a_set_up_error_and_no_descriptor_stays_open(scratch, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    scratch.prepare()  # it holds a lock from here on
    before = sorted(os.listdir("/dev/fd"))
    (tmp_path / "file").write_bytes(b"")
    for name in ("folder", "file/below"):
        with pytest.raises(SetupError):
            scratch.prepare(Job(argv=("x",), cwd=str(tmp_path), files={name: b""}))
    assert sorted(os.listdir("/dev/fd")) == before


def test_a_working_folder_must_exist(scratch) -> None:
    with pytest.raises(UsageError, match="no such directory"):
        scratch.prepare(Job(argv=("x",), cwd="/no/such/folder"))


def test_a_relative_place_for_temporary_files_becomes_absolute(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", ".")
    scratch = Scratch()
    scratch.prepare(Job(argv=("x",)))
    assert os.path.isabs(scratch.path) and scratch.path.startswith(str(tmp_path))
    scratch.remove()
    scratch.remove()
    assert left_in(tmp_path) == []


def test_no_place_for_the_folder_is_a_set_up_error(monkeypatch) -> None:
    monkeypatch.setenv("TMPDIR", "/no/such/folder")
    with pytest.raises(SetupError, match="private directory"):
        Scratch().prepare(Job(argv=("x",)))


def test_the_environment_is_small_and_each_layer_goes_over_the_one_below(scratch, monkeypatch) -> None:
    monkeypatch.setenv("SECRET", "s")
    monkeypatch.setenv("PASSED", "caller")
    policy = SandboxPolicy(environment={"A": "policy", "B": "policy"}, pass_environment=("PASSED", "ABSENT"))
    job = Job(argv=("x",), environment={"B": "job"})
    scratch.prepare(job)
    found = scratch.environment(policy, job)
    assert set(found) == {"PATH", "HOME", "TMPDIR", "LANG", "PASSED", "A", "B"}
    assert (found["PASSED"], found["A"], found["B"]) == ("caller", "policy", "job")
    assert found["HOME"].startswith(scratch.path) and found["TMPDIR"].startswith(scratch.path)
    assert "TERM" in scratch.environment(policy, Job(argv=("x",), terminal=True))
