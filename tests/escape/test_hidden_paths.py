"""Hidden paths are absent, whatever shows the directory that they lie in; and so is what lies around the program."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import ringfence
from ringfence import Job, SandboxError, SandboxPolicy, Status, run

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]

LOOK = "ls -A {folder}; cat {hidden} && echo ESCAPED; stat {hidden} && echo ESCAPED; cat {folder}/plain"


@pytest.fixture
def data() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="data-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "deep").mkdir()
        for path in ("plain", "answers", "deep/answers", "deep/plain"):
            (folder / path).write_text(f"text of {path}\n")
        yield folder


def _look(folder: Path, hidden: Path) -> list[str]:
    return ["sh", "-c", LOOK.format(folder=folder, hidden=hidden)]


@pytest.mark.parametrize("name", ["answers", "deep/answers", "deep"])
def test_a_hidden_path_in_a_readable_folder_is_absent(data: Path, name: str) -> None:
    policy = SandboxPolicy(isolation="strict", readable_paths=(str(data),), hidden_paths=(str(data / name),))
    outcome = run(_look(data, data / name), policy)
    assert b"text of plain" in outcome.stdout
    assert b"ESCAPED" not in outcome.stdout
    assert name.encode() not in outcome.stdout.split()
    assert outcome.stderr.count(b"No such file") == 2


@pytest.mark.parametrize("name", ["answers", "deep/answers", "deep"])
def test_a_hidden_path_in_the_workspace_is_absent(data: Path, name: str) -> None:
    policy = SandboxPolicy(isolation="strict", hidden_paths=(str(data / name),))
    outcome = run(Job(argv=tuple(_look(data, data / name)), cwd=str(data)), policy)
    assert b"text of plain" in outcome.stdout
    assert b"ESCAPED" not in outcome.stdout
    assert outcome.stderr.count(b"No such file") == 2
    assert (data / name).exists()


def test_the_same_look_finds_it_when_it_is_not_hidden(data: Path) -> None:
    outcome = run(_look(data, data / "answers"), SandboxPolicy(isolation="strict", readable_paths=(str(data),)))
    assert outcome.stdout.count(b"ESCAPED") == 2


def test_a_hidden_path_cannot_be_made_to_come_back(data: Path) -> None:
    policy = SandboxPolicy(isolation="strict", hidden_paths=(str(data / "answers"),))
    script = "echo mine > answers; cat answers; rm answers; cat answers; mkdir answers; rmdir answers; cat answers"
    outcome = run(Job(argv=("sh", "-c", script), cwd=str(data)), policy)
    assert outcome.stdout == b"mine\n"


def test_part_of_the_system_can_be_hidden(data: Path) -> None:
    policy = SandboxPolicy(isolation="strict", hidden_paths=("/usr/share", "/etc/ssl"))
    outcome = run(["sh", "-c", "ls -d /usr/bin; ls -d /usr/share /etc/ssl; touch /usr/x"], policy)
    assert outcome.stdout == b"/usr/bin\n"
    assert b"cannot touch '/usr/x'" in outcome.stderr


def test_a_folder_that_is_written_directly_can_have_nothing_hidden_in_it(data: Path) -> None:
    policy = SandboxPolicy(isolation="strict", writable_paths=(str(data),), hidden_paths=(str(data / "answers"),))
    with pytest.raises(SandboxError, match="a way to hide"):
        run(["true"], policy)


def test_a_writable_path_is_written_and_a_readable_one_is_not(data: Path) -> None:
    (data / "out").mkdir()
    readable, writable = (str(data / "deep"),), (str(data / "out"),)
    policy = SandboxPolicy(isolation="strict", readable_paths=readable, writable_paths=writable)
    outcome = run(["sh", "-c", f"echo new > {data}/out/file; echo x > {data}/deep/plain"], policy)
    assert (data / "out" / "file").read_text() == "new\n"
    assert (data / "out" / "file").stat().st_uid == data.stat().st_uid
    assert (data / "deep" / "plain").read_text() == "text of deep/plain\n"
    assert outcome.status is Status.FAILED


@pytest.mark.parametrize("name", ["answers", "deep/answers", "deep"])
def test_a_hidden_path_in_a_readable_folder_is_absent_where_no_tripwire_can_be_laid(data: Path, name: str) -> None:
    hidden = (str(data / name), "/tmp/none")
    outcome = run(_look(data, data / name), SandboxPolicy(isolation="strict", readable_paths=(str(data),),
                                                          hidden_paths=hidden))  # fmt: skip
    assert "open notification" in outcome.enforced["hidden_paths"].details
    assert b"text of plain" in outcome.stdout
    assert b"ESCAPED" not in outcome.stdout


def test_a_hidden_path_whose_folder_appears_later_is_absent(data: Path) -> None:
    hidden = (str(data / "later" / "answers"), "/tmp/none")
    policy = SandboxPolicy(isolation="strict", readable_paths=(str(data),), hidden_paths=hidden)
    with ringfence.open(policy) as box:
        run(["true"], policy)
        (data / "later").mkdir()
        (data / "later" / "answers").write_text("text")
        (data / "later" / "plain").write_text("text")
        look = _look(data, data / "later" / "answers")
        assert b"ESCAPED" not in box.run(look).stdout
    outcome = run([*look[:2], f"{look[2]}; ls {data}/later"], policy)
    assert b"ESCAPED" not in outcome.stdout
    assert outcome.stdout.endswith(b"plain\n"), "what lies beside it is shown to whom it was there for"


def test_a_closed_folder_is_not_opened_by_what_is_hidden_in_it(data: Path) -> None:
    (data / "deep").chmod(0o700)
    os.chown(data / "deep", *((12345, 12345) if os.geteuid() == 0 else (-1, -1)))
    hidden = (str(data / "deep" / "answers"), "/tmp/none")
    policy = SandboxPolicy(isolation="strict", readable_paths=(str(data),), hidden_paths=hidden)
    outcome = run(["cat", str(data / "deep" / "plain")], policy)
    assert (outcome.stdout == b"") == (os.geteuid() == 0), "it is the user's own, or another's"
