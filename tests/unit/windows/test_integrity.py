"""Low integrity: labels as bytes, who is refused for the want of one, and the token that a job gets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.windows.fake_windows import FakeWindows
from tests.unit.windows.test_visit_by_hand import ASKED, COMMAND, WINDOWS

from ringfence.backends.on_windows.process import WindowsBackend, lacks_of, mechanisms
from ringfence.backends.on_windows.scratch import WindowsScratch
from ringfence.backends.on_windows.visit import JobVisit
from ringfence.backends.tables import entries
from ringfence.errors import SetupError, UnavailableError
from ringfence.model.outcome import Mechanism
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace
from ringfence.windows import integrity, job_limits

INTEGRITY = replace(WINDOWS, integrity=True)
LOW_LABEL = bytes.fromhex("02001c0001000000" "1103140001000000" "010100000000001000100000")
"""S:(ML;OICI;NW;;;LW), as Windows writes it."""


def test_a_label_is_what_windows_writes() -> None:
    assert integrity.label(integrity.LOW, inherited=True) == LOW_LABEL
    assert integrity.label(integrity.MEDIUM, inherited=False)[9] == 0


@pytest.mark.parametrize(("entries_", "level"), [
    (LOW_LABEL, (integrity.LOW, True)),
    (integrity.label(integrity.LOW, inherited=False), (integrity.LOW, False)),
    (bytes.fromhex("0200080000000000"), (integrity.MEDIUM, False)), (b"", (integrity.MEDIUM, False)),
    # an entry of another kind comes first
    (bytes.fromhex("0200300002000000" "0200140000000000" "010100000000000100000000") + LOW_LABEL[8:],
     (integrity.LOW, True)),
])  # fmt: skip
def test_a_label_is_read(entries_: bytes, level: tuple[int, bool]) -> None:
    assert integrity.level_of(entries_) == level


@given(st.binary(max_size=80))
def test_no_list_is_taken_for_low_unless_it_says_so(data: bytes) -> None:
    level, _ = integrity.level_of(data)
    assert level != integrity.LOW or integrity.LOW.to_bytes(4, "little") in data


def _policy(**asked: object) -> SandboxPolicy:
    return SandboxPolicy.from_dict(ASKED | {"writable_paths": ["/out"], **asked})


def test_writable_paths_are_held_where_the_caller_labelled_them() -> None:
    assert lacks_of(_policy(), INTEGRITY, lambda _: True) == ()
    (lack,) = lacks_of(_policy(), INTEGRITY, lambda _: False)
    assert lack.capability == "writable_paths" and lack.fix == 'icacls "/out" /setintegritylevel "(OI)(CI)low"'
    for name in ("/out/$(calc)", "/out/%PATH%", "/out/`calc", "/out/a & calc", '/out/"& calc'):
        (lack,) = lacks_of(_policy().with_changes(writable_paths=[name]), INTEGRITY, lambda _: False)
        assert lack.fix == 'icacls FOLDER /setintegritylevel "(OI)(CI)low"', "a line that is pasted runs nothing else"
    table = entries(_policy().requested(), mechanisms(INTEGRITY), ())
    assert table["writable_paths"].by == (Mechanism.LOW_INTEGRITY,)


def test_a_windows_that_does_not_hold_it_does_not_promise_it() -> None:
    assert [lack.capability for lack in lacks_of(_policy(), WINDOWS, lambda _: True)] == ["writable_paths"]


@pytest.mark.parametrize("low", [True, False])
def test_the_token_of_a_job_is_lowered_before_it_is_made(low: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWindows().install(monkeypatch, INTEGRITY)
    visit = JobVisit(COMMAND, (1, 2, 3), job_limits.job_limits({}, 2), {}, low=low)
    visit.close()
    assert (25 in fake.token) == low
    if low:
        assert int.from_bytes(fake.token[25][8:12], "little") == 0x20, "SE_GROUP_INTEGRITY"
        assert fake.called.index("SetTokenInformation") < fake.called.index("CreateProcessAsUserW")


def test_a_token_that_can_not_be_lowered_starts_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWindows().install(monkeypatch, INTEGRITY)
    monkeypatch.setattr(fake, "do_SetTokenInformation", lambda *_: 0, raising=False)
    with pytest.raises(SetupError):
        JobVisit(COMMAND, (1, 2, 3), job_limits.job_limits({}, 2), {}, low=True)
    assert "CreateProcessAsUserW" not in fake.called


def test_a_box_has_it_where_its_policy_names_what_may_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeWindows().install(monkeypatch, INTEGRITY)
    monkeypatch.setattr(integrity, "is_low", lambda _: True)
    assert not WindowsBackend().open(SandboxPolicy.from_dict(ASKED))._low
    assert WindowsBackend().open(_policy())._low
    monkeypatch.setattr(integrity, "is_low", lambda _: False)
    assert not WindowsBackend().open(_policy(allow_partial=True))._low


def test_our_own_folder_is_labelled_while_it_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later a job could have put a junction there, and the label would go through it."""
    labelled: list[list[str]] = []
    monkeypatch.setenv("TEMP", str(tmp_path))
    monkeypatch.setattr(integrity, "label_tree", lambda path: labelled.append(os.listdir(path)))
    for low in (True, False):
        scratch = WindowsScratch(low=low)
        scratch.prepare()
        scratch.prepare()
        scratch.remove()
    assert labelled == [[]]


def test_no_link_is_gone_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tree" / "inner").mkdir(parents=True)
    (tmp_path / "tree" / "inner" / "file").touch()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").touch()
    (tmp_path / "tree" / "way").symlink_to(tmp_path / "outside")
    labelled: list[str] = []

    def note(path: str, *rest: Any) -> int:
        labelled.append(path.rsplit("/", 1)[-1])
        return 0

    fake = FakeWindows().install(monkeypatch, INTEGRITY)
    monkeypatch.setattr(fake, "do_SetNamedSecurityInfoW", note, raising=False)
    integrity.label_tree(str(tmp_path / "tree"))
    assert sorted(labelled) == ["file", "inner", "tree"]


def test_where_nothing_is_promised_the_policy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from ringfence.engine.run import refuse

    FakeWindows().install(monkeypatch, WINDOWS)
    with pytest.raises(UnavailableError, match="writable_paths"):
        refuse(WindowsBackend(), _policy())
