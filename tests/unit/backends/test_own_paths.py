"""Allowed paths at their own places at the process level: the same path inside and outside, and no wall less.

Every attack has its control: the same probe without the protection succeeds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringfence import IsolationLevel, Job, ResourceLimits, SandboxConfig, SandboxContext, SandboxManager
from ringfence.backends import own_paths
from ringfence.manager.result import ExecutionResult
from ringfence.sandbox import host

pytestmark = [pytest.mark.system, pytest.mark.privileges]


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A directory to work on, with something blocked in it, and a secret beside it."""
    tmp_path.chmod(0o755)
    for name, text in {"repo/a.txt": "one\n", "repo/sub/b": "two\n", "repo/secret/key": "hidden\n",
                       "elsewhere/key": "private\n"}.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "repo"


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[SandboxManager]:
    with SandboxManager(sandbox_root=tmp_path / "sandboxes") as made:
        yield made


def config(repo: Path, **more: Any) -> SandboxConfig:
    fields = {"allowed_paths": [repo], "blocked_paths": [repo / "secret", Path("/etc")], **more}
    return SandboxConfig(isolation_level=IsolationLevel.PROCESS, **fields)


@pytest.fixture
def context(manager: SandboxManager, repo: Path) -> Iterator[SandboxContext]:
    with manager.sandbox(config(repo, enable_auto_rollback=False)) as made:
        yield made


def shell(manager: SandboxManager, context: SandboxContext, text: str, cwd: Path | None = None) -> ExecutionResult:
    return manager.run(context, Job(argv=("sh", "-c", text), cwd=str(cwd) if cwd else None))


def where(done: ExecutionResult) -> str:
    assert done.outcome is not None
    entry = done.outcome.enforced["allowed_paths"]
    assert entry.applied
    return f"{entry.mechanism}: {entry.details}"


def test_a_path_means_the_same_inside_and_outside(manager: SandboxManager, context: SandboxContext, repo: Path) -> None:
    def work(path: str) -> list[object]:
        import os

        with open(f"{path}/a.txt") as file:
            text = file.read()
        with open(f"{path}/new", "w") as file:
            file.write("new")
        with open("a.txt", "a") as file:
            file.write("more\n")
        return [text, os.getcwd(), sorted(os.listdir(path)), os.getuid(), os.getgid()]

    assert context.allowed_paths == [repo] and context.working_directory == repo
    done = manager.execute_in_sandbox(context, work, {"path": str(repo)})
    assert done.value == ["one\n", str(repo), ["a.txt", "new", "sub"], os.getuid(), os.getgid()], done.error
    assert "bound in a mount namespace" in where(done)
    assert sorted(os.listdir(repo)) == ["a.txt", "secret", "sub"] and (repo / "a.txt").read_text() == "one\n"
    assert shell(manager, context, f"cat {repo}/a.txt; cat b", cwd=repo / "sub").stdout == "one\nmore\ntwo\n"
    manager.commit(context)
    assert (repo / "a.txt").read_text() == "one\nmore\n" and (repo / "new").exists()


def test_several_paths_and_files_that_go_in_are_found_there(manager: SandboxManager, repo: Path) -> None:
    other = repo.parent / "other"
    other.mkdir()
    with manager.sandbox(config(repo, allowed_paths=[repo, other])) as context:
        assert shell(manager, context, f"cp {repo}/a.txt {other}/c").success
        done = manager.run(context, Job(argv=("cat", f"{repo}/put", f"{other}/c"), files={"put": b"put\n"}))
        assert done.stdout == "put\none\n", done.stderr
        assert os.listdir(other) == []


def test_git_works_on_a_repository_by_its_absolute_path(manager: SandboxManager, repo: Path) -> None:
    who = ("-c", "user.name=me", "-c", "user.email=me@example.org", "-C", str(repo))
    subprocess.run(["git", "init", "-q", repo], check=True)
    limits = ResourceLimits(max_file_operations=100_000)
    with manager.sandbox(config(repo, resource_limits=limits)) as context:
        for words in (["add", str(repo / "a.txt")], ["commit", "-qm", "inside"], ["worktree", "list"]):
            done = manager.run(context, ["git", *who, *words])
            assert done.success, (done.error, done.stderr)
        assert done.stdout.split()[0] == str(repo)
        manager.commit(context)
    told = subprocess.run(["git", *who, "log", "--format=%s"], check=True, capture_output=True, text=True)
    assert told.stdout == "inside\n"


