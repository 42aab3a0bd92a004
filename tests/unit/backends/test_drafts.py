"""A draft is used again only while everything that it was made from is as it was."""

from __future__ import annotations

import dataclasses
import os
import threading

import pytest

from ringfence.backends import drafts
from ringfence.backends.drafts import GOOD_FOR_S, Drafts
from ringfence.engine.pool import Pool
from ringfence.model.policy import SandboxPolicy
from ringfence.sandbox import host

pytestmark = pytest.mark.privileges


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def kept(monkeypatch):
    """Drafts on a host whose mount table and clock are the test's; drafts are numbers."""
    table = [b"one"]
    monkeypatch.setattr(host, "mount_table", lambda: table[0])
    clock, made = Clock(), []
    found = Drafts(clock)

    def find(of: object) -> int:
        return found.find(of, lambda: made.append(of) or len(made))

    return find, clock, table


def test_the_same_question_gets_the_same_draft(kept):
    find, clock, _ = kept
    assert find("policy") == 1
    clock.now_s += GOOD_FOR_S * 0.9
    assert find("policy") == 1


def test_a_draft_is_made_anew_after_its_time(kept):
    find, clock, _ = kept
    assert find("policy") == 1
    clock.now_s += GOOD_FOR_S
    assert find("policy") == 2


def test_use_does_not_make_a_draft_live_longer(kept):
    find, clock, _ = kept
    find("policy")
    for _ in range(3):
        clock.now_s += GOOD_FOR_S * 0.4
        find("policy")
    assert find("policy") == 2


def test_a_mount_makes_every_draft_old(kept):
    find, _, table = kept
    assert find("policy") == 1
    table[0] = b"one\ntwo"
    assert find("policy") == 2


def test_another_policy_gets_another_draft(kept):
    find, _, _ = kept
    assert find(SandboxPolicy(pids_max=5)) == 1
    assert find(SandboxPolicy(pids_max=6)) == 2
    assert find(SandboxPolicy(pids_max=6)) == 2


def test_a_mount_during_the_making_is_seen_the_next_time(monkeypatch):
    table = [b"before"]
    monkeypatch.setattr(host, "mount_table", lambda: table[0])
    found = Drafts(Clock())
    assert found.find("policy", lambda: table.__setitem__(0, b"after") or 1) == 1
    assert found.find("policy", lambda: 2) == 2


def test_of_many_who_come_at_once_one_makes_the_draft_and_the_others_wait_for_it(kept):
    made, inside, go_on = [], threading.Event(), threading.Event()
    found = Drafts(Clock())

    def make() -> int:
        made.append(1)
        inside.set()
        assert go_on.wait(30)
        return len(made)

    got: list[int] = []
    threads = [threading.Thread(target=lambda: got.append(found.find("policy", make))) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert inside.wait(30)
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert got == [1] * 8


@pytest.mark.system
def test_a_pool_shows_what_came_after_its_first_sandbox(tmp_path, monkeypatch):
    """A directory of packages that appears is there for the next standby sandbox, once the draft's time is over."""
    monkeypatch.setattr(drafts, "GOOD_FOR_S", 0.0)
    late = tmp_path / "late"
    policy = SandboxPolicy(isolation="strict", environment={"PYTHONPATH": str(late)})
    look = f"import os; print(os.path.exists({str(late / 'file')!r}))"
    with Pool(policy, warm=0) as pool:
        assert pool.run_source(look).stdout == b"False\n"
        late.mkdir()
        (late / "file").write_text("x")
        os.chmod(late, 0o755)
        assert pool.run_source(look).stdout == b"True\n"


def test_a_draft_can_not_be_changed_by_who_gets_it():
    draft = drafts.Draft(spec=None, shown=(), source=None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        draft.request = {}
