"""Sandboxes on disk: found again, damaged ones named, links never followed, nothing of anybody else's touched."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path

import pytest

from ringfence.errors import SandboxError, UsageError
from ringfence.manager.registry import METADATA, Damaged, Metadata, Registry, new_id

pytestmark = pytest.mark.privileges


def metadata(sandbox_id: str = "sandbox_1", **more: object) -> Metadata:
    return Metadata(sandbox_id=sandbox_id, created_s=1.5, isolation="strict", bases=("/a",), **more)  # type: ignore[arg-type]


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "sandboxes")


def test_what_was_added_is_read_back(registry: Registry) -> None:
    kept = metadata(command=("a", "b"), config={"x": 1}, state_data={"y": [1]})
    folder = registry.add(kept)
    assert registry.read("sandbox_1") == kept and list(registry.all()) == [kept]
    assert os.stat(folder).st_mode & 0o077 == 0


def test_a_taken_id_is_refused_and_its_owner_left_alone(registry: Registry) -> None:
    registry.add(metadata(command=("first",)))
    with pytest.raises(SandboxError):
        registry.add(metadata(command=("second",)))
    assert registry.read("sandbox_1").command == ("first",)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "-x", "a\0", "a b", "x" * 80, ".leaving-1", None])
def test_ids_that_are_none_are_refused(registry: Registry, name: str) -> None:
    with pytest.raises(UsageError):
        registry.folder(name)


def test_an_unknown_id_names_the_nearest(registry: Registry) -> None:
    registry.add(metadata("sandbox_abcdef"))
    with pytest.raises(UsageError) as error:
        registry.read("sandbox_abcdee")
    assert "sandbox_abcdef" in error.value.hint


def test_a_root_that_is_closed_to_us_is_not_said_to_be_empty(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.add(metadata())

    def closed(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(SandboxError, match="Permission denied") as error:
        list(registry.all())
    assert registry.root in str(error.value) and "mode" in error.value.hint
    with pytest.raises(UsageError, match="no sandbox"):
        registry.read("sandbox_2")


def test_a_sandbox_that_is_closed_to_us_is_listed_as_damaged(registry: Registry) -> None:
    """Not to root, to whom nothing is closed."""
    folder = registry.add(metadata())
    os.chmod(folder, 0o400)
    (found,) = registry.all()
    os.chmod(folder, 0o700)
    assert isinstance(found, Damaged) == (os.geteuid() != 0)


DAMAGES = {
    "empty": b"", "half": b'{"version": 1, "sandbox', "binary": b"\xff\xfe\x00", "no object": b"[]",
    "another version": b'{"version": 99}', "deep": b"[" * 100_000, "missing": b'{"version": 1}',
    "another's": json.dumps({**metadata("sandbox_2").to_dict()}).encode(),
    "unknown key": json.dumps({**metadata().to_dict(), "more": 1}).encode(),
    "wrong kind": json.dumps({**metadata().to_dict(), "bases": "x"}).encode(),
    "no time": json.dumps({**metadata().to_dict(), "created_s": float("nan")}).encode(),
    "endless time": json.dumps({**metadata().to_dict(), "created_s": float("inf")}).encode(),
    "huge time": json.dumps({**metadata().to_dict(), "created_s": 10**400}).encode(),
    "time that is none": json.dumps({**metadata().to_dict(), "created_s": True}).encode(),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_named_and_does_not_stop_the_others(registry: Registry, damage: str) -> None:
    registry.add(metadata("sandbox_0"))
    folder = registry.add(metadata())
    Path(folder, METADATA).write_bytes(DAMAGES[damage])
    with pytest.raises(SandboxError) as error:
        registry.read("sandbox_1")
    assert METADATA in str(error.value) and error.value.hint
    good, bad = registry.all()
    assert isinstance(good, Metadata) and isinstance(bad, Damaged) and bad.sandbox_id == "sandbox_1"


def test_metadata_that_is_a_link_or_a_fifo_is_damaged_and_never_followed(registry: Registry, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(json.dumps(metadata("sandbox_a").to_dict()))
    for name, make in (("sandbox_a", lambda p: os.symlink(elsewhere, p)), ("sandbox_b", os.mkfifo)):
        os.makedirs(os.path.join(registry.root, name))
        make(os.path.join(registry.root, name, METADATA))
        with pytest.raises(SandboxError):
            registry.read(name)


def test_a_linked_folder_is_no_sandbox(registry: Registry, tmp_path: Path) -> None:
    other = Registry(tmp_path / "other")
    other.add(metadata("sandbox_9"))
    os.makedirs(registry.root)
    os.symlink(other.folder("sandbox_9"), registry.folder("sandbox_9"))
    assert list(registry.all()) == []
    with pytest.raises(SandboxError):
        registry.read("sandbox_9")
    registry.remove("sandbox_9")
    assert other.read("sandbox_9") and not os.path.lexists(registry.folder("sandbox_9"))


def test_folders_of_others_are_left_alone(registry: Registry) -> None:
    os.makedirs(os.path.join(registry.root, "notes"))
    Path(registry.root, "file").write_text("x")
    assert list(registry.all()) == []
    registry.sweep()
    assert sorted(os.listdir(registry.root)) == ["file", "notes"]


def test_removing_leaves_nothing_and_follows_no_link(registry: Registry, tmp_path: Path) -> None:
    folder = registry.add(metadata())
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    (treasure / "coin").write_text("1")
    os.symlink(treasure, os.path.join(folder, "link"))
    os.makedirs(os.path.join(folder, "closed/below"))
    os.chmod(os.path.join(folder, "closed"), 0)
    registry.remove("sandbox_1")
    registry.remove("sandbox_1")
    assert os.listdir(registry.root) == [] and (treasure / "coin").read_text() == "1"


def test_what_was_broken_off_is_swept_up(registry: Registry) -> None:
    registry.add(metadata())
    os.rename(registry.folder("sandbox_1"), os.path.join(registry.root, ".leaving-1"))
    old, young = (os.path.join(registry.root, f".making-{age}") for age in ("old", "young"))
    for folder in (old, young):
        os.mkdir(folder)
    os.utime(old, (1, 1))
    registry.sweep()
    assert os.listdir(registry.root) == [".making-young"]


def test_use_makes_it_young_again(registry: Registry) -> None:
    place = os.path.join(registry.add(metadata()), METADATA)
    os.utime(place, (time.time() - 7200,) * 2)
    assert 1.9 < registry.idle_hours("sandbox_1") < 2.1
    registry.touch("sandbox_1")
    assert registry.idle_hours("sandbox_1") < 0.1


def test_writing_again_leaves_one_file(registry: Registry) -> None:
    folder = registry.add(metadata())
    registry.write(metadata(command=("x",)))
    assert registry.read("sandbox_1").command == ("x",) and os.listdir(folder) == [METADATA]


def test_a_root_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SandboxError) as error:
        Registry(tmp_path / "file").add(metadata())
    assert "sandbox_root" in error.value.hint


def test_ids_differ() -> None:
    assert len({new_id() for _ in range(1000)}) == 1000
