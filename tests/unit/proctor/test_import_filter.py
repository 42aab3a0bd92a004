"""What of an agent's layer comes into the graded tree, as data: every kind of entry that could hurt or mislead."""

from __future__ import annotations

import pytest

from ringfence.checkpoint import merge
from ringfence.checkpoint.entry import (
    BLOCK,
    CHARACTER,
    DELETED,
    FIFO,
    FILE,
    FOLDER,
    GONE,
    LINK,
    SOCKET,
    UNKNOWN,
    Entry,
)
from ringfence.model.record import replace
from ringfence.proctor import import_filter
from ringfence.proctor.import_filter import Sifted, sift, why_leaves

HOME = "/workspace"
DIR = Entry(kind=FOLDER, mode=0o755)
TEXT = Entry(kind=FILE, mode=0o644, size=3)
NEW = replace(TEXT, digest=UNKNOWN, size=5)
BASE = {"src": DIR, "src/a.py": TEXT, "src/b.py": TEXT, "tests": DIR, "tests/t.py": TEXT, ".git": DIR,
        ".git/config": TEXT, ".git/hooks": DIR, ".git/hooks/x.sample": TEXT}  # fmt: skip


def _link(target: str) -> Entry:
    return Entry(kind=LINK, target=target)


def _dropped(found: Sifted) -> list[str]:
    return [each.path for each in found.dropped]


def test_what_was_changed_and_added_is_the_agents_and_all_else_the_bases() -> None:
    found = sift(BASE, {"src": DIR, "src/a.py": NEW, "new.py": NEW}, HOME)
    assert found.own == {"src", "src/a.py", "new.py"} and not found.dropped and not found.problem
    assert found.tree.keys() == {*BASE, "new.py"} and found.tree["src/b.py"] is TEXT


def test_what_of_the_agents_would_set_up_a_run_of_tests_is_named() -> None:
    layer = {"src": DIR, "src/conftest.py": NEW, "tox.ini": NEW, "new.py": NEW, "my_conftest.py": NEW}
    assert sift({**BASE, "pytest.ini": TEXT}, layer, HOME).settings == ("src/conftest.py", "tox.ini")


# shortcoming 8
def test_deletions_are_honoured_also_of_folders_and_below_opaque_ones() -> None:
    found = sift(BASE, {"src": DIR, "src/a.py": GONE, "tests": GONE}, HOME)
    assert found.tree.keys() == {"src", "src/b.py", ".git", ".git/config", ".git/hooks", ".git/hooks/x.sample"}
    found = sift(BASE, {"src": replace(DIR, opaque=True), "src/c.py": NEW}, HOME)
    assert {path for path in found.tree if path.startswith("src")} == {"src", "src/c.py"}


@pytest.mark.parametrize("kind", [FIFO, SOCKET, CHARACTER, BLOCK])
def test_special_files_are_left_out_and_what_they_replaced_does_not_come_back(kind: str) -> None:
    odd = Entry(kind=kind, mode=0o666, device=0x101)
    found = sift(BASE, {"src": DIR, "src/a.py": odd, "pipe": odd}, HOME)
    assert _dropped(found) == ["pipe", "src/a.py"] and "src/a.py" not in found.tree
    assert "src/a.py" in merge.view(BASE, {"src": DIR, "src/a.py": odd})  # without the filter it is there


def test_set_id_bits_attributes_and_closed_modes_do_not_come_in() -> None:
    odd = {"su": replace(NEW, mode=0o6755), "shut": replace(NEW, mode=0), "dir": replace(DIR, mode=0o1000),
           "x": replace(NEW, mode=0o111, attributes=(("user.x", "00"),), mtime_ns=99)}  # fmt: skip
    found = sift({}, odd, HOME, now_ns=50)
    assert {path: entry.mode for path, entry in found.tree.items()} == {
        "su": 0o755, "shut": 0o600, "dir": 0o700, "x": 0o711}  # fmt: skip
    assert found.tree["x"].attributes == () and found.tree["x"].mtime_ns == 50


@pytest.mark.parametrize("path", [
    "src/__pycache__/a.cpython-311.pyc", "a.pyc", "x.pyo", "evil.pth", "sitecustomize.py",
    "lib/usercustomize/__init__.py",
])  # fmt: skip
def test_what_python_would_run_in_place_of_its_source_is_left_out(path: str) -> None:
    folders = {"/".join(path.split("/")[:n]): DIR for n in range(1, path.count("/") + 1)}
    found = sift(BASE, {**folders, path: NEW}, HOME)
    assert path not in found.tree and any(path.startswith(each) for each in _dropped(found))


