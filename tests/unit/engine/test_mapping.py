"""A function over many items: in order, so many at a time, the first failure, Ctrl-C, the bar on a terminal."""

from __future__ import annotations

import io
import os
import pty
import signal
import threading
import time

import pytest

from ringfence.engine import mapping
from ringfence.engine.mapping import Bar, map_in_order


def test_values_stand_in_the_order_of_the_items_whoever_ends_first() -> None:
    gates = [threading.Event() for _ in range(4)]

    def one(item: object) -> object:
        assert isinstance(item, int)
        if item:
            gates[item - 1].set()  # the later item ends before the earlier one
        if item < 3:
            assert gates[item].wait(30)
        return item * 10

    assert map_in_order(one, range(4), 4, progress=False) == [0, 10, 20, 30]


def test_no_more_than_asked_run_at_a_time() -> None:
    running, most, lock = [0], [0], threading.Lock()

    def one(_: object) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.002)
        with lock:
            running[0] -= 1

    map_in_order(one, range(40), 3, progress=False)
    assert 1 <= most[0] <= 3


def test_no_items_give_no_values() -> None:
    assert map_in_order(lambda item: item, [], 4, progress=True) == []


def test_the_first_failure_in_the_order_of_the_items_is_raised_and_no_more_are_begun() -> None:
    begun: list[object] = []
    second_failed = threading.Event()

    def one(item: object) -> object:
        begun.append(item)
        if item == 1:
            second_failed.set()
            raise ValueError("second")
        if item == 0:
            assert second_failed.wait(30)
            raise KeyError("first")
        return item

    with pytest.raises(KeyError, match="first"):
        map_in_order(one, range(1000), 2, progress=False)
    assert len(begun) < 1000


def test_ctrl_c_is_raised_at_once_and_no_more_are_begun() -> None:
    begun, go_on = [], threading.Event()

    def one(item: object) -> None:
        begun.append(item)
        if item == 0:
            os.kill(os.getpid(), signal.SIGINT)
        assert go_on.wait(30)

    with pytest.raises(KeyboardInterrupt):
        map_in_order(one, range(100), 2, progress=False)
    go_on.set()
    assert len(begun) <= 2


def test_the_bar_is_drawn_on_a_terminal_and_removed() -> None:
    ours, theirs = pty.openpty()
    with open(theirs, "w", encoding="utf-8") as terminal:
        bar = Bar(2, terminal)
        bar.step()
        bar.close()
        shown = ""
        while not shown.endswith("\x1b[K"):  # it comes in pieces
            shown += os.read(ours, 4096).decode()
    os.close(ours)
    assert "█" in shown and "1/2" in shown and "s left" in shown
    assert shown.endswith("\r\x1b[K")


class Gone(io.StringIO):
    """A terminal that nobody sits at any more, or that can't show what it is given."""

    def __init__(self, problem: Exception) -> None:
        super().__init__()
        self.problem = problem

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        raise self.problem


@pytest.mark.parametrize(
    "stream",
    [Gone(OSError(5, "Input/output error")), Gone(UnicodeEncodeError("ascii", "█", 0, 1, "no")), None, io.StringIO()],
    ids=["gone", "ascii", "none", "closed"],
)
def test_no_value_is_lost_with_the_terminal(stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if stream is not None and not stream.isatty():
        stream.close()
    monkeypatch.setattr(mapping.sys, "stderr", stream)
    assert map_in_order(lambda item: item, range(5), 2, progress=True) == list(range(5))


def test_the_bar_is_not_drawn_elsewhere() -> None:
    stream = io.StringIO()
    bar = Bar(2, stream)
    bar.step()
    bar.close()
    assert stream.getvalue() == "" and bar.done == 1


def test_the_bar_goes_to_stderr_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = {}
    for progress in (False, True):
        monkeypatch.setattr(mapping.sys, "stderr", Terminal())
        map_in_order(lambda item: item, range(3), 1, progress=progress)
        shown[progress] = mapping.sys.stderr.getvalue()
    assert shown[False] == "" and "/3" in shown[True]
