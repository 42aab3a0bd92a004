"""What is only spelled anew, where names have no case."""

from __future__ import annotations

import pytest

from ringfence.checkpoint import apply
from ringfence.checkpoint.entry import FILE, Entry

FOUND = Entry(kind=FILE, digest="d")


@pytest.mark.parametrize(("knows_no_case", "written"), [(True, ["A.txt"]), (False, [])])
def test_it_is_written_after_its_old_name_is_gone(
    monkeypatch: pytest.MonkeyPatch, knows_no_case: bool, written: list[str]
) -> None:
    """Else the commit removes the file by its old name, and with it the new one."""
    monkeypatch.setattr(apply, "KNOWS_NO_CASE", knows_no_case)
    now = {"a.txt": FOUND, "A.txt": FOUND, "other": FOUND}
    assert apply._difference(now, {"A.txt": FOUND, "other": FOUND}) == (written, ["a.txt"])
