"""One resolver: it arrives where the kernel does, and says who could have it arrive elsewhere."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringfence.model.ways import walk as ways
from ringfence.model.ways import who
from ringfence.model.ways.walk import MOST_LINKS, Look, absolute, itself, real, walk, walk_over

pytestmark = pytest.mark.privileges

_NAME = st.sampled_from(["a", "b", "c", "..", "."])
_TEXT = st.lists(_NAME, min_size=1, max_size=6).map("/".join)
_PLACE = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3).map("/".join)


def _make(top: Path, folders: list[str], files: list[str], links: list[tuple[str, bool, str]]) -> None:
    """Each where there is room for it."""
    for place in folders:
        _tried(lambda place=place: (top / place).mkdir(parents=True))  # type: ignore[misc]
    for place in files:
        _tried(lambda place=place: (top / place).touch())  # type: ignore[misc]
    for place, from_root, text in links:
        to = f"{top}/{text}" if from_root else text
        _tried(lambda place=place, to=to: (top / place).symlink_to(to))  # type: ignore[misc]


def _tried(make: object) -> None:
    try:
        make()  # type: ignore[operator]
    except OSError:
        pass


@given(
    folders=st.lists(_PLACE, max_size=5), files=st.lists(_PLACE, max_size=3),
    links=st.lists(st.tuples(_PLACE, st.booleans(), _TEXT), max_size=8), asked=st.lists(_TEXT, min_size=1, max_size=6),
)  # fmt: skip
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_it_arrives_where_the_kernel_does(
    folders: list[str], files: list[str], links: list[tuple[str, bool, str]], asked: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        top = Path(os.path.realpath(name))
        _make(top, folders, files, links)
        for path in (f"{top}/{text}" for text in asked):
            found = walk(path)
            by_names = ways._Walker(ways._Named()).walk(path.split("/"))
            assert found == by_names
            try:
                there = os.stat(path)
            except OSError as error:
                assert found.error == error.errno, path
                continue
            assert not found.error and found.end == os.path.realpath(path), path
            assert os.path.samestat(os.lstat(found.end), there)
            assert os.path.samestat(os.stat(absolute(path)), there)


def test_up_from_behind_a_link_is_not_what_the_text_says(tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/deep")
    assert real(f"{tmp_path}/link/../x") == absolute(f"{tmp_path}/link/../x") == f"{tmp_path}/real/x"
    assert os.path.abspath(f"{tmp_path}/link/../x") == f"{tmp_path}/x"  # the control
    assert absolute(f"{tmp_path}//link/./x") == f"{tmp_path}/link/x"
    assert itself(f"{tmp_path}/link") == f"{tmp_path}/link" and itself(f"{tmp_path}/link/") == f"{tmp_path}/link"
    assert itself(f"{tmp_path}/link/..") == f"{tmp_path}/real"
    assert itself(f"{tmp_path}/link/x") == f"{tmp_path}/real/deep/x"


def test_a_relative_path_begins_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("a/./b") == f"{tmp_path}/a/b" and real("") == str(tmp_path)
    assert absolute("..") == str(tmp_path.parent)


@pytest.mark.parametrize(("count", "error"), [(MOST_LINKS, 0), (MOST_LINKS + 1, errno.ELOOP)])
def test_it_gives_up_where_the_kernel_does(tmp_path: Path, count: int, error: int) -> None:
    (tmp_path / "0").touch()
    for number in range(count):
        (tmp_path / str(number + 1)).symlink_to(str(number))
    assert walk(f"{tmp_path}/{count}").error == error
    # Where mounts change meanwhile, the kernel begins anew, and the links of the first attempt count too.
    assert any(os.path.exists(f"{tmp_path}/{count}") for _ in range(100)) == (not error)


def test_a_link_to_itself_ends(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    found = walk(f"{tmp_path}/loop")
    assert (found.error, found.end) == (errno.ELOOP, f"{tmp_path}/loop")


@pytest.mark.parametrize("path", ["/nul\0", "/half\ud800", "/" + "long" * 100])
def test_what_no_file_is_called_is_not_there(path: str) -> None:
    assert walk(path).error in (errno.EINVAL, errno.ENAMETOOLONG)


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/../nowhere/at/all")
    before = os.listdir("/proc/self/fd")
    for path in ("/", "/etc/hostname", f"{tmp_path}/link", f"{tmp_path}/link/../x", "/etc/passwd/x", "/..", "/nul\0"):
        walk(path)
    assert os.listdir("/proc/self/fd") == before


def test_what_is_laid_over_the_host_is_followed_first(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "old").symlink_to("a/b")
    laid = {f"{tmp_path}/new": "a/b", f"{tmp_path}/folder/inner": "../new", f"{tmp_path}/old": "", f"{tmp_path}/x": "x"}
    asked = {"new/../c": "a/c", "folder/inner/..": "a", "old/../c": "c", "a/b": "a/b", "nowhere/..": ""}
    for path, end in asked.items():
        assert walk_over(f"{tmp_path}/{path}", laid).end == f"{tmp_path}/{end}".rstrip("/"), path
    assert walk(f"{tmp_path}/old/../c").end == f"{tmp_path}/a/c"
    assert walk_over(f"{tmp_path}/x", laid).error == errno.ELOOP


# ---- who could change it

_CALLER = os.geteuid()
_OTHER, _OTHER_GROUP = 4001, 4002


def _status(mode: int, user: int = _CALLER, group: int = _OTHER_GROUP) -> os.stat_result:
    return os.stat_result((mode, 1, 1, 1, user, group, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("mode", "user", "group", "entry", "who_else"),
    [
        (0o755, _CALLER, _OTHER_GROUP, _CALLER, ""),
        (0o755, 0, 0, _OTHER, ""),
        (0o755, _OTHER, 0, _CALLER, f"user {_OTHER}"),
        (0o700, _OTHER, 0, 0, f"user {_OTHER}"),
        (0o777, _CALLER, 0, _CALLER, "everybody"),
        (0o775, _CALLER, _OTHER_GROUP, _CALLER, f"group {_OTHER_GROUP}"),
        (0o775, _CALLER, _CALLER, _CALLER, ""),
        (0o1777, 0, 0, _CALLER, ""),
        (0o1777, 0, 0, _OTHER, f"user {_OTHER}"),
        (0o1777, 0, 0, None, "everybody"),
    ],
)
def test_who_could_put_something_else_there(
    mode: int, user: int, group: int, entry: int | None, who_else: str
) -> None:
    users = who.trusted(_status(0o755, 0, 0))
    there = None if entry is None else _status(stat.S_IFLNK | 0o777, entry)
    assert who.open_to(_status(stat.S_IFDIR | mode, user, group), there, users) == who_else


def test_whoever_owns_the_root_is_trusted() -> None:
    nobody = 65534
    assert who.open_to(_status(0o755, nobody), None, who.trusted(_status(0o755, nobody))) == ""
    assert who.open_to(_status(0o755, nobody), None, who.trusted(_status(0o755, 0))) == f"user {nobody}"


def test_a_link_below_what_others_can_change_is_theirs(tmp_path: Path) -> None:
    (tmp_path / "drop" / "bin").mkdir(parents=True)
    (tmp_path / "drop" / "bin" / "tool").symlink_to("/etc/hostname")
    (tmp_path / "own").symlink_to("drop/bin")
    for path in (f"{tmp_path}/drop/bin/tool", f"{tmp_path}/own/tool"):
        assert walk(path).link_of_others() is None, path
    (tmp_path / "drop").chmod(0o777)
    assert walk(f"{tmp_path}/drop/bin").link_of_others() is None
    for path in (f"{tmp_path}/drop/bin/tool", f"{tmp_path}/own/tool"):
        hop = walk(path).link_of_others()
        assert hop is not None and hop.place == f"{tmp_path}/drop/bin/tool", path
    (tmp_path / "drop").chmod(0o1777)
    assert walk(f"{tmp_path}/drop/bin/tool").link_of_others() is None


def test_links_of_proc_are_the_processes_own() -> None:
    hop = walk("/proc/self/cwd").link_of_others()
    assert hop is not None and hop.open_to == "a process"


def test_one_look_sees_one_moment(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("one")
    look = Look()
    assert look.real(f"{tmp_path}/link") == f"{tmp_path}/one"
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("two")
    assert look.real(f"{tmp_path}/link") == f"{tmp_path}/one" and real(f"{tmp_path}/link") == f"{tmp_path}/two"


@pytest.mark.skipif(not hasattr(os, "O_PATH"), reason="other systems look at names")
def test_who_is_interrupted_closes_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal raises between a close and what follows it; by then another thread may have the number."""
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    close = os.close

    def interrupting(turn: int) -> Callable[[int], None]:
        turns = iter(range(1, 100))

        def interrupted(descriptor: int) -> None:
            close(descriptor)
            if next(turns) == turn:
                raise KeyboardInterrupt

        return interrupted

    for turn in range(1, 10):
        with monkeypatch.context() as patched:
            patched.setattr(os, "close", interrupting(turn))
            with pytest.raises(KeyboardInterrupt):  # and no OSError: what is closed already can't be closed
                walk(str(tmp_path / "link" / ".." / "a"))


