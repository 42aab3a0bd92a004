"""Where a job may work, what a policy's paths must be, and what of the working folder may be written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringfence import Job, PolicyError, SandboxPolicy, UsageError, run, run_pytests_v2
from ringfence.sandbox import workplaces
from ringfence.steps import zygote_steps

pytestmark = [pytest.mark.system, pytest.mark.privileges]

STRICT = SandboxPolicy(isolation="strict")


@pytest.mark.parametrize("folder", ["/", "/usr", "/home", "/proc", "/proc/self", "/sys", "/dev", "/sys/kernel"])
def test_what_can_not_be_worked_in_is_said_with_a_way_out(folder: str) -> None:
    with pytest.raises(UsageError, match="can't be a workspace") as refused:
        run(Job(argv=("true",), cwd=folder), STRICT)
    assert "change to a folder" in refused.value.hint


@pytest.mark.parametrize("folder", ["/etc", "/etc/ssl", "/var"])
def test_what_is_the_hosts_is_asked_for_first(folder: str) -> None:
    with pytest.raises(UsageError, match="can read all of it") as refused:
        run(Job(argv=("true",), cwd=folder), STRICT)
    assert "--here-anyway" in refused.value.hint and "readable_paths" in refused.value.hint


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "homes" / "me"
    (folder / ".ssh").mkdir(parents=True)
    (folder / ".ssh" / "id").write_text("PRIVATE")
    (folder / "project").mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


def test_a_home_is_shown_only_if_it_is_named(home: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(home)
    for folder in (home, tmp_path / "link", home.parent):
        with pytest.raises(UsageError, match="home directory"):
            run(Job(argv=("true",), cwd=str(folder)), STRICT)
    job = Job(argv=("cat", ".ssh/id"), cwd=str(home))
    assert run(job, SandboxPolicy(isolation="strict", readable_paths=(str(home),))).stdout == b"PRIVATE"
    assert run(Job(argv=("ls",), cwd=str(home / "project")), STRICT).ok


def test_the_process_level_works_anywhere() -> None:
    """It shows nothing that the program would not see anyway."""
    assert run(Job(argv=("true",), cwd="/etc"), SandboxPolicy()).ok


@pytest.mark.parametrize("level", ["process", "strict"])
@pytest.mark.parametrize("field", ["readable_paths", "writable_paths"])
def test_a_path_that_is_not_there_is_an_error_with_the_nearest_name(tmp_path: Path, level: str, field: str) -> None:
    (tmp_path / "projects" / "mine").mkdir(parents=True)
    policy = {"isolation": level, field: [f"{tmp_path}/projects/mien", f"{tmp_path}/project/x"], "allow_partial": True}
    with pytest.raises(PolicyError, match=r"did you mean .*/projects/mine\?") as refused:
        run(["true"], SandboxPolicy.from_dict(policy))
    assert refused.value.field == field
    assert [each.problem.endswith(f"did you mean {tmp_path}/projects?") for each in refused.value.more] == [True]


def test_a_hidden_path_need_not_be_there(tmp_path: Path) -> None:
    for level in ("process", "strict"):
        assert run(["true"], SandboxPolicy(isolation=level, hidden_paths=(f"{tmp_path}/later",))).ok


@pytest.mark.parametrize(("named", "may_write"), [("", True), ("writable_paths", True), ("readable_paths", False)])
def test_a_readable_working_folder_is_not_written(tmp_path: Path, named: str, may_write: bool) -> None:
    work, other = tmp_path / "work" / "deep", tmp_path / "other"
    work.mkdir(parents=True)
    other.mkdir()
    (work / "old").write_text("content")
    policy: dict[str, object] = {"readable_paths": [str(other)]}
    if named:
        policy = {named: [str(other), str(work.parent)]}
    job = Job(argv=("sh", "-c", "cat old; echo > new; echo >> old; rm old; mkdir folder"), cwd=str(work))
    outcome = run(job, SandboxPolicy.from_dict(policy))
    assert outcome.stdout == b"content"
    assert sorted(os.listdir(work)) == (["folder", "new"] if may_write else ["old"])


def test_a_writable_folder_in_a_readable_one_is_written(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    policy = SandboxPolicy(readable_paths=(str(tmp_path),), writable_paths=(str(work),))
    assert run(Job(argv=("touch", "new"), cwd=str(work)), policy).ok


def test_tests_that_lie_elsewhere_are_shown_with_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (there / "conftest.py").write_text("import pytest\n@pytest.fixture\ndef one(): return 1\n")
    (there / "test_one.py").write_text("def test_one(one): assert one == 1\n")
    monkeypatch.chdir(here)
    result = run_pytests_v2([there / "test_one.py"], STRICT)
    assert (result["status"], result["counts"]["passed"]) == ("OK", 1), result


def test_a_file_in_a_home_is_shown_without_the_home(home: Path) -> None:
    assert workplaces.around(str(home / "test_x.py")) == str(home / "test_x.py")
    assert workplaces.around(str(home / "project" / "test_x.py")) == str(home / "project")


@pytest.mark.parametrize("level", ["process", "strict"])
def test_no_job_chooses_by_a_link_what_a_later_one_works_on(home: Path, tmp_path: Path, level: str) -> None:
    tmp_path.chmod(0o755)
    written, keys = home / "project", home / ".ssh"
    (written / "sub").mkdir()
    policy = SandboxPolicy(isolation=level, writable_paths=(str(written),))
    swap = f"cd {written} && rmdir sub && ln -s {keys} sub"
    assert run(["sh", "-c", swap], policy).ok
    work = Job(argv=("cat", "id"), cwd=str(written / "sub"))
    with pytest.raises(UsageError, match="by a link in") as refused:
        run(work, policy)
    assert "if that is meant" in refused.value.hint
    assert run(work, policy.with_changes(readable_paths=(str(keys),))).stdout == b"PRIVATE"
    (written / "inside").mkdir()
    (written / "within").symlink_to("inside")
    outcome = run(Job(argv=("sh", "-c", "echo 1 > new"), cwd=str(written / "within")), policy)
    assert level == "strict" or (outcome.ok and (written / "inside" / "new").exists()), outcome.stderr


def test_a_workspace_is_not_taken_by_way_of_a_link_that_appeared_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "real" / "inside").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    source = [("workspace", f"{os.path.realpath(tmp_path)}/link/inside", "base", ())]
    with pytest.raises(OSError, match="symbolic links"):
        zygote_steps.clone_sources(source)
