"""Each file of a role says which process it is or is part of, and ARCHITECTURE's table says the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit import roles_table
from tests.unit.roles_table import (
    CALLER,
    FILES,
    KEYS,
    PART,
    headers,
    headers_of,
    imported,
    names_in,
    parts_of,
    processes,
    runs,
)  # fmt: skip


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


LOADED_ONLY = {
    ("leader of a visit", "observed"): "a visit is in namespaces, and its filter has a listener",
    ("warden", "observed"): "as are all of its sandboxes",
    ("leader of a visit", "layer_room"): "the leader of the box measures its directories",
    ("leader of a visit", "removal"): "a visit has no directory of its own",
    ("leader of a visit", "process_table"): "boxes with namespaces are Linux only",
    ("warden", "process_table"): "as are wardens",
}
"""Parts that a process loads with what it shares with another, and never runs."""


def test_a_part_names_every_process_that_runs_it() -> None:
    parts = [path for path in FILES if parts_of(path)]
    unnamed = {(each.name, path.stem) for each in processes() for path in runs(each.name) & {*parts}
               if each.name not in parts_of(path)}  # fmt: skip
    assert unnamed == set(LOADED_ONLY), "the «Part of» of these files"


def test_a_part_names_no_process_that_does_not_run_it() -> None:
    """``caller`` is not in these files; a part that hands over to a process, such as an ending, imports that one."""
    wrong = [(path.stem, name) for path in FILES for name in parts_of(path) if name != CALLER
             if path not in runs(name) and not any(_is(name, target) for target in imported(path))]  # fmt: skip
    assert wrong == []


def _is(name: str, path: Path) -> bool:
    return any(header.get(KEYS[0], "").split(", ")[0] == name for header in headers_of(path))


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
