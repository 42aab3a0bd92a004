"""docs/reference/statuses.md against the code: every status and every fixed exit code, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from ringfence.model.outcome import FIXED_RC, Status

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "statuses.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([A-Z_]+)` \| ([^|]+) \| ([^|]+) \|[^|]*\|$", TEXT, re.MULTILINE)


def test_every_status_is_told_once_in_the_order_of_the_code_and_nothing_else() -> None:
    assert [name for name, _, _ in ROWS] == [str(status) for status in Status]


def test_a_fixed_exit_code_is_told_as_it_is_and_no_other_is_called_fixed() -> None:
    told = {name: int(code) for name, code, _ in ROWS if code.isdigit()}
    assert told == {str(status): code for status, code in FIXED_RC.items()}


def test_each_meaning_is_a_sentence() -> None:
    assert [meaning for _, _, meaning in ROWS if not re.fullmatch(r"[A-Zr].+\.", meaning)] == []


def test_the_first_page_leads_there() -> None:
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    assert "(docs/reference/statuses.md)" in readme