# ---- how much is kept of it

_PARTS = 30_000


def _kept(path: str) -> int:
    return sum(len(place) + len(link) for place, link, _ in walk(path).rows)


@pytest.mark.parametrize("text", [
    "/nowhere" + "/a" * _PARTS, "/etc/hostname" + "/a" * _PARTS, "/nowhere" + "/a/.." * _PARTS,
], ids=["absent", "below a file", "up and down"])  # fmt: skip
def test_of_a_way_no_more_is_kept_than_its_length(text: str) -> None:
    assert _kept(text) <= 2 * len(text)


def test_of_a_way_that_is_there_no_more_is_kept_than_its_length(tmp_path: Path) -> None:
    deep = tmp_path / "/".join("d" * 50)
    deep.mkdir(parents=True)
    (deep / "link").symlink_to(tmp_path)
    assert _kept(str(deep)) <= 2 * len(str(deep))
    found = walk(deep / "link" / "x")
    assert found.links == [f"{deep}/link"] and found.end == f"{tmp_path}/x"
    tops = (tmp_path, tmp_path / "d", deep, deep / "link", tmp_path / "x")
    assert all(found.passes(str(top)) for top in tops) and not found.passes(f"{tmp_path}/e")


def test_beyond_what_is_there_the_text_says_where_it_ends() -> None:
    ends = {"/nowhere/a/../b": "/nowhere/b", "/nowhere/../..": "/", "/nowhere/../../x": "/x", "/no/./a//b": "/no/a/b"}
    assert {path: walk(path).end for path in ends} == ends
    assert walk("/nowhere/a/b").passes("/nowhere/a") and not walk("/nowhere/a/b").passes("/nowhere/b")
