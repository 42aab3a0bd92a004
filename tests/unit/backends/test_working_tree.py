"""What git and editors do to a working tree under STRICT: set-group-id directories, and nothing with more rights."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import ringfence
from ringfence import Job, SandboxPolicy, run
from ringfence.checkpoint.transaction import OVERLAY, Transaction
from ringfence.errors import PolicyError, SandboxError

pytestmark = [pytest.mark.system, pytest.mark.privileges]

GIT = {f"GIT_{who}_{what}": "somebody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def _run(work: Path, script: str, *, commit: bool = False, **policy: object) -> str:
    outcome = run(Job(argv=("sh", "-c", script), cwd=str(work)), commit=commit,
                  policy=SandboxPolicy.from_dict({"isolation": "strict", "environment": GIT, **policy}))  # fmt: skip
    assert outcome.ok, outcome.stderr
    return outcome.stdout.decode()


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_shared_repository_is_made_worked_on_and_committed(work: Path) -> None:
    first = "git init -q --shared=group repo && cd repo && echo 1 > a && git add a && git commit -qm one"
    _run(work, first, commit=True)
    assert _mode(work / "repo" / ".git" / "objects") & stat.S_ISGID
    told = _run(work, "cd repo && echo 2 > a && git commit -qam two && git log --format=%s", commit=True)
    assert told == "two\none\n"


@pytest.fixture
def repository(work: Path) -> Path:
    """One that was there before."""
    start = "git init -q . && mkdir notes && echo 1 > notes/a && git add -A && git commit -qm one"
    subprocess.run(["sh", "-c", start], cwd=work, check=True, env=os.environ | GIT)
    return work


@pytest.mark.parametrize("words", [
    "mv notes noted && git add -A && git commit -qm moved && git log --format=%s --name-status -1 -M | tail -1",
    "mkdir made && echo > made/x && git add made && git mv made other && ls -d other",
    "git clone -q --no-hardlinks . copy && git -C copy log --format=%s",
    "git clone -q file://$PWD copy && git -C copy log --format=%s",
])  # fmt: skip
def test_the_ways_out_that_the_documents_name(repository: Path, words: str) -> None:
    told = _run(repository, f"git config --global --add safe.directory '*'; {words}")
    assert told in ("R100\tnotes/a\tnoted/a\n", "other\n", "one\n")


def test_folders_keep_set_group_id_and_files_lose_it(work: Path) -> None:
    (work / "base").mkdir()
    script = "mkdir new && echo > file && echo > base/file && chmod g+s new file base base/file && stat -c %a new file"
    assert _run(work, script, commit=True) == "2755\n2644\n"
    assert [_mode(work / name) for name in ("new", "base", "file", "base/file")] == [0o2755, 0o2755, 0o644, 0o644]


@pytest.mark.parametrize("mode", [0o4755, 0o6755])
def test_set_user_id_stays_refused(work: Path, mode: int) -> None:
    (work / "file").touch()
    told = _run(work, f"chmod {mode:o} file || echo refused; mkdir folder; chmod {mode:o} folder || echo refused")
    assert told == "refused\nrefused\n"


def test_where_a_folder_of_the_host_is_writable_set_group_id_is_refused_too(work: Path, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    os.chmod(tmp_path / "shared", 0o777)
    script = f"echo > {tmp_path}/shared/file; chmod g+s {tmp_path}/shared/file || echo refused"
    assert _run(work, script, writable_paths=[str(tmp_path / "shared")]) == "refused\n"
    assert not _mode(tmp_path / "shared" / "file") & stat.S_ISGID


def test_a_set_group_id_program_in_the_layer_gives_no_group(work: Path) -> None:
    """A program in the layer gets no group from it: the file systems there give no privileges."""
    script = "cp /usr/bin/id mine && chmod 2755 mine && ./mine -g && id -g"
    own, real = _run(work, script).split()
    assert own == real


@pytest.mark.parametrize("inside", ["out", "deep/out", "", "file"])
def test_what_is_writable_in_the_working_directory_is_the_hosts_own(work: Path, inside: str) -> None:
    (work / "deep/out").mkdir(parents=True)
    (work / "out").mkdir()
    (work / "file").touch()
    for path in (work, *work.rglob("*")):
        os.chmod(path, 0o777)
    target = inside if inside == "file" else f"{inside or '.'}/new"
    _run(work, f"echo direct > {target}; echo layer > beside", writable_paths=[str(work / inside)])
    assert (work / target).read_text() == "direct\n"
    assert (work / "beside").exists() is (inside == ""), "what is beside it goes into the layer"


@pytest.fixture
def kept(work: Path) -> Iterator[Transaction]:
    (work / "out").mkdir()
    (work / "file").write_text("precious")
    for path in (work / "out", work / "file"):
        os.chmod(path, 0o777)
    with Transaction.create(work.parent / "kept", [work], kind=OVERLAY) as transaction:
        yield transaction


@pytest.mark.parametrize("before", ["rmdir out && ln -s /etc out", "rmdir out && rm file", "rmdir out && echo > out"])
def test_what_an_earlier_job_left_in_its_place_leads_nothing_elsewhere_and_nothing_is_made_for_it(
    work: Path, kept: Transaction, before: str
) -> None:
    policy = SandboxPolicy(isolation="strict")
    with ringfence.open(policy, transaction=kept) as box:
        assert box.run(["sh", "-c", before]).ok
    changes = kept.changes()
    paths = (str(work / "out"), *((str(work / "file"),) if "file" in before else ()))
    with pytest.raises(SandboxError), ringfence.open(policy.with_changes(writable_paths=paths),
                                                     transaction=kept) as box:  # fmt: skip
        box.run(["sh", "-c", "echo x > /etc/new; echo x > out/new"])
    assert kept.changes() == changes
    assert not (work / "out" / "new").exists() and (work / "file").read_text() == "precious"


def test_what_is_readable_in_what_is_written_directly_is_refused(work: Path, tmp_path: Path) -> None:
    """It would be writable with the rest. Elsewhere it is read-only."""
    for top in (work / "out", tmp_path / "out"):
        (top / "ref").mkdir(parents=True)
        (top / "ref" / "file").write_text("precious")
        for path in (top, top / "ref", top / "ref" / "file"):
            os.chmod(path, 0o777)
    script = "echo x > {}/ref/file || echo refused"

    def paths(top: Path) -> dict[str, object]:
        return {"writable_paths": [str(top)], "readable_paths": [str(top / "ref")]}

    assert _run(work, script.format(tmp_path / "out"), **paths(tmp_path / "out")) == "refused\n"
    with pytest.raises(PolicyError, match="can't be read-only"):
        _run(work, script.format("out"), **paths(work / "out"))
    assert (work / "out/ref/file").read_text() == (tmp_path / "out/ref/file").read_text() == "precious"
