"""The import of a layer, on disk: nothing in it is followed, waited for or trusted, and whose fault a full disk is."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.checkpoint import content
from ringfence.checkpoint.transaction import Transaction
from ringfence.errors import SetupError, UsageError
from ringfence.proctor import import_filter, submission
from ringfence.proctor.submission import Submission, take

pytestmark = pytest.mark.privileges


class Run:
    """A staged base, and a layer over it as overlayfs would have left it."""

    def __init__(self, folder: Path) -> None:
        self.base, self.target = folder / "base", folder / "target"
        (self.base / "src").mkdir(parents=True)
        (self.base / "old" / "deep").mkdir(parents=True)
        (self.base / "src" / "a.py").write_text("a = 1\n")
        (self.base / "old" / "deep" / "x").write_text("x")
        (self.base / "gone.txt").write_text("here")
        self.transaction = Transaction.create(folder / "kept", [self.base])
        self.upper = Path(self.transaction.layers[0][1]) / "upper"

    def take(self, *forbidden: str) -> Submission:
        return take(self.transaction, str(self.base), str(self.target), "/workspace", forbidden)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    run.transaction.close()


def _whiteout(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o600, 0)


def test_an_untouched_base_is_copied_and_stays_as_it_is(made: Run) -> None:
    found = made.take()
    assert not found.dropped and not found.problem and found.folder == str(made.target)
    assert (made.target / "src" / "a.py").read_text() == "a = 1\n" and (made.target / "old" / "deep" / "x").exists()
    (made.target / "src" / "a.py").write_text("changed")
    assert (made.base / "src" / "a.py").read_text() == "a = 1\n"


# shortcomings 2 and 8
def test_deletions_arrive_and_links_and_fifos_do_not(made: Run) -> None:
    _whiteout(made.upper / "gone.txt")
    _whiteout(made.upper / "old")
    (made.upper / "answer").symlink_to("/oracle/expected.txt")
    (made.upper / "to").symlink_to("src/a.py")
    os.mkfifo(made.upper / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        place = os.getcwd()
        os.chdir(made.upper)  # names of sockets are short
        try:
            server.bind("sock")
        finally:
            os.chdir(place)
    found = made.take()
    assert sorted(os.listdir(made.target)) == ["src", "to"] and not found.problem
    assert {each.path for each in found.dropped} == {"answer", "pipe", "sock"}
    assert os.readlink(made.target / "to") == "src/a.py"


def test_a_folder_that_was_made_anew_hides_the_old_one(made: Run) -> None:
    (made.upper / "src").mkdir()
    os.setxattr(made.upper / "src", "user.overlay.opaque", b"y")
    (made.upper / "src" / "b.py").write_text("b")
    made.take()
    assert os.listdir(made.target / "src") == ["b.py"] and os.listxattr(made.target / "src") == []


def test_modes_names_and_second_names_are_harmless(made: Run) -> None:
    (made.upper / "set-id").write_text("s")
    (made.upper / "set-id").chmod(0o6755)
    (made.upper / "shut").write_text("shut")
    (made.upper / "shut").chmod(0)
    (made.upper / "dir").mkdir()
    (made.upper / "dir" / "in").write_text("in")
    (made.upper / "dir").chmod(0)
    os.link(made.upper / "shut", made.upper / "twin")
    odd = os.fsencode(made.upper) + b"/\xff\x1b[2J\n"
    Path(os.fsdecode(odd)).write_text("odd")
    try:
        found = made.take()
    finally:
        (made.upper / "dir").chmod(0o700)
    assert not found.problem and not found.dropped
    modes = {name: stat.S_IMODE((made.target / name).stat().st_mode) for name in ("set-id", "shut", "dir", "twin")}
    assert modes == {"set-id": 0o755, "shut": 0o600, "dir": 0o700, "twin": 0o600}
    assert (made.target / "dir" / "in").read_text() == "in" and (made.target / "twin").read_text() == "shut"
    assert b"\xff\x1b[2J\n" in os.listdir(os.fsencode(made.target))


def test_a_layer_whose_top_is_closed_is_read(made: Run) -> None:
    (made.upper / "new").write_text("new")
    made.upper.chmod(0)
    assert not made.take().problem and (made.target / "new").read_text() == "new"
    made.upper.chmod(0)
    assert [Path(each.path).name for each in made.transaction.changes()] == ["new"]


def test_a_hard_link_is_no_way_into_what_must_not_be_written(made: Run) -> None:
    (made.upper / "src").mkdir()
    (made.upper / "src" / "a.py").write_text("cheat\n")
    os.link(made.upper / "src" / "a.py", made.upper / "copy")
    found = made.take("/workspace/src")
    assert found.forbidden == ("/workspace/src/a.py",)
    assert (made.target / "src" / "a.py").read_text() == "a = 1\n"
    assert (made.target / "copy").read_text() == "cheat\n"


def test_a_file_that_was_only_opened_is_no_forbidden_write(made: Run) -> None:
    (made.upper / "src").mkdir()
    (made.upper / "src" / "a.py").write_text("a = 1\n")
    (made.upper / "src" / "a.py").chmod(stat.S_IMODE((made.base / "src" / "a.py").stat().st_mode))
    assert made.take("/workspace/src").forbidden == ()


def test_sparse_files_keep_their_holes_and_huge_ones_stay_outside(made: Run) -> None:
    for name, size in (("sparse", 1 << 26), ("huge", 1 << 42)):
        with open(made.upper / name, "wb") as file:
            try:
                file.truncate(size)
            except OSError:
                file.truncate(import_filter.MAX_FILE_BYTES + 1)  # what this file system can hold at most
    found = made.take()
    assert [each.path for each in found.dropped] == ["huge"] and not (made.target / "huge").exists()
    there = (made.target / "sparse").stat()
    assert there.st_size == 1 << 26 and there.st_blocks < 1000


def test_too_many_and_too_deep_are_the_agents_fail_and_no_error(made: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    place = os.open(made.upper, os.O_RDONLY)
    for _ in range(600):
        os.mkdir("d", dir_fd=place)
        below = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.close(place)
    found = made.take()
    assert "directories" in found.problem and os.listdir(made.target) == []


def test_more_paths_than_are_read_hide_no_forbidden_write(made: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "MAX_ENTRIES", 5)
    for number in range(12):
        (made.upper / f"a{number}").touch()
    (made.upper / "src").mkdir()
    (made.upper / "src" / "new.py").touch()
    (made.upper / "old").symlink_to("src")
    found = made.take("/workspace/src", "/workspace/old/deep", "/workspace/gone.txt")
    assert found.problem and found.forbidden == ("/workspace/old/deep", "/workspace/src/new.py")


@pytest.mark.parametrize("exchanged", [False, True])
def test_nor_one_through_a_link_of_the_workspace(made: Run, monkeypatch: pytest.MonkeyPatch, exchanged: bool) -> None:
    monkeypatch.setattr(submission, "MAX_ENTRIES", 5)
    (made.base / "current").symlink_to("src")
    for number in range(12):
        (made.upper / f"a{number}").touch()
    (made.upper / "src").mkdir()
    (made.upper / "src" / "a.py").write_text("changed")
    if exchanged:
        (made.upper / "current").symlink_to("a1")
    found = made.take("/workspace/current/a.py")
    assert found.problem and set(found.forbidden) >= {"/workspace/src/a.py"}
    assert any(path.startswith("/workspace/current") for path in found.forbidden) == exchanged


def test_more_paths_than_are_read_are_the_agents_fail(made: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        (made.upper / str(number)).touch()
    monkeypatch.setattr(submission, "MAX_ENTRIES", 10)
    assert "more than 10" in made.take().problem


def test_what_was_hidden_from_the_agent_is_not_taken_from_it(made: Run) -> None:
    made.transaction.hide([str(made.base / "secret")])
    (made.upper / "secret").write_text("planted")
    assert not made.take().problem and not (made.target / "secret").exists()


def test_marks_of_the_overlay_that_lead_elsewhere_are_the_agents_fail(made: Run) -> None:
    (made.upper / "moved").mkdir()
    os.setxattr(made.upper / "moved", "user.overlay.redirect", b"/old")
    assert "can't be read" in made.take().problem


def _no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_operators_full_disk_is_an_error_and_the_agents_full_layer_is_a_fail(
    made: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (made.upper / "big").write_bytes(bytes(range(256)) * 4096)
    monkeypatch.setattr(content, "pour", _no_room)
    monkeypatch.setattr(submission, "_free_bytes", lambda _: 0)
    with pytest.raises(SetupError, match="No space") as full:
        made.take()
    assert full.value.errno == errno.ENOSPC and full.value.hint
    made.target.rmdir()
    monkeypatch.setattr(submission, "SPARE_BYTES", 1000)  # the agent's megabyte is more than what is missing
    assert "larger than the free space" in made.take().problem and os.listdir(made.target) == []


def test_whose_fault_a_full_disk_is() -> None:
    spare = submission.SPARE_BYTES
    assert submission.is_full_without(agent_bytes=4096, base_bytes=1 << 20, free_bytes=0)
    assert submission.is_full_without(agent_bytes=spare - 1, base_bytes=0, free_bytes=0)
    assert not submission.is_full_without(agent_bytes=10 << 30, base_bytes=1 << 20, free_bytes=0)
    assert not submission.is_full_without(agent_bytes=1, base_bytes=1 << 20, free_bytes=2 * spare)


def test_the_target_must_be_new_and_the_base_have_a_layer(made: Run, tmp_path: Path) -> None:
    made.target.mkdir()
    with pytest.raises(SetupError, match="exists"):
        made.take()
    with pytest.raises(UsageError, match="no layer"):
        take(made.transaction, str(tmp_path), str(tmp_path / "t"))


def test_an_import_that_takes_too_long_is_the_agents_fail(made: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (made.upper / "file").write_text("x")
    monkeypatch.setattr(submission, "IMPORT_S", -1.0)
    assert "takes longer than" in made.take().problem
