"""A visit to a box that is ended before pid 1 has told who holds it is ended all the same."""

from __future__ import annotations

import os
import select
import subprocess
import threading
from collections.abc import Iterator

import pytest

from ringfence.roles import box_leader as boxed_visit
from ringfence.roles.box_leader import BoxLeader
from ringfence.roles.sandbox_end import BoxVisit
from ringfence.steps.state import REAPER
from ringfence.transport import passing

pytestmark = pytest.mark.system

HEARD = {"profile": "default", "ids": (0, 0), "watched": [], "wired": False, "share": 0.0, "witness": {}}
REQUEST = {"limits": {}, "plan": [], "scratch": "", "heard": HEARD}


@pytest.fixture
def reaper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture
def visit() -> BoxLeader:
    made = BoxLeader(dict(REQUEST), -1, -1, -1)
    made.contained = BoxVisit(made.request, lambda _: None)
    made.cause = "asked"
    return made


def test_its_reaper_is_waited_for(visit: BoxLeader, reaper: subprocess.Popen[bytes]) -> None:
    assert visit.contained is not None
    theirs, pidfd = visit.contained._theirs, os.pidfd_open(reaper.pid)
    later = threading.Timer(0.2, lambda: passing.send(theirs, REAPER, [pidfd]))
    later.start()
    visit.end_tree()
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    assert poller.poll(0), "the reaper lives on"
    os.close(pidfd)


def test_a_box_that_is_gone_is_not_waited_for(visit: BoxLeader, monkeypatch: pytest.MonkeyPatch) -> None:
    assert visit.contained is not None
    monkeypatch.setattr(boxed_visit, "_END_WAIT_S", 600.0)
    os.close(visit.contained._theirs)
    visit.end_tree()
    assert visit.contained.reaper < 0