def test_compiled_python_of_the_base_goes_where_the_agent_replaced_it_and_stays_where_not() -> None:
    base = {"__pycache__": DIR, "__pycache__/a.pyc": TEXT, "__pycache__/b.pyc": TEXT}
    found = sift(base, {"__pycache__": DIR, "__pycache__/a.pyc": NEW}, HOME)
    assert found.tree.keys() == {"__pycache__", "__pycache__/b.pyc"} and _dropped(found) == ["__pycache__"]
    assert sift(base, {"__pycache__": GONE}, HOME).tree == {}


@pytest.mark.parametrize(("path", "entry"), [
    ("evil-1.dist-info/entry_points.txt", NEW), ("src/Evil.EGG-INFO/entry_points.txt", NEW),
    ("a.egg-info/entry_points.txt", _link("../points")), ("evil.dist-info", _link("src")),
])  # fmt: skip
def test_what_pytest_would_load_plugins_by_is_left_out(path: str, entry: Entry) -> None:
    folders = {"/".join(path.split("/")[:n]): DIR for n in range(1, path.count("/") + 1)}
    found = sift(BASE, {**folders, path: entry}, HOME)
    assert path not in found.tree and _dropped(found) == [path]
    kept = sift({**BASE, **folders, path: TEXT}, {**folders, path: entry}, HOME)
    assert kept.tree[path] is TEXT and path not in kept.own


def test_other_metadata_and_files_of_that_name_are_the_agents() -> None:
    work = {"a.egg-info": DIR, "a.egg-info/PKG-INFO": NEW, "docs": DIR, "docs/entry_points.txt": NEW}
    assert sift(BASE, work, HOME).own == work.keys()


@pytest.mark.parametrize("path", [
    ".git/config", ".git/hooks/post-checkout", ".git/info/attributes", ".git/objects/info/alternates",
    ".git/modules/sub/config", "vendor/.git/config", ".git/worktrees/w/config.worktree", ".git/refs/replace/abc",
])  # fmt: skip
def test_what_git_runs_commands_by_stays_as_the_base_has_it(path: str) -> None:
    found = sift(BASE, {path: NEW}, HOME)
    assert found.tree.get(path) is BASE.get(path) and len(found.dropped) == 1


def test_work_in_a_repository_is_the_agents() -> None:
    work = {".git/index": NEW, ".git/HEAD": NEW, ".git/objects/ab/cd": NEW, ".git/refs/heads/main": NEW}
    assert sift(BASE, work, HOME).own == work.keys()


@pytest.mark.parametrize("entry", [NEW, _link("evil"), _link("src")])
def test_a_git_folder_is_not_exchanged_for_something_that_leads_elsewhere(entry: Entry) -> None:
    found = sift(BASE, {".git": entry, "evil": DIR, "evil/config": NEW}, HOME)
    assert found.tree[".git"].kind == FOLDER and ".git/config" in found.tree
    assert ".git/hooks" in sift(BASE, {".git/hooks": _link("../src")}, HOME).tree
    assert sift(BASE, {".git/info": _link("../src")}, HOME).tree.keys() == BASE.keys()


# ---- links


# shortcoming 2
@pytest.mark.parametrize("target", [
    "/oracle/expected.txt", "../oracle/expected.txt", "/workspace/../oracle/x", "src/../../oracle/x", "/", "..",
    "/proc/self/root/oracle/x", "/workspacex/a", "out/expected.txt", "deep/up/../../../oracle", "/etc/passwd",
])  # fmt: skip
def test_a_link_that_leaves_the_workspace_is_not_imported(target: str) -> None:
    links = {"answer": _link(target), "out": _link("/oracle"), "deep": DIR, "deep/up": _link("../src")}
    found = sift(BASE, links, HOME)
    assert "answer" in _dropped(found) and "answer" not in found.tree and "out" not in found.tree
    assert "answer" in merge.view(BASE, links)  # without the filter the grader would read the oracle through it


@pytest.mark.parametrize("target", [
    "src/a.py", "./src/../src/a.py", "/workspace/src/a.py", "/workspace", "missing", "deep/up/a.py", "//workspace//src",
    "../workspace/src",
])  # fmt: skip
def test_a_link_that_stays_in_the_workspace_is_imported(target: str) -> None:
    found = sift(BASE, {"answer": _link(target), "deep": DIR, "deep/up": _link("../src")}, HOME)
    assert found.tree["answer"].target == target and not found.dropped


