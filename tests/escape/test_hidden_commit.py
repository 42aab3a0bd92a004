"""A kept layer must not reach what was hidden from the job: not by deletion, replacement or overwriting."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ringfence import Job, SandboxPolicy, run

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]

DAMAGE = {
    "nothing": "pass",
    "written over": "import os; os.makedirs('a/oracle', exist_ok=True); open('a/oracle/secret', 'w').write('forged')",
    "directory above deleted": "import shutil; shutil.rmtree('a')",
    "directory above replaced by a file": "import shutil; shutil.rmtree('a'); open('a', 'w').close()",
    "directory above replaced by a link": "import os, shutil; shutil.rmtree('a'); os.symlink('/tmp', 'a')",
    "directory above made anew": "import os, shutil; shutil.rmtree('a'); os.makedirs('a/oracle')",
}


def _workspace(folder: Path) -> Path:
    secret = folder / "a" / "oracle" / "secret"
    secret.parent.mkdir(parents=True)
    secret.write_text("the answer")
    (folder / "a" / "beside").write_text("visible")
    return secret


def _keep(folder: Path, code: str, hidden: list[str]) -> set[str]:
    policy = SandboxPolicy.from_dict({"isolation": "strict", "wall_time_s": 20, "hidden_paths": hidden})
    outcome = run(Job(argv=(sys.executable, "-I", "-c", code), cwd=str(folder)), policy, commit=True)
    assert outcome.rc == 0, outcome.stderr
    return {change.path for change in outcome.changes}


@pytest.mark.parametrize("how", DAMAGE)
def test_what_is_hidden_survives_a_commit(how: str, tmp_path: Path) -> None:
    secret = _workspace(tmp_path)
    told = _keep(tmp_path, DAMAGE[how], [str(secret.parent)])
    assert secret.read_text() == "the answer"
    assert not any("oracle" in path for path in told)


def test_what_is_not_hidden_is_carried_over(tmp_path: Path) -> None:
    """The control: the same damage, with nothing hidden."""
    secret = _workspace(tmp_path)
    _keep(tmp_path, DAMAGE["directory above deleted"], [])
    assert not secret.exists()


def test_what_lies_beside_a_hidden_path_is_still_deleted(tmp_path: Path) -> None:
    secret = _workspace(tmp_path)
    _keep(tmp_path, DAMAGE["directory above deleted"], [str(secret.parent)])
    assert not (tmp_path / "a" / "beside").exists()
