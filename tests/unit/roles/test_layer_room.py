"""What a job's directories take is added up when more room has gone than the job may take, a piece at a time."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ringfence.kernel import folder_sum
from ringfence.kernel.folder_sum import FolderSum
from ringfence.roles import layer_room
from ringfence.roles.layer_room import LayerRoom

MIB = 1 << 20


class Free:
    def __init__(self) -> None:
        self.left = 100 * MIB

    def __call__(self) -> int:
        return self.left


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[LayerRoom, Free]:
    monkeypatch.setattr(layer_room, "_TURN_NS", 10**12)  # a whole sum in one turn, however busy the machine is
    free = Free()
    made = LayerRoom([str(tmp_path)], free)
    (tmp_path / "deep/er").mkdir(parents=True)
    for name in ("a", "deep/b", "deep/er/c"):
        (tmp_path / name).write_bytes(os.urandom(MIB))
    os.link(tmp_path / "a", tmp_path / "deep/twin")
    (tmp_path / "out").symlink_to("/usr")
    assert made.taken(MIB, tuple) == 0
    return made, free


def added_up(folder: Path, since_s: float = 0.0) -> FolderSum:
    made = FolderSum(since_s)
    for _ in made.pieces(str(folder)):
        pass
    return made


def test_nothing_is_added_up_while_the_room_is_there(room: tuple[LayerRoom, Free], tmp_path: Path) -> None:
    made, free = room
    free.left -= MIB
    assert made.taken(MIB, tuple) == 0
    assert LayerRoom([], free).taken(0, tuple) == 0


def test_everything_below_counts_once_and_no_link_is_followed(room: tuple[LayerRoom, Free]) -> None:
    made, free = room
    free.left -= 50 * MIB
    assert 3 * MIB <= made.taken(10 * MIB, tuple) < 4 * MIB


def test_no_more_is_added_up_than_has_to_be_known(room: tuple[LayerRoom, Free]) -> None:
    made, free = room
    free.left -= 50 * MIB
    assert MIB < made.taken(MIB, tuple) <= 3 * MIB


@pytest.mark.parametrize("given_back", ["before", "meanwhile"])
def test_room_that_others_give_back_hides_nothing(room: tuple[LayerRoom, Free], given_back: str) -> None:
    made, free = room
    for change in (40, -2) if given_back == "before" else (-1, 40, -1):
        free.left += change * MIB
        taken = made.taken(MIB, tuple)
    assert taken > MIB


def test_it_is_not_added_up_again_before_as_much_as_is_left_has_gone(
    room: tuple[LayerRoom, Free], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, free = room
    free.left -= 50 * MIB
    assert 3 * MIB <= made.taken(10 * MIB, tuple) < 4 * MIB < made.most + MIB
    monkeypatch.setattr(made, "_add_up", lambda *_: 7)
    free.left -= 6 * MIB
    assert made.taken(10 * MIB, tuple) == 0
    free.left -= MIB
    assert made.taken(10 * MIB, tuple) == 7


def test_a_removed_file_that_is_open_counts(room: tuple[LayerRoom, Free], tmp_path: Path) -> None:
    made, free = room
    with open(tmp_path / "gone", "wb") as file:
        file.write(os.urandom(2 * MIB))
        file.flush()
        os.fsync(file.fileno())
        os.unlink(tmp_path / "gone")
        free.left -= 50 * MIB
        assert made.taken(10 * MIB, lambda: [os.getpid()]) >= 5 * MIB


def test_what_earlier_jobs_left_in_a_kept_layer_is_not_this_ones(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(os.urandom(4 * MIB))
    begun_s = max(time.time(), (tmp_path / "kept").stat().st_ctime + 0.001)
    while time.time() <= begun_s + 0.02:
        time.sleep(0.005)
    (tmp_path / "new").write_bytes(os.urandom(MIB))
    assert MIB <= added_up(tmp_path, begun_s).bytes < 2 * MIB
    assert added_up(tmp_path).bytes >= 5 * MIB


def test_what_lay_there_before_is_taken_off_where_it_was_added_up(room: tuple[LayerRoom, Free]) -> None:
    made, free = room
    made.given = 2 * MIB
    free.left -= 50 * MIB
    assert MIB <= made.taken(10 * MIB, tuple) < 2 * MIB


def test_a_clock_that_was_set_back_hides_nothing(
    room: tuple[LayerRoom, Free], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, free = room
    monkeypatch.setattr(layer_room.time, "time", lambda: 1000.0)
    free.left -= 50 * MIB
    assert made.taken(10 * MIB, tuple) >= 3 * MIB


def test_the_sum_comes_in_pieces(room: tuple[LayerRoom, Free], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_room, "_TURN_NS", -1)
    made, free = room
    free.left -= 50 * MIB
    sums = [made.taken(10 * MIB, tuple) for _ in range(40)]
    assert sums[0] == 0 and max(sums) >= 3 * MIB


def test_a_folder_that_is_closed_is_charged_with_all_that_has_gone(
    room: tuple[LayerRoom, Free], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, free = room
    plain = os.open

    def refuse(path: str, *rest: int, **more: int) -> int:
        if path == "er":
            raise PermissionError(13, "closed")
        return plain(path, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    free.left -= 50 * MIB
    assert made.taken(10 * MIB, tuple) == 50 * MIB


def test_a_folder_that_gets_another_name_while_it_is_looked_for_is_found(
    room: tuple[LayerRoom, Free], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To and fro, each time in the moment between its listing and its opening."""
    plain, moves = os.open, []

    def move_first(path: str, *rest: int, **more: int) -> int:
        if path in ("er", "moved") and len(moves) < 5:
            names = ("er", "moved") if path == "er" else ("moved", "er")
            os.rename(tmp_path / "deep" / names[0], tmp_path / "deep" / names[1])
            moves.append(path)
        return plain(path, *rest, **more)

    monkeypatch.setattr(os, "open", move_first)
    found = added_up(tmp_path)
    assert found.bytes >= 3 * MIB and not found.is_partial and len(moves) == 5


