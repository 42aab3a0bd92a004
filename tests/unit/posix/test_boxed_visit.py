"""A visit to a box that is ended before pid 1 has told who holds it is ended all the same."""

from __future__ import annotations

import os
import select
import subprocess
import threading
from collections.abc import Iterator

import pytest

from ringfence.linux.building import HOLDER
from ringfence.posix import boxed_visit, passing
from ringfence.posix.boxed_visit import BoxedVisit
from ringfence.posix.contained import Visitor

pytestmark = pytest.mark.system

REQUEST = {"limits": {}, "plan": [], "scratch": "", "profile": "default", "ids": (0, 0), "watched": [], "wired": False}

REQUEST = {"limits": {}, "plan": [], "scratch": "", "profile": "default", "ids": (0, 0)}
REQUEST |= {"watched": [], "wired": False, "share": 0.0}


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture
def visit() -> BoxedVisit:
    made = BoxedVisit(dict(REQUEST), -1, -1, -1)
    made.contained = Visitor(made.request, lambda _: None)
    made.cause = "asked"
    return made


def test_its_holder_is_waited_for(visit: BoxedVisit, holder: subprocess.Popen[bytes]) -> None:
    assert visit.contained is not None
    theirs, pidfd = visit.contained._theirs, os.pidfd_open(holder.pid)
    later = threading.Timer(0.2, lambda: passing.send(theirs, HOLDER, [pidfd]))
    later.start()
    visit.end_tree()
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    assert poller.poll(0), "the holder lives on"
    os.close(pidfd)


def test_a_box_that_is_gone_is_not_waited_for(visit: BoxedVisit, monkeypatch: pytest.MonkeyPatch) -> None:
    assert visit.contained is not None
    monkeypatch.setattr(boxed_visit, "_END_WAIT_S", 600.0)
    os.close(visit.contained._theirs)
    visit.end_tree()
    assert visit.contained.holder < 0
