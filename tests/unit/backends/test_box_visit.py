"""A visit to a living box says why the box has ended, whoever of the two leaders speaks first."""

from __future__ import annotations

import gc
import json
import os
import threading
from pathlib import Path

import pytest
from tests.patience import eventually
from tests.private_folders import left_in

import ringfence
from ringfence import SandboxError, SandboxPolicy, SetupError, Status
from ringfence.backends.background_io import BackgroundStreams
from ringfence.backends.facts import Report
from ringfence.backends.leader_client import LeaderClient
from ringfence.backends.living import visit as box_visit
from ringfence.backends.living.visit import VisitToBox
from ringfence.kernel.proc import procfs
from ringfence.transport import wire

pytestmark = pytest.mark.privileges


@pytest.mark.system
@pytest.mark.parametrize("level", ["strict", "process"])
def test_a_box_that_everybody_has_forgotten_leaves_nothing(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ringfence.open(SandboxPolicy(isolation=level)).close()  # what stays is there from now on
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    box = ringfence.open(SandboxPolicy(isolation=level))
    assert box.run(["sh", "-c", "sleep 600 > /dev/null 2>&1 &"]).ok
    handle = box.start(["cat"])
    handle.signal(9)
    leader = box.watchable.leaders() if level == "strict" else ()
    assert handle.wait(30).rc == 137 and left_in(tmp_path)
    del box, handle
    gc.collect()
    eventually(lambda: not left_in(tmp_path) and not any(map(procfs.stat, leader)))
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_what_is_written_while_the_input_is_closed_reaches_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose file has the number then."""
    dialogue, write = BackgroundStreams(output_bytes=1 << 20), wire.write_all
    reader, dialogue._input = os.pipe()
    taken: list[int] = []

    def slow(descriptor: int, data: bytes) -> None:
        ours = dialogue._input
        dialogue.close_input()
        taken.append(ours)
        other = os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)
        if other != ours:
            os.dup2(other, ours)
            os.close(other)
        write(descriptor, data)

    monkeypatch.setattr(wire, "write_all", slow)
    dialogue.write(b"for the guest")
    assert os.read(reader, 99) == b"for the guest" and os.read(reader, 99) == b""
    assert (tmp_path / "other").read_bytes() == b""
    for descriptor in (reader, *taken):
        os.close(descriptor)


class BoxSupervisor:
    """Says what is written into its pipe."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.pids_hits = 4

    def filenos(self) -> tuple[int, ...]:
        return (self.reader,)

    def events(self) -> tuple[int, int]:
        return 5, self.pids_hits

    def most_memory(self, summed_bytes: int) -> int:
        return min(summed_bytes, 60)

    def network(self, *, settled: bool = False) -> tuple[int, str]:
        return 900, "the gateway is gone"

    def receive(self) -> Report | None:
        try:
            return Report(cause=os.read(self.reader, 99).decode(), wall_ns=5)
        except BlockingIOError:
            return None


def _visit(supervisor: BoxSupervisor, monkeypatch: pytest.MonkeyPatch) -> VisitToBox:
    visit = VisitToBox.__new__(VisitToBox)
    visit._supervisor = supervisor  # type: ignore[assignment]
    visit._events_before, visit._bytes_before = (2, 4), 200
    visit.since, visit._settled = None, None
    monkeypatch.setattr(LeaderClient, "receive", lambda self: Report(cause="reaper_gone", wall_ns=7))
    return visit


@pytest.mark.parametrize("late_s", [0.0, 0.1])
def test_why_the_whole_box_was_ended_is_why_the_visit_was(late_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = BoxSupervisor()
    teller = threading.Timer(late_s, lambda: os.write(supervisor.writer, b"memory"))
    teller.start()
    if not late_s:
        teller.join()
    report = _visit(supervisor, monkeypatch).receive()
    teller.join()
    assert (report.cause, report.wall_ns) == ("memory", 7)  # type: ignore[union-attr]


def test_where_only_the_reaper_has_gone_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_visit, "_GRACE_S", 0.05)
    report = _visit(BoxSupervisor(), monkeypatch).receive()
    assert report is not None and report.cause == "reaper_gone"
    assert report.box_oom_kills == 3  # of those that the box has counted, the ones since the visit came
    assert (report.network_bytes, report.network_problem) == (700, "the gateway is gone")


def test_a_visit_that_there_was_no_room_for_has_met_the_limit_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_visit, "_GRACE_S", 0.05)
    supervisor = BoxSupervisor()
    supervisor.pids_hits = 5
    report = _visit(supervisor, monkeypatch).receive()
    assert report is not None and (report.cause, report.cgroup_pids_hits) == ("", 1)


def test_a_box_that_can_not_be_entered_because_it_has_ended_is_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(self: LeaderClient) -> Report:
        raise SetupError(step, "Broken pipe")

    supervisor = BoxSupervisor()
    os.write(supervisor.writer, b"memory")
    visit = _visit(supervisor, monkeypatch)
    monkeypatch.setattr(LeaderClient, "receive", failed)
    step = wire.ENTER
    assert visit.receive().cause == "memory"  # type: ignore[union-attr]
    step, visit._settled = "exec", None
    with pytest.raises(SetupError):
        visit.receive()


def test_the_gateways_side_hears_a_call_before_anybody_asks_who_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call and the end of its visit may come together: then what was decided has to be told at once."""
    visit, heard = _visit(BoxSupervisor(), monkeypatch), []
    visit._supervisor.hear = heard.extend  # type: ignore[method-assign]
    visit._notes, visit._copies, visit._report = [], [], None
    visit._handle(wire.NOTED, json.dumps({"operation": "connect", "path": "10.0.0.1:80"}).encode())
    assert [note["path"] for note in heard] == ["10.0.0.1:80"]
    visit._handle(wire.LEFT, b"")
    assert len(heard) == 1


@pytest.mark.system
def test_a_box_without_room_for_a_visit_says_so_by_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernel's count, or where that is not to be had by the watchdog's, which ends the box."""
    with ringfence.open(SandboxPolicy(isolation="strict", pids_max=8, wall_time_s=60)) as box:
        if "cgroup" in box.enforced["pids"].by:
            monkeypatch.setattr(box_visit, "_GRACE_S", 0.05)
        full = "i=0; while [ $i -lt 20 ]; do sleep 60 & i=$((i + 1)); done; wait"
        outcomes = [box.run(["sh", "-c", full]), box.run(["true"])]
        assert [outcome.status for outcome in outcomes] == [Status.PIDS_LIMIT] * 2, outcomes
        with pytest.raises(SandboxError, match=r"beyond 8|8 are allowed"):
            box.put("file", b"")
