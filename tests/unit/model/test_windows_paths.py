"""Which paths of Windows are what they seem, by text alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import UsageError
from ringfence.model import windows_paths as paths
from ringfence.windows.removal import is_real_folder, remove_tree


@pytest.mark.parametrize("name", ["a", "a.txt", "CONSOLE", "com", "COM10", "nul_", ".hidden", "é中", "a b", "x" * 255])
def test_plain_names(name: str) -> None:
    assert paths.problem(name) == ""


@pytest.mark.parametrize("name", [
    "", ".", "..", "a/b", "a\\b", "a:b", "a.txt:stream", "a.txt::$DATA", "C:", "a.", "a ", "a. .", "NUL", "nul.txt",
    "Con", "aux.tar.gz", "COM1", "lpt9.x", "COM\xb9", "CONIN$", "NUL .txt", "a<", "a|b", "a?", "a*", 'a"', "a\x00",
    "a\x1f", "x" * 256, "\U0001f600" * 128,
])  # fmt: skip
def test_names_that_are_something_else(name: str) -> None:
    assert paths.problem(name)


@pytest.mark.parametrize(("path", "kind"), [
    ("C:\\a", "drive"), ("c:/a", "drive"), ("C:a", "drive-relative"), ("C:", "drive-relative"), ("\\a", "rooted"),
    ("/a", "rooted"), ("a\\b", "relative"), ("\\\\server\\share\\a", "unc"), ("//server/share", "unc"),
    ("\\\\?\\C:\\a", "device"), ("\\\\.\\pipe\\x", "device"), ("\\??\\C:\\a", "device"), ("é:\\a", "relative"),
])  # fmt: skip
def test_what_a_path_begins_with(path: str, kind: str) -> None:
    assert paths.kind(path) == kind


@pytest.mark.parametrize(("path", "checked", "extended"), [
    ("c:/Users//me/", "C:\\Users\\me", "\\\\?\\C:\\Users\\me"),
    ("C:\\", "C:\\", "\\\\?\\C:\\"),
    ("\\\\server\\share\\a", "\\\\server\\share\\a", "\\\\?\\UNC\\server\\share\\a"),
    ("\\\\?\\C:\\a", "C:\\a", "\\\\?\\C:\\a"),
    ("\\\\?\\unc\\server\\share\\a", "\\\\server\\share\\a", "\\\\?\\UNC\\server\\share\\a"),
])  # fmt: skip
def test_one_spelling(path: str, checked: str, extended: str) -> None:
    assert paths.checked(path) == checked
    assert paths.extended(checked) == extended == paths.extended(extended)


@pytest.mark.parametrize("path", [
    "C:a", "\\a", "a", "\\\\.\\C:\\a", "\\\\?\\GLOBALROOT\\x", "\\\\server", "C:\\a\\..\\b", "C:\\NUL", "C:\\a.txt:b",
    "C:\\a \\b", "\\\\?\\Volume{1}\\a", "\\\\s\\a:b\\c",
])  # fmt: skip
def test_paths_that_are_refused(path: str) -> None:
    with pytest.raises(UsageError):
        paths.checked(path)


def test_case_is_no_difference() -> None:
    assert paths.is_within("c:\\USERS\\Me\\x", "C:\\Users\\me") and paths.is_within("C:\\a", "c:\\A\\")
    assert not paths.is_within("C:\\ab", "C:\\a")


@given(st.text(max_size=40))
def test_any_text_is_judged(name: str) -> None:
    good = not paths.problem(name)
    assert good == (paths.checked(f"C:\\{name}") == f"C:\\{name}") if good else True
    assert paths.fold(paths.fold(name)) == paths.fold(name)


def test_a_tree_is_removed_and_no_link_is_gone_through(tmp_path: Path) -> None:
    kept, tree = tmp_path / "kept", tmp_path / "tree"
    kept.mkdir()
    (kept / "file").write_text("stays")
    deep = tree / "/".join(["d"] * 200)
    deep.mkdir(parents=True)
    (deep / "file").touch(mode=0o400)
    (tree / "link").symlink_to(kept)
    (tree / "none").symlink_to(tmp_path / "nowhere")
    os.chmod(tree / "d" / "d", 0o500)
    assert is_real_folder(str(tree)) and not is_real_folder(str(tree / "link"))
    if os.geteuid() != 0:
        os.chmod(tree / "d" / "d", 0o700)
    remove_tree(str(tree))
    remove_tree(str(tree))
    assert not tree.exists() and (kept / "file").read_text() == "stays"
