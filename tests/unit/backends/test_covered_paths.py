"""A hidden path above what the job is to see is refused: it could not be held, and would be said to be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import ringfence
from ringfence.engine.run import run, transaction_kind
from ringfence.errors import PolicyError
from ringfence.model.job import Job
from ringfence.model.policy import SandboxPolicy

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="strict is Linux's")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    (tmp_path / "above/here/sub").mkdir(parents=True)
    (tmp_path / "above/here/secret").write_text("secret")
    (tmp_path / "alias").symlink_to(tmp_path / "above")
    return tmp_path


def _policy(*hidden: Path, **shown: tuple[Path, ...]) -> SandboxPolicy:
    paths = {name: tuple(map(str, named)) for name, named in {"hidden_paths": hidden, **shown}.items()}
    return SandboxPolicy(isolation="strict", **paths)  # type: ignore[arg-type]


@pytest.mark.parametrize("hidden", ("above/here", "above", "alias", "alias/here"))
def test_a_workspace_in_a_hidden_path_is_refused(place: Path, hidden: str) -> None:
    policy = _policy(place / hidden)
    job = Job(argv=("cat", "secret"), cwd=str(place / "above/here"))
    with pytest.raises(PolicyError, match=r"hidden_paths: .*workspace"):
        run(job, policy)
    with pytest.raises(PolicyError, match="workspace"), ringfence.open(policy, place / "above/here"):
        pass
    kind = transaction_kind(policy)
    made = ringfence.Transaction.create(place / "tx", [place / "above/here"], kind=kind)
    with made as transaction, pytest.raises(PolicyError, match="workspace"):
        ringfence.open(policy, transaction=transaction).close()


@pytest.mark.system
def test_what_lies_in_the_workspace_is_hidden(place: Path) -> None:
    job = Job(argv=("cat", "secret"), cwd=str(place / "above/here"))
    assert run(job, _policy()).stdout == b"secret", "the control"
    assert run(job, _policy(place / "above/here/secret")).stdout == b""


@pytest.mark.parametrize("field", ("readable_paths", "writable_paths"))
def test_a_path_that_is_shown_in_a_hidden_one_is_refused(place: Path, field: str) -> None:
    with pytest.raises(PolicyError, match=field):
        run(["true"], _policy(place / "alias", **{field: (place / "above/here/sub",)}))
