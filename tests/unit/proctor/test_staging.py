"""The output directory of a run, and its copy of the workspace."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from ringfence.checkpoint import content
from ringfence.errors import SandboxError, UsageError
from ringfence.proctor import staging
from ringfence.proctor.task import Grader, Task
from ringfence.proctor.task_policy import TaskPolicy

pytestmark = pytest.mark.privileges

# ---- shortcoming 14: a reused output directory keeps the earlier workspace and reward file


def test_an_output_folder_is_made_for_us_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = staging.fresh_output(str(tmp_path / "a" / "out"))
    finally:
        os.umask(before)
    assert made == str(tmp_path / "a" / "out") and stat.S_IMODE(os.stat(made).st_mode) == 0o700


def test_an_empty_folder_of_ours_will_do_and_becomes_private(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir(mode=0o755)
    assert stat.S_IMODE(os.stat(staging.fresh_output(str(tmp_path / "out"))).st_mode) == 0o700


@pytest.mark.parametrize("name", ["verdict.json", "reward.txt", ".hidden", "workspace/"])
def test_an_output_folder_that_an_earlier_run_used_is_refused(tmp_path: Path, name: str) -> None:
    """Shortcoming 14. Nothing in it is changed or removed either."""
    out = tmp_path / "out"
    out.mkdir(mode=0o755)
    (out / name).mkdir() if name.endswith("/") else (out / name).write_text("1")
    with pytest.raises(UsageError, match="is not empty"):
        staging.fresh_output(str(out))
    assert os.listdir(out) == [name.rstrip("/")] and stat.S_IMODE(out.stat().st_mode) == 0o755


@pytest.mark.parametrize("kind", ["link", "dangling", "file"])
def test_what_is_no_folder_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "other").mkdir()
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("")
    else:
        out.symlink_to(tmp_path / ("other" if kind == "link" else "missing"))
    with pytest.raises(UsageError, match="not a directory"):
        staging.fresh_output(str(out))
    assert os.listdir(tmp_path / "other") == [] and not (tmp_path / "missing").exists()


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out").chmod(0o777)
    with pytest.raises(UsageError, match="can be written by other users"):
        staging.fresh_output(str(tmp_path / "out"))


def test_where_no_folder_can_be_made_that_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="Not a directory"):
        staging.fresh_output(str(tmp_path / "file" / "out"))


# ---- the copy


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "task" / "workspace"
    (made / "src" / "deep").mkdir(parents=True)
    (tmp_path / "task" / "oracle").mkdir()
    (tmp_path / "task" / "oracle" / "answer").write_text("42")
    (tmp_path / "out").mkdir(mode=0o700)
    return made


def _task(workspace: Path, **policy: object) -> Task:
    top = workspace.parent
    return Task(id="t", workspace=str(workspace), oracle=str(top / "oracle"), folder=str(top),
                grader=Grader(script=str(top / "grade.sh")), policy=TaskPolicy(**policy))  # fmt: skip


def _staged(workspace: Path, tmp_path: Path, **policy: object) -> Path:
    return Path(staging.stage(_task(workspace, **policy), str(tmp_path / "out")))


def _refused(workspace: Path, tmp_path: Path, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        _staged(workspace, tmp_path)
    assert os.listdir(tmp_path / "out") == []  # nothing is left


def test_files_folders_modes_and_times_are_copied(workspace: Path, tmp_path: Path) -> None:
    (workspace / "run.sh").write_text("#!/bin/sh\n")
    (workspace / "run.sh").chmod(0o755)
    (workspace / "src" / "deep" / "ro").write_text("x")
    (workspace / "src" / "deep" / "ro").chmod(0o444)
    (workspace / os.fsdecode(b"n\xff\n")).write_text("odd")
    os.utime(workspace / "src" / "deep" / "ro", ns=(5, 7_000_000_000))
    os.utime(workspace / "src", ns=(5, 9_000_000_000))
    staged = _staged(workspace, tmp_path)
    assert sorted(os.listdir(staged)) == sorted([os.fsdecode(b"n\xff\n"), "run.sh", "src"])
    assert stat.S_IMODE((staged / "run.sh").stat().st_mode) == 0o755
    ro = staged / "src" / "deep" / "ro"
    assert (ro.read_text(), stat.S_IMODE(ro.stat().st_mode), ro.stat().st_mtime_ns) == ("x", 0o444, 7_000_000_000)
    assert (staged / "src").stat().st_mtime_ns == 9_000_000_000


def test_nothing_of_the_copy_is_joined_to_the_original(workspace: Path, tmp_path: Path) -> None:
    (workspace / "a").write_text("before")
    os.link(workspace / "a", workspace / "b")
    os.link(workspace.parent / "oracle" / "answer", workspace / "c")
    staged = _staged(workspace, tmp_path)
    assert [(staged / name).stat().st_nlink for name in "abc"] == [1, 1, 1]
    (staged / "a").write_text("after")
    (staged / "c").write_text("changed")
    assert (workspace / "a").read_text() == "before" == (staged / "b").read_text()
    assert (workspace.parent / "oracle" / "answer").read_text() == "42"


def test_set_id_bits_are_not_copied(workspace: Path, tmp_path: Path) -> None:
    (workspace / "su").write_text("x")
    (workspace / "su").chmod(0o6755)
    (workspace / "src").chmod(0o1777)
    staged = _staged(workspace, tmp_path)
    assert [stat.S_IMODE((staged / name).stat().st_mode) for name in ("su", "src")] == [0o755, 0o777]


def test_a_sparse_file_stays_sparse(workspace: Path, tmp_path: Path) -> None:
    with open(workspace / "huge", "wb") as file:
        file.truncate(1 << 40)
        file.write(b"start")
    made = (_staged(workspace, tmp_path) / "huge").stat()
    assert made.st_size == 1 << 40 and made.st_blocks * 512 < 1 << 24


@pytest.mark.parametrize("text", ["src/deep", "missing", "/usr/bin/env", "/workspace/src", "../../../../etc/hostname"])
def test_a_link_stays_the_link_that_it_is(workspace: Path, tmp_path: Path, text: str) -> None:
    (workspace / "link").symlink_to(text)
    assert os.readlink(_staged(workspace, tmp_path) / "link") == text


@pytest.mark.parametrize("text", [
    "../oracle/answer", "src/../../oracle/answer", "../grade.sh", "{top}/oracle/answer", "{top}/oracle", "..", "{top}",
    "{top}/workspace/src", "/oracle/answer", "../task/instruction.md", "{tmp}/way/oracle/answer", "../../oracle/x",
    "self/self/../../oracle/x",
])  # fmt: skip
def test_no_link_names_the_tasks_own_files(workspace: Path, tmp_path: Path, text: str) -> None:
    """On the host, or where a sandbox has them."""
    top = workspace.parent
    (tmp_path / "way").symlink_to(top)
    (workspace / "self").symlink_to(".")
    (workspace / "src" / "link" if text.startswith("../../") else workspace / "link").symlink_to(
        text.format(top=top, tmp=tmp_path)
    )
    _refused(workspace, tmp_path, "is a link to the task's own files")


def test_a_link_to_a_folder_is_not_gone_through(workspace: Path, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (private / "key").write_text("secret")
    (workspace / "dir").symlink_to(private)
    staged = _staged(workspace, tmp_path)
    assert (staged / "dir").is_symlink() and (workspace / "dir" / "key").exists()  # control: it leads there


@pytest.mark.parametrize("kind", ["fifo", "socket"])
def test_a_special_file_is_refused_and_not_waited_for(workspace: Path, tmp_path: Path, kind: str) -> None:
    place = workspace / "src" / "odd"
    if kind == "fifo":
        os.mkfifo(place)
        _refused(workspace, tmp_path, "odd is a FIFO, a socket or a device")
        return
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(place))
        _refused(workspace, tmp_path, "odd is a FIFO, a socket or a device")


def test_too_many_files_are_told(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "MAX_ENTRIES", 5)
    for number in range(6):
        (workspace / str(number)).write_text("")
    _refused(workspace, tmp_path, "more than 5 files and directories")


def test_too_deep_folders_are_told(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "MAX_DEPTH", 20)
    (workspace / Path(*["d"] * 30)).mkdir(parents=True)
    _refused(workspace, tmp_path, "more than 20 levels")


def test_a_file_that_can_not_be_read_is_told(workspace: Path, tmp_path: Path) -> None:
    (workspace / "secret").write_text("x")
    (workspace / "secret").chmod(0)
    if os.geteuid() == 0:
        assert (_staged(workspace, tmp_path) / "secret").read_text() == "x"
        return
    with pytest.raises(SandboxError, match="secret: Permission denied"):
        _staged(workspace, tmp_path)
    assert os.listdir(tmp_path / "out") == []


def test_a_full_disk_is_an_error_and_leaves_nothing(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (workspace / "a").write_text("x")
    monkeypatch.setattr(content, "fill", full)
    with pytest.raises(SandboxError, match="No space left") as caught:
        _staged(workspace, tmp_path)
    assert not isinstance(caught.value, UsageError) and os.listdir(tmp_path / "out") == []


def test_a_run_in_the_workspace_is_refused(workspace: Path) -> None:
    """It would copy itself for ever."""
    out = workspace / "out"
    out.mkdir()
    with pytest.raises(UsageError, match="is in the workspace"):
        staging.stage(_task(workspace), str(out))


def test_an_earlier_copy_is_never_used_again(workspace: Path, tmp_path: Path) -> None:
    """Shortcoming 14."""
    staged = _staged(workspace, tmp_path)
    (staged / "left-by-an-agent").write_text("answer")
    with pytest.raises(SandboxError):
        _staged(workspace, tmp_path)
    assert (staged / "left-by-an-agent").exists()  # of the other run, whose directory it is


@pytest.mark.parametrize("kind", ["folder", "file", "nested"])
def test_a_repository_without_a_word_about_it_is_refused(workspace: Path, tmp_path: Path, kind: str) -> None:
    """Shortcoming 15: its later history, and the operator's settings and remotes, would be the agent's."""
    place = workspace / "src" / ".git" if kind == "nested" else workspace / ".git"
    place.write_text("gitdir: /somewhere") if kind == "file" else place.mkdir()
    _refused(workspace, tmp_path, "is a git repository")


def test_a_repository_that_is_a_part_of_the_task_arrives_as_it_is(workspace: Path, tmp_path: Path) -> None:
    (workspace / ".git").mkdir()
    (workspace / ".git" / "HEAD").write_text("ref: refs/heads/x")
    assert (_staged(workspace, tmp_path, keep_git=True) / ".git" / "HEAD").read_text() == "ref: refs/heads/x"
