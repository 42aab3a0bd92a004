"""A path that goes up from behind a link means the same to each door as to the kernel, which opens it later."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ringfence.attest.signing import chosen_key
from ringfence.cli import interpreter, policy_flags
from ringfence.engine import box
from ringfence.evidence.keyfile import write_key
from ringfence.evidence.keys import SigningKey
from ringfence.integrations.deep_agent.audit import AuditLog
from ringfence.manager.config import SandboxConfig
from ringfence.manager.registry import Registry
from ringfence.model import state_folder
from ringfence.model.job import Job
from ringfence.model.own import private_place
from ringfence.model.own.reserved_file import ReservedFile
from ringfence.proctor import task
from ringfence.proctor.staging import fresh_output
from ringfence.pytest_runner import runner
from ringfence.service.settings import Settings

READERS: dict[str, Callable[[str], object]] = {
    "the directory of a job": lambda path: Job(argv=("true",), cwd=path).cwd,
    "a path of the policy": lambda path: policy_flags._path("--hidden", path),
    "the workspace of a box": box._folder,
    "a directory of the manager": lambda path: SandboxConfig(allowed_paths=[Path(path)]).allowed_paths[0],
    "the root of sandboxes": lambda path: Registry(path).root,
    "an environment": lambda path: interpreter._program_in(path).removesuffix("/bin/python"),
    "the state of a service": lambda path: Settings(state=path).state,
    "an audit log": lambda path: AuditLog(path).path,
    "tests": runner._absolute,
    "a part of a task": task._absolute,
    "the output of a run": fresh_output,
}


@pytest.fixture
def bent(tmp_path: Path) -> tuple[str, str]:
    """A path, and where the kernel finds it. By its text it lies beside the link."""
    (tmp_path / "there" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("there/inner")
    return f"{tmp_path}/link/../it", f"{os.path.realpath(tmp_path)}/there/it"


@pytest.mark.parametrize("name", READERS)
def test_each_door_reads_it_as_the_kernel_does(bent: tuple[str, str], name: str) -> None:
    path, place = bent
    assert str(READERS[name](path)) == place != os.path.abspath(path)


@pytest.mark.parametrize("name", READERS)
def test_also_from_the_current_folder(
    bent: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(READERS[name]("link/../it")) == bent[1]


def test_a_file_that_is_reserved_is_the_one_that_is_put(bent: tuple[str, str]) -> None:
    path, place = bent
    reserved = ReservedFile(path)
    reserved.put(b"data")
    reserved.close()
    assert reserved.path == place and Path(place).read_bytes() == b"data" == Path(path).read_bytes()


def test_the_signing_key_that_is_hidden_is_the_one_that_is_read(bent: tuple[str, str]) -> None:
    path, place = bent
    write_key(place, SigningKey.generate())
    assert chosen_key(key_file=path).path == place


def test_our_own_folders_are_where_the_variables_lead(bent: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    path, place = bent
    monkeypatch.setenv("XDG_STATE_HOME", path)
    monkeypatch.setenv("TMPDIR", path)
    assert state_folder.state_folder() == f"{place}/ringfence" and private_place.above() == place
