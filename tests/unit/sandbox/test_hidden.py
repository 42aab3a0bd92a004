"""Hidden paths as a set: right at the edges of names, and without a look at every one."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ringfence.sandbox import host
from ringfence.sandbox.hidden import HiddenPaths
from ringfence.steps import linux_steps as plan

HIDDEN = HiddenPaths(["/srv/a", "/srv/ab/c", "/srv/a.b", "/x", "/srv/a/deep"])


@pytest.mark.parametrize(
    ("path", "is_hidden"),
    [("/srv/a", True), ("/srv/a/b/c", True), ("/srv/ab", False), ("/srv/ab/c", True), ("/srv", False), ("/", False),
     ("/x", True), ("/xy", False), ("/srv/a.b", True), ("/srv/a.bc", False)],
)  # fmt: skip
def test_a_path_is_covered_by_itself_and_by_what_contains_it(path: str, is_hidden: bool) -> None:
    assert HIDDEN.cover(path) is is_hidden


@pytest.mark.parametrize(
    ("folder", "names"),
    [("/srv", ["a", "a.b", "a/deep", "ab/c"]), ("/srv/ab", ["c"]), ("/srv/a", ["deep"]), ("/", ["srv/a", "srv/a.b",
     "srv/a/deep", "srv/ab/c", "x"]), ("/x", []), ("/s", [])],
)  # fmt: skip
def test_what_lies_below_a_folder_is_named_from_it(folder: str, names: list[str]) -> None:
    assert HIDDEN.below(folder) == names


def test_the_folders_that_they_lie_in() -> None:
    assert HIDDEN.folders == {"/srv", "/srv/ab", "/", "/srv/a"}
    assert len(HiddenPaths()) == 0 and not HiddenPaths().cover("/any")


@pytest.mark.parametrize(
    ("folder", "paths"),
    [("/srv/a", ["/srv/a", "/srv/a/deep"]), ("/srv/ab", ["/srv/ab/c"]), ("/x", ["/x"]), ("/xy", []), ("/s", [])],
)
def test_what_is_hidden_at_a_folder_or_below_it(folder: str, paths: list[str]) -> None:
    assert HIDDEN.within(folder) == paths


@pytest.mark.parametrize("order", [1, -1])
def test_a_hidden_folder_is_absent_whatever_is_hidden_in_it(tmp_path: Path, order: int) -> None:
    (tmp_path / "base" / "a" / "b").mkdir(parents=True)
    names = ["a/b/deep", "a/name", "a/b", "a", "top", "none/at/all"][::order]
    plan.whiteouts(str(tmp_path / "layer"), str(tmp_path / "base"), names)
    made = {path.name: path.lstat() for path in (tmp_path / "layer").iterdir()}
    assert sorted(made) == ["a", "top"]
    assert all(stat.S_ISCHR(status.st_mode) and status.st_rdev == 0 for status in made.values())


def test_of_many_names_links_are_found_in_a_listing(tmp_path: Path) -> None:
    names = [tmp_path / f"{number}" for number in range(100)]
    for name in names[:-2]:
        name.touch()
    names[-2].symlink_to("../elsewhere")
    place = os.path.realpath(tmp_path)
    found = host.every_name(tuple(map(str, names)))
    assert found == (*(f"{place}/{number}" for number in range(100)), f"{os.path.dirname(place)}/elsewhere")


def test_links_on_the_way_and_at_the_end_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "answer").write_text("42")
    os.symlink("real", tmp_path / "way")
    os.symlink("real/answer", tmp_path / "end")
    place = os.path.realpath(tmp_path)
    asked = (f"{tmp_path}/way/answer", f"{tmp_path}/end", f"{tmp_path}/none/at/all", f"{tmp_path}/real/")
    assert set(host.every_name(asked)) == {
        f"{place}/real/answer", f"{place}/end", f"{place}/none/at/all", f"{place}/real",
    }  # fmt: skip


def test_a_dangling_link_is_hidden_with_where_it_leads(tmp_path: Path) -> None:
    os.symlink("gone", tmp_path / "link")
    place = os.path.realpath(tmp_path)
    assert host.every_name((f"{tmp_path}/link",)) == (f"{place}/link", f"{place}/gone")


def test_names_in_a_folder_that_is_shown_elsewhere_too() -> None:
    hidden = HiddenPaths(("/real/a/key", "/real/b"))
    assert [*hidden.also_at([("/real/a", "/link/a"), ("/other", "/x")])] == ["/link/a/key", "/real/a/key", "/real/b"]
    assert hidden.also_at([]) is hidden
