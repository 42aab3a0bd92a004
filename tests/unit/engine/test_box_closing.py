"""A box that is closed while others use it: clear errors for who comes late, an end for who is in, nothing left."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.patience import eventually
from tests.private_folders import left_in

import ringfence
from ringfence import Job, SandboxError, SandboxPolicy, Status, UsageError
from ringfence.engine import occupancy
from ringfence.engine.box import Box
from ringfence.engine.occupancy import Occupancy
from ringfence.roles import removal

pytestmark = [pytest.mark.system, pytest.mark.privileges]

THREADS, CLOSERS = 50, 3
# Found by nothing else on this machine.
LONG = f"{600 + os.getpid() / 1e7:.7f}"


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture(params=["strict", "process"])
def box(request: pytest.FixtureRequest, tmp: Path) -> Iterator[Box]:
    policy = SandboxPolicy(isolation=request.param, wall_time_s=120, pids_max=500, mem_bytes=8 << 30)
    with ringfence.open(policy) as opened:
        yield opened


def _sleepers() -> list[str]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            found += [name] if LONG.encode() in Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0") else []
        except OSError:
            continue
    return found


class User(threading.Thread):
    """Uses the box until it hears that it can't."""

    def __init__(self, use: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.use, self.in_use, self.heard = use, threading.Event(), ""

    def run(self) -> None:
        while not self.heard:
            self.in_use.set()
            try:
                self.use()
            except SandboxError as error:
                self.heard = f"{type(error).__name__}: {error}"


def _uses(box: Box) -> list[Callable[[], object]]:
    return [
        lambda: box.run(["sleep", LONG]),
        lambda: box.start(["sleep", LONG]).wait(),
        lambda: box.start(["true"]),
        lambda: box.run(Job(argv=("cat", "file"), files={"file": b"content"})),
        lambda: box.put("other", b"content"),
    ]


@pytest.mark.usefixtures("unmeasured_spawner")
def test_fifty_threads_that_use_a_box_while_three_close_it_all_hear_of_it(box: Box, tmp: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    uses = _uses(box)
    users = [User(uses[number % len(uses)]) for number in range(THREADS)]
    closers = [threading.Thread(target=box.close, daemon=True) for _ in range(CLOSERS)]
    for user in users:
        user.start()
    for user in users:
        user.in_use.wait()
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(60)
        assert not closer.is_alive()
        assert not _sleepers() and not left_in(tmp), "whoever comes back from closing finds nothing left"
    for user in users:
        user.join(60)
    assert not any(user.is_alive() for user in users)
    late = {user.heard for user in users}
    assert "UsageError: the box is closed" in late
    assert all("closed" in heard or "killed at the caller's request" in heard for heard in late), late
    eventually(lambda: len(os.listdir("/proc/self/fd")) < before, told=lambda: os.listdir("/proc/self/fd"))


def test_who_is_in_when_it_closes_is_told_that_the_caller_ended_it(box: Box) -> None:
    outcomes: list[ringfence.Outcome] = []
    visit = threading.Thread(target=lambda: outcomes.append(box.run(["sleep", LONG])))
    visit.start()
    eventually(_sleepers)
    box.close()
    visit.join(60)
    assert [outcome.status for outcome in outcomes] == [Status.KILLED_KILL]
    assert "killed at the caller's request" in outcomes[0].reason


@pytest.mark.parametrize("background", [False, True])
def test_closing_from_within_a_visit_is_done_when_that_has_ended(box: Box, tmp: Path, background: bool) -> None:
    program = ["sh", "-c", f"echo on; sleep {LONG}"]

    def heard(*_: object) -> None:
        box.close()

    outcome = box.start(program, on_output=heard).wait(60) if background else box.run(program, on_output=heard)
    assert outcome.status is Status.KILLED_KILL
    box.close()
    assert not _sleepers() and not left_in(tmp)
    with pytest.raises(UsageError, match="closed"):
        box.run(["true"])


@pytest.mark.parametrize("moment", ["end_all", "await_all"])
def test_ctrl_c_at_any_moment_still_closes_it(
    moment: str, box: Box, tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Occupancy) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Occupancy, moment, interrupted)
    with pytest.raises(KeyboardInterrupt):
        box.close()
    assert not left_in(tmp)
    other = threading.Thread(target=box.close, daemon=True)
    other.start()
    other.join(30)
    assert not other.is_alive()


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("use", ["box", "run"])
def test_ctrl_c_while_the_folder_is_removed_leaves_nothing_of_it(
    use: str, raised: type[BaseException], box: Box, tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_tree, calls = removal.remove_tree, []

    def interrupted(path: str) -> None:
        calls.append(path)
        if len(calls) == 1:
            raise raised
        remove_tree(path)

    before = set(left_in(tmp))
    assert len(before) == 1  # the control: the box has one
    monkeypatch.setattr(removal, "remove_tree", interrupted)
    with pytest.raises(raised):
        box.close() if use == "box" else ringfence.run(["true"], box.policy)
    assert len(calls) == 2 and set(left_in(tmp)) == (set() if use == "box" else before)


def test_a_commit_is_never_cut_in_half_by_closing(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes."""
    monkeypatch.setattr(occupancy, "_END_WAIT_S", 0.01)
    monkeypatch.setattr(occupancy, "_KILL_WAIT_S", 0.01)
    workspace, in_it, go_on = tmp / "workspace", threading.Event(), threading.Event()
    workspace.mkdir()
    box = ringfence.open(SandboxPolicy(isolation="strict"), workspace)
    box.put("file", b"content")
    commit = box._box.commit

    def slow() -> None:
        in_it.set()
        assert go_on.wait(30)
        commit()

    monkeypatch.setattr(box._box, "commit", slow)
    threads = [threading.Thread(target=use, daemon=True) for use in (box.commit, box.close)]
    threads[0].start()
    assert in_it.wait(30)
    threads[1].start()
    eventually(lambda: box.ended)
    threads[1].join(0.2)
    assert threads[1].is_alive()
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert (workspace / "file").read_bytes() == b"content"


def test_a_visit_that_does_not_end_is_abandoned_and_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stubborn:
        def __init__(self) -> None:
            self.heard: list[object] = []

        def signal(self, number: int) -> None:
            self.heard.append(number)

        def abandon(self) -> None:
            self.heard.append("abandoned")

    monkeypatch.setattr(occupancy, "_END_WAIT_S", 0.01)
    monkeypatch.setattr(occupancy, "_KILL_WAIT_S", 0.01)
    inside, early, late = Occupancy("box"), Stubborn(), Stubborn()
    inside.enter().attach(early)  # type: ignore[arg-type]
    between = inside.enter()
    assert inside.begin_closing() and not inside.begin_closing()
    inside.end_all()
    between.attach(late)  # type: ignore[arg-type]
    inside.await_all()
    assert early.heard == late.heard == [9, "abandoned"]