def test_a_private_folder_is_found_at_its_own_path(manager: SandboxManager) -> None:
    with manager.sandbox(SandboxConfig(isolation_level=IsolationLevel.PROCESS)) as context:
        assert context.working_directory == context.folder / "workspace"
        assert shell(manager, context, "pwd; echo 1 > f").stdout == f"{context.working_directory}\n"
        assert shell(manager, context, f"cat {context.working_directory}/f").stdout == "1\n"


ATTACKS = {
    "what is blocked": "cat {repo}/secret/key",
    "what lies beside": "cat {repo}/../elsewhere/key",
    "a link out": "ln -sf {repo}/../elsewhere/key {repo}/link && cat {repo}/link",
    "the original, through another process": "cat /proc/{pid}/root{repo}/secret/key",
    "the original, below the mount": "umount {repo}; cat {repo}/secret/key",
    "the original, in another namespace": "unshare -Um cat {repo}/secret/key; unshare -m cat {repo}/secret/key",
    "the original, by a bind mount": "mount --bind {repo}/.. {repo}/sub && cat {repo}/sub/elsewhere/key",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_walls_are_the_same(manager: SandboxManager, context: SandboxContext, repo: Path, attack: str) -> None:
    command = ATTACKS[attack].format(repo=repo, pid=os.getpid())
    done = shell(manager, context, command)
    assert "hidden" not in done.stdout and "private" not in done.stdout
    if "mount" not in command and "unshare" not in command:  # nobody may do these things to the host either
        free = SandboxConfig(isolation_level=IsolationLevel.NONE, allow_partial=True)
        with manager.sandbox(free) as control:
            assert shell(manager, control, command).stdout in ("hidden\n", "private\n")


def test_nothing_can_be_written_beside_it(manager: SandboxManager, context: SandboxContext, repo: Path) -> None:
    shell(manager, context, f"echo x > {repo}/../planted; echo x > {repo}/../elsewhere/key; rm -rf {repo}/../elsewhere")
    assert not (repo.parent / "planted").exists() and (repo.parent / "elsewhere/key").read_text() == "private\n"


@pytest.mark.parametrize("in_place", [True, False])
def test_a_link_in_place_of_a_folder_grants_nothing(
    manager: SandboxManager, repo: Path, monkeypatch: pytest.MonkeyPatch, in_place: bool
) -> None:
    """A job that begins in a directory gets that directory; where the guest's link leads is no directory of its own."""
    elsewhere = repo.parent / "elsewhere"
    if not in_place:
        monkeypatch.setattr(own_paths, "why_not", lambda _: "something")
    with manager.sandbox(config(repo)) as context:
        assert shell(manager, context, f"rm -r sub && ln -s {elsewhere} sub").success
        done = shell(manager, context, "cat key; echo x > planted; cat sub/key", cwd=repo / "sub")
        assert "private" not in done.stdout and os.listdir(elsewhere) == ["key"]


def test_a_link_in_a_readable_folder_of_the_workspace_grants_nothing(manager: SandboxManager, repo: Path) -> None:
    """As an interpreter's directories in it, which are granted by their paths."""
    elsewhere = repo.parent / "elsewhere"
    with manager.sandbox(config(repo, readable_paths=[repo / "sub"])) as context:
        assert shell(manager, context, f"cat {repo}/sub/b").stdout == "two\n"  # control
        assert shell(manager, context, f"rm -r sub && ln -s {elsewhere} sub").success
        assert "private" not in shell(manager, context, f"cat {repo}/sub/key; cat {elsewhere}/key").stdout


def test_our_own_code_in_the_workspace_is_not_loaded_from_what_a_guest_wrote(tmp_path: Path, repo: Path) -> None:
    """A project with ringfence in it, e.g. in its environment: before the walls stand nothing of it is loaded."""
    import ringfence

    package = repo / "lib/ringfence"
    shutil.copytree(Path(ringfence.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    program = f"""
import os, sys
from pathlib import Path
from ringfence import *
import ringfence
assert ringfence.__file__.startswith({str(repo)!r})
manager = SandboxManager(sandbox_root={str(tmp_path / "own")!r})
limits = ResourceLimits(max_file_operations=100_000)  # each module is written: how many there are is not the matter
context = manager.create_sandbox(SandboxConfig(allowed_paths=[{str(repo)!r}], resource_limits=limits))
code = "import os; os.mkdir('{tmp_path}/loaded-' + str(os.getpid()))"
spoil = f'for each in $(find lib -name "*.py"); do echo "{{code}}" > $each; done'
print(manager.run(context, ["sh", "-c", spoil]).error)
print(manager.run(context, ["cat", "{repo}/lib/ringfence/__init__.py"]).stdout[:9])
context.state_data["x"] = 1
print(manager.run(context, Job(argv=("cat", "put"), files={{"put": b"put"}})).stdout)
manager.destroy_sandbox(context.sandbox_id)
"""
    (tmp_path / "program.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(repo / "lib"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, tmp_path / "program.py"], env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["None", "import os", "put"], (done.stdout, done.stderr)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("loaded")]


def test_where_there_are_no_namespaces_they_are_in_working_copies_and_the_table_says_why(
    manager: SandboxManager, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "user_namespaces_blocked", lambda *_: ("user namespaces", "fix"))
    with manager.sandbox(config(repo)) as context:
        assert context.working_directory != repo
        done = shell(manager, context, f"pwd; cat a.txt; cat {repo}/a.txt")
        assert done.stdout == f"{context.working_directory}\none\n"
        assert where(done) == "working copies: not at their own paths, which takes user namespaces"


def test_a_temporary_folder_in_the_workspace_stays_reachable(
    manager: SandboxManager, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repo / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(repo / "tmp"))
    with manager.sandbox(config(repo)) as context:
        done = shell(manager, context, "echo 1 > $TMPDIR/x && cat $TMPDIR/x a.txt")
        assert done.stdout == "1\none\n" and "TMPDIR" in where(done)


def test_a_sandbox_root_in_the_workspace_does_not_matter(repo: Path) -> None:
    with SandboxManager(sandbox_root=repo / "sandboxes") as manager, manager.sandbox(config(repo)) as context:
        assert shell(manager, context, f"cat {repo}/a.txt; ls {repo}").stdout == "one\na.txt\nsub\n"


def test_inside_another_sandbox_they_are_in_working_copies(
    manager: SandboxManager, repo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    for text, confined in (("Seccomp:\t0\n", False), ("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n", True)):
        (tmp_path / "proc/self/status").write_text(text)
        assert host.is_confined(str(tmp_path)) is confined
    monkeypatch.setattr(host, "is_confined", lambda: True)
    with manager.sandbox(config(repo)) as context:
        done = shell(manager, context, "cat a.txt")
        assert done.stdout == "one\n" and "a filter or a profile" in where(done)


@pytest.mark.root
def test_a_way_that_is_open_to_privileges_only_is_told(manager: SandboxManager, repo: Path) -> None:
    os.chown(repo.parent, 1000, 1000)
    repo.parent.chmod(0o700)
    with manager.sandbox(config(repo)) as context:
        done = shell(manager, context, "cat a.txt")
        assert done.stdout == "one\n" and "open without privileges" in where(done)


def test_an_environment_in_an_allowed_folder_grants_nothing_else(
    manager: SandboxManager, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory may be anybody's work by now, although the environment in it is the active one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", repo / "venv"], check=True)
    (site,) = repo.glob("venv/lib/python3*/site-packages")
    (site / "editable.pth").write_text(f"{repo.parent}/elsewhere\n")
    monkeypatch.setenv("PATH", f"{repo}/venv/bin:{os.environ['PATH']}")
    for at_its_own_path in (True, False):
        if not at_its_own_path:
            monkeypatch.setattr(own_paths, "why_not", lambda transaction: "nothing")
        with manager.sandbox(config(repo, enable_auto_rollback=False)) as context:
            assert "private" not in shell(manager, context, f"cat {repo.parent}/elsewhere/key").stdout
            assert shell(manager, context, "python3 -c 'print(1)'").stdout == "1\n"
