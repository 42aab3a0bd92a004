"""One way for one thing: what the whole package does in a single place."""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "ringfence"
BY_THEMSELVES = ("evidence/", "pytest_runner/guest/")
"""They are read and run without the rest."""


def _with(pattern: str) -> list[str]:
    found = [path for path in PACKAGE.rglob("*.py") if re.search(pattern, path.read_text("utf-8"), re.MULTILINE)]
    names = sorted(str(path.relative_to(PACKAGE)) for path in found)
    return [name for name in names if not name.startswith(BY_THEMSELVES)]


def test_there_is_one_kind_of_record_and_one_replace() -> None:
    assert _with(r"^from dataclasses|^import dataclasses") == []
    assert _with(r"^    from dataclasses import") == ["model/record.py"]


def test_there_is_one_enum_of_strings() -> None:
    assert _with(r"from enum import .*StrEnum") == ["model/str_enum.py"]


def test_control_characters_are_escaped_in_one_place() -> None:
    assert _with(r"isprintable\(\).*ascii\(") == ["model/system_text.py"]


def test_whoever_waits_for_a_change_takes_its_lock_and_not_the_condition() -> None:
    """A condition is entered in Python: a signal's exception in there leaves the lock taken for good."""
    assert _with(r"Condition\(\)") == []
    conditions = {name for path in PACKAGE.rglob("*.py")
                  for name in re.findall(r"(self\.\w+) = threading\.Condition", path.read_text("utf-8"))}  # fmt: skip
    assert conditions and _with("|".join(rf"with {re.escape(name)}\b" for name in conditions)) == []
