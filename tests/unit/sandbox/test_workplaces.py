"""Where a job may work, what a policy's paths must be, and what of the working directory may be written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ringfence import Job, PolicyError, SandboxPolicy, SetupError, UsageError, run, run_pytests_v2
from ringfence.model import state_folder
from ringfence.model.ways.walk import Look
from ringfence.sandbox import root as rootfs
from ringfence.sandbox import showing, workplaces
from ringfence.steps import zygote_steps

pytestmark = [pytest.mark.system, pytest.mark.privileges]

STRICT = SandboxPolicy(isolation="strict")


@pytest.mark.parametrize("folder", ["/", "/usr", "/home", "/proc", "/proc/self", "/sys", "/dev", "/sys/kernel"])
def test_what_can_not_be_worked_in_is_said_with_a_way_out(folder: str) -> None:
    with pytest.raises(UsageError, match="can't be the working directory") as refused:
        run(Job(argv=("true",), cwd=folder), STRICT)
    assert "change to a directory" in refused.value.hint


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
    with pytest.raises(UsageError, match="through a link in") as refused:
        run(work, policy)
    assert "if you mean that" in refused.value.hint
    assert run(work, policy.with_changes(readable_paths=(str(keys),))).stdout == b"PRIVATE"
    (written / "inside").mkdir()
    (written / "within").symlink_to("inside")
    outcome = run(Job(argv=("sh", "-c", "echo 1 > new"), cwd=str(written / "within")), policy)
    assert level == "strict" or (outcome.ok and (written / "inside" / "new").exists()), outcome.stderr


@pytest.mark.parametrize("level", ["process", "strict"])
@pytest.mark.parametrize("field", ["readable_paths", "writable_paths"])
def test_no_link_of_a_workspace_chooses_what_a_path_of_the_policy_means(
    home: Path, tmp_path: Path, level: str, field: str
) -> None:
    tmp_path.chmod(0o755)
    work, keys = home / "project", home / ".ssh"
    (work / "inside").mkdir()
    (work / "inside" / "id").write_text("of the project")
    for name, target in (("data", "../.ssh"), ("deep", "inside/../../.ssh"), ("own", "inside")):
        (work / name).symlink_to(target)
    for name in ("data", "deep", "deep/id"):
        policy = SandboxPolicy.from_dict({"isolation": level, field: [str(work / name)]})
        with pytest.raises(PolicyError, match="through the link") as refused:
            run(Job(argv=("cat", f"{name}/id"), cwd=str(work)), policy)
        assert refused.value.field == field and str(keys) in refused.value.problem
    own = SandboxPolicy.from_dict({"isolation": level, "readable_paths": [str(work / "own")]})
    assert run(Job(argv=("cat", "own/id"), cwd=str(work)), own).stdout == b"of the project"
    both = SandboxPolicy.from_dict({"isolation": level, "readable_paths": [str(work / "data"), str(keys)]})
    assert run(Job(argv=("cat", f"{keys}/id"), cwd=str(work)), both).stdout == b"PRIVATE"


@pytest.mark.parametrize("level", ["process", "strict"])
def test_no_job_chooses_by_a_link_what_a_later_one_reads(home: Path, tmp_path: Path, level: str) -> None:
    tmp_path.chmod(0o755)
    written = home / "project"
    (written / "sub").mkdir()
    (written / "sub" / "id").write_text("harmless")
    policy = SandboxPolicy(isolation=level, writable_paths=(str(written),), readable_paths=(f"{written}/sub/id",))
    assert run(["sh", "-c", f"cat {written}/sub/id; cd {written}; mv sub old; ln -s {home}/.ssh sub"], policy).ok
    with pytest.raises(PolicyError, match="through the link"):
        run(["cat", f"{written}/sub/id"], policy)


@pytest.mark.parametrize("mode", ["ro", "rw", "file", "rw file"])
def test_what_is_shown_is_not_taken_by_way_of_a_link_that_appeared_meanwhile(tmp_path: Path, mode: str) -> None:
    """Exchanged between the look and the mount."""
    place = os.path.realpath(tmp_path)
    (tmp_path / "real" / "inside").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    for name in ("real", "link"):
        (entry,) = showing.entries([f"{place}/{name}/inside"], mode[:2].replace("fi", "ro"), frozenset(), Look())
        assert entry.real and entry.path == f"{place}/real/inside" and rootfs.place(entry) == f"{place}/{name}/inside"
    with pytest.raises(OSError, match="symbolic links"):
        zygote_steps.clone_sources([("0", f"{place}/link/inside", f"real {mode}", ())])


@pytest.mark.parametrize("level", ["process", "strict"])
@pytest.mark.parametrize("named", ["alias", "real"])
def test_what_is_hidden_or_ours_is_absent_by_the_name_of_a_link_too(tmp_path: Path, level: str, named: str) -> None:
    """A link of the caller's own leads to a readable directory, which is shown by that name and by its real one."""
    tmp_path.chmod(0o755)
    (tmp_path / "real/project").mkdir(parents=True)
    (tmp_path / "alias").symlink_to("real")
    for name in ("note", "key"):
        (tmp_path / "real/project" / name).write_text(name)
    (tmp_path / "real/project/ours").mkdir()
    (tmp_path / "real/project/ours/record").write_text("record")
    state_folder.note_root(f"{os.path.realpath(tmp_path)}/real/project/ours")
    read = [f"{tmp_path}/{top}/project/{name}" for top in ("alias", "real") for name in ("note", "key", "ours/record")]
    shown = SandboxPolicy(isolation=level, readable_paths=(f"{tmp_path}/alias/project",))
    policy = shown.with_changes(hidden_paths=(f"{tmp_path}/{named}/project/key",))
    assert run(["cat", *read], shown).stdout == b"notekey" * 2, "the control: the key was not hidden"
    outcome = run(["cat", *read], policy)
    assert outcome.stdout == b"note" * 2
    asked = {event.details["path"] for event in outcome.events if "path" in event.details}
    assert level == "process" or {each for each in read if each.endswith("key")} <= asked


