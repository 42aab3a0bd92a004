"""Each file of a role says which process it is or is part of, and ARCHITECTURE's table says the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit import roles_table
from tests.unit.roles_table import CALLER, FILES, KEYS, PART, headers, headers_of, names_in, processes


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_role_says_who_it_is(path: Path) -> None:
    known = {CALLER, *(each.name for each in processes())}
    found = headers_of(path)
    assert found
    for header in found:
        whole = PART in header and len(found) == len(header) == 1
        assert whole or tuple(header) == KEYS
        named = names_in(header[PART] if PART in header else header["Parent"])
        assert set(named) <= known


def test_the_table_of_processes_is_what_the_roles_say() -> None:
    assert roles_table.WRITTEN.current() == roles_table.rendered(), "run: python -m tests.unit.roles_table"


def test_a_process_comes_after_the_one_that_forks_it() -> None:
    names = [CALLER, *(each.name for each in processes())]
    assert len(set(names)) == len(names)
    assert all(names.index(parent) < names.index(each.name) for each in processes() for parent in each.parents)


def test_a_header_may_go_on_in_the_next_line_and_a_file_be_two_processes() -> None:
    first = "Runs as: one, once.\nParent: caller\nHolds: a,\n    b.\nMust not have: c."
    text = f"What.\n\n{first}\n\nRuns as: two, twice.\n\nMore: d."
    assert headers(text) == [
        {"Runs as": "one, once.", "Parent": "caller", "Holds": "a, b.", "Must not have": "c."},
        {"Runs as": "two, twice."},
    ]