def test_links_in_a_circle_and_over_too_many_others_end() -> None:
    circle = {"a": "b", "b": "a/x"}
    assert "circle" in why_leaves("a", circle, HOME)
    chain = {f"l{n}": f"l{n + 1}" for n in range(60)}
    assert "too many" in why_leaves("l0", chain, HOME) and not why_leaves("l50", chain, HOME)
    bomb = {f"l{n}": "/".join([f"l{n + 1}"] * 500) for n in range(30)}
    assert why_leaves("l0", bomb, HOME)
    assert "too deep" in why_leaves("a", {"a": "d/" * 2000}, HOME)


def test_links_cost_no_more_than_a_bound_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_filter, "MAX_STEPS", 100)
    maze = {f"l{n}": _link(f"l{n + 1}/../" * 20 + "src") for n in range(39)}
    found = sift(BASE, {"honest": _link("src"), **maze}, HOME)
    assert "honest" in found.tree and len(found.dropped) >= 30


def test_links_of_the_base_may_lead_out_unless_it_is_the_agent_that_makes_them() -> None:
    base = {"data": _link("/usr/share/data"), "d": DIR, "d/e": DIR, "x": _link("d/e/../../y")}
    assert sift(base, {}, HOME).tree == base
    turned = sift(base, {"d": _link(".")}, HOME)
    assert _dropped(turned) == ["x"] and "data" in turned.tree


def test_other_places_than_workspace() -> None:
    assert why_leaves("a", {"a": "/app/x/y"}, "/app/x") == ""
    assert why_leaves("a", {"a": "../x/y"}, "/app/x") == ""
    assert why_leaves("a", {"a": "/app/y"}, "/app/x") and why_leaves("a", {"a": "../../app/y"}, "/app/x")


# ---- forbidden writes


def test_forbidden_writes_are_named_up_to_a_number() -> None:
    layer = {"tests": DIR, **{f"tests/n{number}": TEXT for number in range(import_filter.MAX_NAMED + 500)}}
    found = sift(BASE, layer, HOME, ["/workspace/tests"])
    assert len(found.forbidden) == import_filter.MAX_NAMED and found.tree == BASE


def test_where_the_task_forbids_writing_the_base_is_graded_and_the_write_is_told() -> None:
    layer = {"tests": DIR, "tests/t.py": NEW, "tests/more.py": NEW, "src": DIR, "src/a.py": NEW}
    found = sift(BASE, layer, HOME, ["/workspace/tests", "/elsewhere"])
    assert found.forbidden == ("tests/more.py", "tests/t.py")
    assert found.tree["tests/t.py"] is TEXT and "tests/more.py" not in found.tree and "src/a.py" in found.own


@pytest.mark.parametrize("layer", [
    {"tests": GONE}, {"tests": _link("src")}, {"tests": replace(DIR, opaque=True)}, {"tests": NEW},
])  # fmt: skip
def test_a_forbidden_folder_can_be_neither_removed_nor_replaced(layer: dict[str, Entry]) -> None:
    found = sift(BASE, layer, HOME, ["/workspace/tests"])
    assert found.forbidden == ("tests",) and found.tree == BASE


@pytest.mark.parametrize("above", [GONE, _link("b"), replace(DIR, opaque=True), NEW])
def test_nor_can_what_lies_above_it(above: Entry) -> None:
    base = {"a": DIR, "a/tests": DIR, "a/tests/t.py": TEXT, "a/other": TEXT, "b": DIR}
    found = sift(base, {"a": above, "b": DIR, "b/tests": DIR, "b/tests/t.py": NEW}, HOME, ["/workspace/a/tests"])
    assert found.forbidden == ("a/tests",) and found.tree["a/tests/t.py"] is TEXT
    assert found.tree["a"].kind == FOLDER and "a/other" not in found.tree and "b/tests/t.py" in found.own


def test_what_was_opened_for_writing_and_left_as_it_was_is_no_write() -> None:
    layer = {"tests": DIR, "tests/t.py": NEW}
    assert sift(BASE, layer, HOME, ["/workspace/tests"], same=lambda path: True).forbidden == ()
    assert sift(BASE, {}, HOME, ["/workspace"]).forbidden == ()
    everything = sift(BASE, {"new": NEW, "src": DIR, "src/a.py": GONE}, HOME, ["/workspace"])
    assert everything.tree == BASE and everything.forbidden == ("new", "src/a.py")


# ---- too much


def test_too_many_too_deep_and_too_large_are_the_submissions_own_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "directories" in sift({}, {"/".join(["d"] * 101): DIR}, HOME).problem
    assert "bytes deep" in sift({}, {"é" * 2000: NEW}, HOME).problem
    big = replace(NEW, size=import_filter.MAX_FILE_BYTES)
    assert "hold more" in sift({}, {f"f{n}": big for n in range(5)}, HOME).problem
    monkeypatch.setattr(import_filter, "MAX_ENTRIES", 3)
    assert "more than 3" in sift({}, {f"f{n}": NEW for n in range(4)}, HOME).problem