def test_a_led_folder_that_is_exchanged_after_the_look_shows_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies below another one that is shown, and so is there by the name of the link alone."""
    tmp_path.chmod(0o755)
    for top, text in ((home / "project/sub", "harmless"), (tmp_path / "elsewhere", "PRIVATE")):
        (top / "inner").mkdir(parents=True)
        (top / "inner/id").write_text(text)
    (tmp_path / "alias").symlink_to(home)
    named = f"{tmp_path}/alias/project/sub/inner"
    policy = SandboxPolicy(isolation="strict", writable_paths=(f"{home}/project",), readable_paths=(str(home), named))
    looked = showing.led.refuse

    def exchanged(*given: Any) -> None:
        looked(*given)
        (home / "project/sub").rename(home / "project/old")
        (home / "project/sub").symlink_to(tmp_path / "elsewhere")

    job = Job(argv=("cat", f"{named}/id"))
    with monkeypatch.context() as patched:  # first: a sandbox of the same kind would be made of what was taken before
        patched.setattr(showing.led, "refuse", exchanged)
        with pytest.raises(SetupError, match="symbolic links"):
            run(job, policy)
    (home / "project/sub").unlink()
    (home / "project/old").rename(home / "project/sub")
    assert run(job, policy).stdout == b"harmless", "the control"


@pytest.mark.parametrize("level", ["process", "strict"])
def test_a_folder_that_is_exchanged_for_a_link_after_the_look_shows_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    tmp_path.chmod(0o755)
    written = home / "project"
    (written / "sub").mkdir()
    (written / "sub" / "id").write_text("harmless")
    policy = SandboxPolicy(isolation=level, writable_paths=(str(written),), readable_paths=(f"{written}/sub/id",))
    looked = showing.needed

    def exchanged(*given: Any) -> Any:
        (written / "sub").rename(written / "old")
        (written / "sub").symlink_to(home / ".ssh")
        return looked(*given)

    job = Job(argv=("cat", f"{written}/sub/id"))
    assert run(job, policy).stdout == b"harmless"
    monkeypatch.setattr(showing, "needed", exchanged)
    try:
        assert run(job, policy).stdout == b""
    except SetupError as error:
        assert "symbolic links" in str(error)


def test_a_workspace_is_not_taken_by_way_of_a_link_that_appeared_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "real" / "inside").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    source = [("workspace", f"{os.path.realpath(tmp_path)}/link/inside", "base", ())]
    with pytest.raises(OSError, match="symbolic links"):
        zygote_steps.clone_sources(source)
