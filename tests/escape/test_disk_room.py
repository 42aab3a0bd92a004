"""Whoever makes room on the disk meanwhile does not hide what a job writes."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence import SandboxPolicy, Status, run
from tests.finality import AttackSucceeded
from tests.patience import eventually

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]

MIB = 1 << 20
# A process that an ordinary user can't look into: only the room that goes from the disk tells what it writes.
_CLOSED = """
import ctypes, sys, time
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
with open('much', 'wb') as file:
    for _ in range(60): file.write(bytes(1 << 20)); file.flush(); time.sleep(0.02)
time.sleep(float(sys.argv[1]))
print('ESCAPED', flush=True)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """On a disk: files in memory are not counted."""
    with tempfile.TemporaryDirectory(prefix="room-", dir="/var/tmp") as name:
        (Path(name) / "workspace").mkdir()
        (Path(name) / "of others").write_bytes(os.urandom(MIB) * 80)
        yield Path(name)


def _ran_while_others_make_room(place: Path, late_s: float, **limits: int) -> tuple[Status, bytes]:
    written, ended = place / "workspace" / "much", threading.Event()

    def make_room() -> None:
        eventually(lambda: ended.is_set() or (written.exists() and written.stat().st_size >= 8 * MIB))
        os.truncate(place / "of others", 0)

    others = threading.Thread(target=make_room)
    others.start()
    try:
        command = [sys.executable, "-c", _CLOSED, str(late_s)]
        outcome = run(command, SandboxPolicy(isolation="process", wall_time_s=60, **limits), cwd=place / "workspace")
    finally:
        ended.set()
        others.join()
    return outcome.status, outcome.stdout


def test_room_that_others_give_back_hides_no_bytes_of_a_closed_process(place: Path) -> None:
    status, said = _ran_while_others_make_room(place, 3, disk_bytes=16 * MIB)
    if said:
        raise AttackSucceeded(said)
    assert status is Status.DISK_LIMIT


@pytest.mark.control
def test_the_control_without_a_limit_it_writes_all(place: Path) -> None:
    assert _ran_while_others_make_room(place, 0) == (Status.OK, b"ESCAPED\n")
