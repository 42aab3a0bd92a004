"""Commands on kept sandboxes where something is doubtful: nothing is guessed, and nothing ends that was not meant.

No job runs: what one would have changed is written into the working copy of a snapshot.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.checkpoint.transaction import SNAPSHOT, Transaction
from ringfence.cli import main
from ringfence.manager.registry import Metadata, Registry

pytestmark = pytest.mark.privileges

ID = "3f2a"


class StoredSandbox:
    """One sandbox over a directory, of a person who stands there."""

    def __init__(self, top: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.here = top / "project"
        self.here.mkdir()
        self._capsys = capsys
        registry = Registry(top / "state/ringfence/sandboxes")
        about = Metadata(sandbox_id=ID, created_s=1.0, isolation="strict", bases=(str(self.here),))
        self.folder = registry.add(about)
        Transaction.create(self.folder, [self.here], kind=SNAPSHOT).close()

    def __call__(self, *words: str, code: int = 0) -> str:
        """What it says, on both streams together."""
        found = main(words)
        said = self._capsys.readouterr()
        assert found == code, said
        return said.out + said.err

    def write(self, text: str, *names: str) -> str:
        """A checkpoint, and then this into these files; the checkpoint."""
        with Transaction.open(self.folder) as transaction:
            point = transaction.create_checkpoint().checkpoint_id
            for name in names:
                Path(transaction.place(self.here), name).write_text(text)
        return point


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> StoredSandbox:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = StoredSandbox(tmp_path, capsys)
    monkeypatch.chdir(made.here)
    return made


def test_without_a_checkpoint_one_goes_back_to_where_it_stood_and_never_forward(kept: StoredSandbox) -> None:
    first, second = (kept.write(f"{number}\n", "file") for number in range(2))
    assert second in kept("rollback", ID)
    kept("rollback", ID, first)
    assert first in kept("rollback", ID)
    assert kept("diff", ID) == ""


def test_a_word_that_is_a_path_and_begins_a_checkpoint_is_not_guessed_at(kept: StoredSandbox) -> None:
    point = kept.write("1\n", "other")
    name = point[:8]
    kept.write("2\n", name, "other")
    last = kept.write("3\n", name, "other")
    assert f"write ./{name} for the path" in kept("rollback", ID, name, code=2)
    assert kept("rollback", ID, f"./{name}").startswith(f"1 path as at {last}")
    assert kept("rollback", ID, point[:9]).startswith(f"2 paths as at {point}")


def test_a_root_that_is_not_there_is_told(kept: StoredSandbox) -> None:
    assert "nowhere: no such directory" in kept("sandboxes", "--root", "nowhere", code=2)


def test_a_problem_of_a_listed_sandbox_is_told(kept: StoredSandbox) -> None:
    kept.here.rename(kept.here.parent / "moved")
    kept.here.mkdir()
    assert f"{ID}: {kept.here} was replaced" in kept("sandboxes")
