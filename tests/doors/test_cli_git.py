"""A repository of git's in a layer, in a worktree and in a submodule (docs/how-to/undo-what-an-agent-did.md)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]
WHO = [f"--env=GIT_{each}_{what}=a" for each in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")]
WORK = "git log --format=%s; echo two > a.txt; git status --short; git commit -qam agent; git log --format=%s"
GONE, ALL, READ = "not a git repository", "one\n M a.txt\nagent\none\n", "one\n M a.txt\none\n"


def _git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a", "-c", "protocol.file.allow=always"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def main(tmp_path: Path) -> Path:
    folder = tmp_path / "main"
    folder.mkdir()
    _git(folder, "init", "-q")
    (folder / "a.txt").write_text("one\n")
    _git(folder, "add", ".")
    _git(folder, "commit", "-qm", "one")
    return folder


def _run(command: list[str], folder: Path, script: str, *flags: str) -> tuple[str, str]:
    words = [*command, "run", "--discard", *WHO, *flags, "--", "sh", "-c", script]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout, done.stderr


def test_git_in_a_worktree_needs_the_repository_that_lies_elsewhere(
    ringfence_command: list[str], main: Path, tmp_path: Path
) -> None:
    side = tmp_path / "side"
    _git(main, "worktree", "add", "-q", str(side))
    printed, said = _run(ringfence_command, side, WORK)
    assert printed == "" and GONE in said
    common = _git(side, "rev-parse", "--path-format=absolute", "--git-common-dir")
    printed, said = _run(ringfence_command, side, WORK, "--readable", common)
    assert printed == READ and "Read-only file system" in said
    assert _run(ringfence_command, tmp_path, f"cd side; {WORK}")[0] == ALL
    assert _git(side, "log", "--format=%s") == "one", "the control: all of it was thrown away"


def test_git_in_a_submodule_needs_the_main_repository(ringfence_command: list[str], main: Path, tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir()
    _git(above, "init", "-q")
    _git(above, "submodule", "--quiet", "add", str(main), "sub")
    printed, said = _run(ringfence_command, above / "sub", WORK)
    assert printed == "" and GONE in said
    assert _run(ringfence_command, above, f"cd sub; {WORK}")[0] == ALL


def test_a_hidden_repository_is_not_there_and_another_in_its_place_goes_nowhere(
    ringfence_command: list[str], main: Path
) -> None:
    environment = os.environ | {"XDG_STATE_HOME": str(main.parent / "state")}
    script = "git status; echo two > a.txt; git init -q .; git config core.pager evil"
    words = [*ringfence_command, "run", "--commit", "--hidden", ".git", "--", "sh", "-c", script]
    done = subprocess.run(words, cwd=main, capture_output=True, text=True, check=False, env=environment, timeout=60)
    assert GONE in done.stderr and (main / "a.txt").read_text() == "two\n"
    assert "evil" not in (main / ".git/config").read_text() and _git(main, "log", "--format=%s") == "one"
    shown = [*ringfence_command, "run", "--commit", "--readable", ".git", "--", "git", "config", "core.pager", "evil"]
    subprocess.run(shown, cwd=main, check=True, env=environment, timeout=60, capture_output=True)
    assert "evil" in (main / ".git/config").read_text(), "the control: what is readable there is written in the layer"
