"""Calls of a tree are counted as the kernel counts them, and never more, whatever ends between two looks or in one."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ringfence.kernel.proc import procfs
from ringfence.kernel.proc.operations import OperationsCount

SHELL, CHILD = 10, 11


class World:
    """pid: (parent, operations); None: closed to us."""

    def __init__(self) -> None:
        self.counts: dict[int, int | None] = {}
        self.count = OperationsCount(lambda pid: self.counts.get(pid, 0))

    def look(self, waited_for: int = 0, **rows: int | None) -> int:
        """``rows``: shell and child, the first above the second, as they were listed."""
        numbers = {"shell": SHELL, "child": CHILD}
        listed: list[Any] = [
            SimpleNamespace(pid=numbers[name], asked=numbers[name], start=1, parent=1 if name == "shell" else SHELL)
            for name in rows
        ]
        self.counts = {numbers[name]: value for name, value in rows.items() if value != -1}
        return self.count.look(listed, waited_for)


def test_the_living_and_those_that_were_waited_for_are_added_up() -> None:
    assert World().look(waited_for=5, shell=100, child=20) == 125


def test_what_passes_to_a_parent_counts_once() -> None:
    world = World()
    assert world.look(shell=100, child=20) == 120
    assert world.look(shell=130) == 130
    assert world.look(waited_for=150) == 150


def test_one_that_ends_in_the_middle_of_a_look_counts_once() -> None:
    """Listed, and gone when it is asked: whether its parent has its count by then is not known."""
    early, late = World(), World()
    for world in (early, late):
        world.look(shell=100, child=50)
    assert early.look(shell=101, child=-1) == 150 and early.look(shell=151) == 151
    assert late.look(shell=151, child=-1) == 151 and late.look(shell=152) == 152


def test_a_job_that_was_collected_counts_once_though_that_is_told_later() -> None:
    world = World()
    assert world.look(shell=900) == 900
    assert world.look() == 900, "nobody has told"
    assert world.look(waited_for=931) == 931
    assert world.look(waited_for=931) == 931


def test_one_of_which_nobody_ever_tells_counts_as_it_was_seen() -> None:
    world = World()
    world.look(shell=900)
    assert world.look() == world.look() == 900


def test_what_was_seen_of_one_whose_end_nobody_was_told_of_stays() -> None:
    world = World()
    world.look(shell=10, child=500)
    assert world.look(shell=10) == 510
    assert world.look(shell=10, child=400) == 910


def test_of_one_that_closes_itself_counts_what_was_seen() -> None:
    world = World()
    world.look(shell=10, child=50)
    assert world.look(shell=10, child=None) == 60


@pytest.mark.parametrize(("state", "expected"), [("S", 7), ("Z", 7), ("X", 0), (None, 0)])
def test_of_one_that_is_being_collected_its_parent_has_the_count(
    state: str | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its io file can be read until the end of that, and the two would count twice."""

    def read(path: str) -> bytes:
        if path.endswith("/io"):
            return b"rchar: 1\nwchar: 1\nsyscr: 4\nsyscw: 3\n"
        if state is None:
            raise ProcessLookupError
        return f"11 (a) b) {state} 10 11".encode()

    monkeypatch.setattr(procfs, "_read", read)
    assert procfs.operations(CHILD) == expected


@pytest.mark.system
@pytest.mark.privileges
@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc elsewhere")
def test_of_its_children_a_process_knows_exactly_what_it_did_not_do_itself() -> None:
    own, thread = procfs.open_own_io(), procfs.open_thread_io()
    zero = os.open("/dev/zero", os.O_RDONLY)
    before = procfs.operations_waited_for(own, thread)
    child = os.fork()
    if child == 0:
        for _ in range(300):
            os.read(zero, 1)
        os._exit(0)
    for _ in range(77):
        os.read(zero, 1)
    os.waitpid(child, 0)
    os.read(zero, 1)
    assert procfs.operations_waited_for(own, thread) - before == 300
    for file in (zero, own, thread):
        os.close(file)