def test_a_huge_file_is_left_out_however_little_of_it_is_written() -> None:
    found = sift(BASE, {"src": DIR, "src/a.py": replace(NEW, size=1 << 50)}, HOME)
    assert _dropped(found) == ["src/a.py"] and "src/a.py" not in found.tree and not found.problem


def test_names_are_told_so_that_no_terminal_and_no_reader_stumbles(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = "esc\x1b[2J\udcff\n"
    found = sift({}, {odd: Entry(kind=FIFO)}, HOME)
    assert _dropped(found) == ['"esc\\033[2J\\377\\012"']
    assert sift({}, {odd: NEW}, HOME).own == {odd}  # the file itself is only a file
    monkeypatch.setattr(import_filter, "MAX_NAMED", 2)
    many = sift({}, {f"f{n}": Entry(kind=FIFO) for n in range(5)}, HOME)
    assert _dropped(many) == ["f0", "f1", "…"] and "3 more" in many.dropped[-1].reason


def test_a_whiteout_of_nothing_is_nothing() -> None:
    found = sift(BASE, {"nowhere": Entry(kind=DELETED)}, HOME, ["/workspace/nowhere"])
    assert found.tree == BASE and not found.forbidden and not found.dropped


@pytest.mark.parametrize("closed", ["tests/settings.sh", "absent/settings.sh", "tests"])
def test_a_link_above_a_forbidden_path_puts_nothing_there_and_is_named(closed: str) -> None:
    """Also where the base has nothing at that path."""
    above = closed.partition("/")[0]
    layer = {above: _link("own"), "own": DIR, "own/settings.sh": NEW}
    found = sift(BASE, layer, HOME, [f"/workspace/{closed}"])
    assert found.forbidden == (closed,) and not [path for path in found.tree if found.tree[path].kind == LINK]
    assert found.tree["own/settings.sh"].size == NEW.size and closed not in found.tree.keys() - BASE.keys()
    assert sift(BASE, layer, HOME).tree[above].kind == LINK, "the control"


LINKED = {"v1": DIR, "v1/tests": DIR, "v1/tests/t": TEXT, "v1/other": TEXT, "current": _link("v1"),
          "far": _link("/workspace/up/../current"), "up": DIR, "out": _link("/etc"),
          "loop": _link("loop/x")}  # fmt: skip


@pytest.mark.parametrize("closed", ["current/tests", "far/tests", "v1/tests", "current/tests/t", "far/./tests/"])
def test_what_is_forbidden_through_a_link_is_forbidden_where_it_leads(closed: str) -> None:
    found = sift(LINKED, {"v1": DIR, "v1/tests": DIR, "v1/tests/t": NEW, "v1/other": NEW}, HOME, [f"{HOME}/{closed}"])
    assert found.forbidden == ("v1/tests/t",) and found.tree["v1/tests/t"] is TEXT and "v1/other" in found.own


@pytest.mark.parametrize("layer", [
    {"current": GONE}, {"current": _link("v2"), "v2": DIR},
    {"current": replace(DIR, opaque=True), "current/tests": DIR},
])  # fmt: skip
def test_a_link_to_what_is_forbidden_stays(layer: dict[str, Entry]) -> None:
    found = sift(LINKED, layer, HOME, ["/workspace/current/tests"])
    assert "current" in found.forbidden and found.tree["current"] is LINKED["current"]
    assert "current/tests" not in found.tree and found.tree["v1/tests/t"] is TEXT
    touched = {"current": replace(LINKED["current"], mtime_ns=7)}
    assert sift(LINKED, touched, HOME, ["/workspace/current/tests"]).forbidden == ()


def test_links_that_leave_or_lead_in_a_circle_forbid_nothing_more() -> None:
    def led(*paths: str) -> frozenset[str]:
        return import_filter.led(paths, LINKED.get, HOME)

    assert led("out/passwd") == {"out/passwd", "out"} and led("none/x") == {"none/x"} and led("") == {""}
    assert led("loop") == {"loop"} and led("current") == {"current", "v1"}
    assert led("far/tests") == {"far/tests", "far", "current", "v1/tests"}


def test_a_flood_of_paths_does_not_hide_a_forbidden_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_filter, "MAX_ENTRIES", 2)
    layer = {"src": DIR, "src/a.py": NEW, "tests": DIR, "tests/t.py": NEW}
    found = sift(BASE, layer, HOME, ["/workspace/tests"])
    assert found.problem and found.forbidden == ("tests/t.py",)
