"""What a job's folders take is added up when more room has gone than the job may take, a piece at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
    (tmp_path / "deep/er").mkdir(parents=True)
    for name in ("a", "deep/b", "deep/er/c"):
        (tmp_path / name).write_bytes(os.urandom(MIB))
    os.link(tmp_path / "a", tmp_path / "deep/twin")
    (tmp_path / "out").symlink_to("/usr")
    free = Free()
    made = LayerRoom([str(tmp_path)], free)
    assert made.taken(MIB, ()) == 0
    return made, free


def test_nothing_is_added_up_while_the_room_is_there(room: tuple[LayerRoom, Free], tmp_path: Path) -> None:
    made, free = room
    free.left -= MIB
    assert made.taken(MIB, ()) == 0
    assert LayerRoom([], free).taken(0, ()) == 0


def test_everything_below_counts_once_and_no_link_is_followed(room: tuple[LayerRoom, Free]) -> None:
    made, free = room
    free.left -= 50 * MIB
    assert 3 * MIB <= made.taken(MIB, ()) < 4 * MIB


def test_room_that_others_freed_before_hides_nothing(room: tuple[LayerRoom, Free]) -> None:
    made, free = room
    free.left += 40 * MIB
    made.taken(MIB, ())
    free.left -= 2 * MIB
    assert made.taken(MIB, ()) >= 3 * MIB


def test_a_removed_file_that_is_open_counts(room: tuple[LayerRoom, Free], tmp_path: Path) -> None:
    made, free = room
    with open(tmp_path / "gone", "wb") as file:
        file.write(os.urandom(2 * MIB))
        file.flush()
        os.fsync(file.fileno())
        os.unlink(tmp_path / "gone")
        free.left -= 50 * MIB
        assert made.taken(MIB, [os.getpid()]) >= 5 * MIB


def test_the_sum_comes_in_pieces(room: tuple[LayerRoom, Free], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_room, "_TURN_NS", -1)
    made, free = room
    free.left -= 50 * MIB
    sums = [made.taken(MIB, ()) for _ in range(12)]
    assert sums[0] == 0 and max(sums) >= 3 * MIB


def test_a_folder_that_is_closed_is_charged_with_all_that_has_gone(
    room: tuple[LayerRoom, Free], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, free = room
    plain = os.open

    def refuse(path: str, *rest: int) -> int:
        if path.endswith("/er"):
            raise PermissionError(13, "closed")
        return plain(path, *rest)

    monkeypatch.setattr(os, "open", refuse)
    free.left -= 50 * MIB
    assert made.taken(MIB, ()) == 50 * MIB