def test_one_that_is_never_to_be_caught_leaves_a_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    plain = os.open

    def gone(path: str, *rest: int, **more: int) -> int:
        if path == "here":
            raise FileNotFoundError(2, "gone")
        return plain(path, *rest, **more)

    monkeypatch.setattr(os, "open", gone)
    assert added_up(tmp_path).is_partial


def test_a_folder_that_is_really_gone_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    plain = os.open

    def remove_first(path: str, *rest: int, **more: int) -> int:
        if path == "here":
            os.rmdir(tmp_path / "here")
        return plain(path, *rest, **more)

    monkeypatch.setattr(os, "open", remove_first)
    assert not added_up(tmp_path).is_partial


def test_in_doubt_all_room_that_went_is_charged_and_none_is_set_off(
    room: tuple[LayerRoom, Free], tmp_path: Path
) -> None:
    made, free = room
    tmp_path.joinpath(*"d" * (folder_sum._DEEPEST + 2)).mkdir(parents=True)
    for change in (-20, +50, -20):
        free.left += change * MIB
        made.taken(1000 * MIB, tuple)
    assert made.taken(30 * MIB, tuple) == 40 * MIB


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="there is no /proc")
@pytest.mark.parametrize(("asked", "charged"), [(1 << 22, 40 * MIB), (os.getpid(), 0)])
def test_processes_that_are_always_gone_when_they_are_asked_leave_a_doubt(
    room: tuple[LayerRoom, Free], asked: int, charged: int
) -> None:
    """They may pass on to their children what they hold."""
    made, free = room
    made.taken(30 * MIB, lambda: (asked,))
    free.left -= 40 * MIB
    found = [made.taken(30 * MIB, lambda: (asked,)) for _ in range(layer_room._TRIES + 1)]
    assert max(found) == charged if charged else max(found) < 30 * MIB


def test_a_tree_too_deep_to_keep_open_leaves_a_doubt_and_no_descriptor(tmp_path: Path) -> None:
    folder = tmp_path
    for _ in range(folder_sum._DEEPEST + 2):
        folder /= "d"
    folder.mkdir(parents=True)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert added_up(tmp_path).is_partial
    assert len(os.listdir("/proc/self/fd")) == before if before else True
