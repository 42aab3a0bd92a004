"""What a program writes into names, links and files must not look like more of the diff than it is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ringfence.checkpoint.diff import texts
from ringfence.checkpoint.workspace import Workspace, open_overlay

FORGED = "x\n--- a/other\n+++ b/other\n@@ -1 +1 @@\n-safe\n+evil\n"


def _over(top: Path) -> Workspace:
    for name in ("base", "upper"):
        (top / name).mkdir(exist_ok=True)
    return open_overlay(*(str(top / name) for name in ("upper", "base", "store")))


def _heads(diff: str) -> list[str]:
    return [line for line in diff.split("\n") if line.startswith(("+++ ", "@@ "))]


def test_a_name_writes_no_line_of_its_own(tmp_path: Path) -> None:
    workspace = _over(tmp_path)
    for name in (FORGED.replace("/", "|"), 'quote"and\\', "tab\t", "plain ü", os.fsdecode(b"\xff")):
        (tmp_path / "upper" / name).write_text("new\n")
    (tmp_path / "upper/empty\n+evil").mkdir()
    diff = workspace.diff()
    assert len(_heads(diff)) == 10 and "+evil" not in diff.split("\n")
    for name in (r'"b/quote\"and\\"', r'"b/tab\011"', "b/plain ü", r'"b/\377"', r'directory "empty\012+evil": added'):
        assert name in diff


def test_a_link_writes_no_line_of_its_own(tmp_path: Path) -> None:
    workspace = _over(tmp_path)
    (tmp_path / "upper/link").symlink_to(FORGED)
    assert _heads(workspace.diff()) == ["+++ b/link", "@@ -0,0 +1,6 @@"]


def test_a_link_does_not_look_like_a_file(tmp_path: Path) -> None:
    workspace = _over(tmp_path)
    (tmp_path / "upper/link").symlink_to("/etc/shadow")
    (tmp_path / "upper/file").write_text("/etc/shadow")
    assert workspace.diff("link").startswith("diff --git a/link b/link\nnew file mode 120000\n--- /dev/null\n")
    assert workspace.diff("file").startswith("diff --git a/file b/file\nnew file mode 100644\n--- /dev/null\n")


def test_modes_and_kinds_are_told(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    for name in ("same", "kind", "gone", "text"):
        (tmp_path / "base" / name).write_text("x\n")
    workspace = _over(tmp_path)
    for name, mode in (("same", 0o755), ("text", 0o755), ("new", 0o777)):
        (tmp_path / "upper" / name).write_text("x\n" if name == "same" else "y\n")
        (tmp_path / "upper" / name).chmod(mode)
        os.utime(tmp_path / "upper" / name, (1, 1))
    os.utime(tmp_path / "base/same", (1, 1))
    (tmp_path / "upper/kind").symlink_to("same")
    (tmp_path / "upper/wide").mkdir()
    (tmp_path / "upper/wide").chmod(0o777)
    os.mkfifo(tmp_path / "upper/fifo")
    modes = "old mode 100644\nnew mode 100755\n"
    assert workspace.diff("same") == f"diff --git a/same b/same\n{modes}"
    assert workspace.diff("text") == (
        f"diff --git a/text b/text\n{modes}--- a/text\n+++ b/text\n@@ -1 +1 @@\n-x\n+y\n"
    )
    assert "new file mode 100755\n" in workspace.diff("new"), "what a commit makes of 0777 under umask 022"
    assert workspace.diff("wide") == "directory wide: added, mode 0755\n"
    kind = workspace.diff("kind")
    assert "deleted file mode 100644\n" in kind and "new file mode 120000\n" in kind


def test_of_a_file_that_grows_after_its_size_was_read_no_part_is_shown_as_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = _over(tmp_path)
    file = tmp_path / "upper/file"
    file.write_text("x\n")
    monkeypatch.setattr(texts, "MAX_DIFF_BYTES", 10)
    assert "+x" in workspace.diff(), "the control"
    plain = workspace.layer.scan.open
    monkeypatch.setattr(workspace.layer.scan, "open", lambda path: (file.write_text("x\n" * 9), plain(path))[1])
    assert "too large" in (shown := workspace.diff()) and "+x" not in shown


def test_a_change_that_no_line_shows_is_named(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base/a").write_text("x\n")
    workspace = _over(tmp_path)
    (tmp_path / "upper/a").write_text("x\n")
    os.utime(tmp_path / "upper/a", (1, 1))
    assert workspace.diff("a") == "file a: modified, but only its times\n"


def _mark(path: Path, **attributes: bytes) -> None:
    for name, value in attributes.items():
        os.setxattr(path, f"user.{name}", value)


KINDS = {"text": "file", "binary": "file", "same": "file", "folder": "directory"}
CARRIED = {"kept": b"1", "mime_type": b"application/x-sh", "payload": b"A" * 2000}


def _with_other_attributes(top: Path) -> Workspace:
    for side in ("base", "upper"):
        (top / side / "folder").mkdir(parents=True)
        (top / side / "text").write_text(f"{side}\n")
        (top / side / "binary").write_bytes(side.encode() + b"\0")
        (top / side / "same").write_text("same\n")
    (top / "upper/new").write_text("new\n")
    (top / "upper/made").mkdir()
    for name in KINDS:
        _mark(top / "base" / name, old=b"1", kept=b"1", mime_type=b"text/plain")
    for name in (*KINDS, "new", "made"):
        _mark(top / "upper" / name, **CARRIED)
    return _over(top)


@pytest.mark.parametrize("name", KINDS)
def test_attributes_that_a_commit_changes_are_named_whatever_else_is_shown(name: str, tmp_path: Path) -> None:
    start, told = f"{KINDS[name]} {name}: attribute", _with_other_attributes(tmp_path).diff(name)
    assert told.endswith(f"{start} changed: user.mime_type\n{start} removed: user.old\n{start} set: user.payload\n")
    assert "kept" not in told
    if name == "text":
        assert told.startswith("diff --git a/text b/text\n--- a/text\n+++ b/text\n@@ -1 +1 @@\n-base\n+upper\nfile")


@pytest.mark.parametrize("name", ["file new", "directory made"])
def test_attributes_of_what_is_added_are_named(name: str, tmp_path: Path) -> None:
    told = _with_other_attributes(tmp_path).diff(name.split()[1])
    assert told.endswith("".join(f"{name}: attribute set: user.{each}\n" for each in CARRIED))


def test_the_control_a_commit_carries_over_the_attributes_that_were_named(tmp_path: Path) -> None:
    _with_other_attributes(tmp_path).commit()
    for name in (*KINDS, "new", "made"):
        path = tmp_path / "base" / name
        assert {each: os.getxattr(path, each) for each in os.listxattr(path)} == {
            f"user.{each}": value for each, value in CARRIED.items()
        }


def test_attributes_that_a_commit_leaves_as_they_are_are_not_named(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    workspace = _over(tmp_path)
    for top in ("base", "upper"):
        (tmp_path / top / "text").write_text(f"{top}\n")
        os.setxattr(tmp_path / top / "text", "user.note", b"1")
    os.setxattr(tmp_path / "upper/text", "user.overlay.origin", b"")
    (tmp_path / "base/gone").write_text("gone\n")
    os.setxattr(tmp_path / "base/gone", "user.note", b"1")
    (tmp_path / "upper/gone").symlink_to("text")
    assert "attribute" not in workspace.diff()


def test_a_directory_that_became_a_file_has_all_its_attributes_named(tmp_path: Path) -> None:
    (tmp_path / "base/one").mkdir(parents=True)
    workspace = _over(tmp_path)
    (tmp_path / "upper/one").write_text("")
    for top in ("base", "upper"):
        os.setxattr(tmp_path / top / "one", "user.note", b"1")
    assert workspace.diff("one").endswith("file one: attribute set: user.note\n")


def test_the_name_of_an_attribute_does_not_look_like_more_of_the_diff(tmp_path: Path) -> None:
    workspace = _over(tmp_path)
    (tmp_path / "upper/new\n+evil").write_text("")
    for name in ("user.x\n+++ b/other", 'user."', "user.\x1b[2J", "user.x; removed: y"):
        os.setxattr(tmp_path / "upper/new\n+evil", name, b"1")
    start = 'file "new\\012+evil": attribute set: '
    names = ('"user.\\033[2J"', '"user.\\""', '"user.x\\012+++ b/other"', "user.x; removed: y")
    assert workspace.diff().splitlines()[-4:] == [start + each for each in names]


def test_of_too_many_changes_attributes_are_only_counted(tmp_path: Path) -> None:
    workspace = _over(tmp_path)
    for name in ("a", "b"):
        (tmp_path / "upper" / name).write_text("new\n")
        for number in range(3):
            os.setxattr(tmp_path / "upper" / name, f"user.{number}", b"1")
    told = list(workspace.diffs(most=0))
    assert "attribute set: user.2\n" in told[0]
    assert "user." not in told[1] and "file b: other attributes, 3 of them, not shown" in told[1]


def test_no_name_passes_for_a_line_of_a_file(tmp_path: Path) -> None:
    workspace = _over(tmp_path)
    for name in ("+++ b", "-x", "@@ -1 +1 @@", "diff --git a", " x"):
        (tmp_path / "upper" / name).mkdir()
    assert all(line.startswith("directory ") for line in workspace.diff().splitlines())


@pytest.mark.system
@pytest.mark.skipif(not os.access("/usr/bin/patch", os.X_OK), reason="there is no patch")
def test_patch_makes_links_and_modes_and_removes_files(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base/script").write_text("x\n")
    workspace = _over(tmp_path)
    (tmp_path / "upper/link").symlink_to("script")
    (tmp_path / "upper/script").write_text("y\n")
    (tmp_path / "upper/script").chmod(0o755)
    (tmp_path / "upper/binary").write_bytes(b"\0")
    _mark(tmp_path / "upper/script", note=b"1")
    subprocess.run(["patch", "-p1", "-s"], cwd=tmp_path / "base", input=workspace.diff().encode(), check=True)
    assert os.readlink(tmp_path / "base/link") == "script" and not (tmp_path / "base/binary").exists()
    assert (tmp_path / "base/script").stat().st_mode & 0o777 == 0o755


@pytest.mark.system
@pytest.mark.skipif(not os.access("/usr/bin/patch", os.X_OK), reason="there is no patch")
def test_patch_makes_of_a_diff_what_the_program_made(tmp_path: Path) -> None:
    workspace = _over(tmp_path)
    old = "one\fstill one\nhalf \r a line\nthree\u2028still three\nlast\n"
    names = ("feeds", "new\nline", "ü")
    for name in names:
        (tmp_path / "base" / name).write_text(old, newline="")
        (tmp_path / "upper" / name).write_text(old.replace("half", "whole") + "no end", newline="")
    subprocess.run(["patch", "-p1", "-s"], cwd=tmp_path / "base", input=workspace.diff().encode(), check=True)
    for name in names:
        assert (tmp_path / "base" / name).read_bytes() == (tmp_path / "upper" / name).read_bytes()


def test_bytes_that_are_no_text_are_not_taken_for_their_own_spelling(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base/spelled").write_bytes(b"'\\xff'\nsame\n")
    (tmp_path / "base/latin").write_bytes(b"same \xfc\nold\n")
    workspace = _over(tmp_path)
    (tmp_path / "upper/spelled").write_bytes(b"'\xff'\nsame\n")
    (tmp_path / "upper/latin").write_bytes(b"same \xfc\nnew\n")
    told = workspace.diff("spelled")
    assert "only its times" not in told and told.endswith("@@ -1,2 +1,2 @@\n-'\\xff'\n+'\\xff'\n same\n")
    assert workspace.diff("latin").endswith("@@ -1,2 +1,2 @@\n same \\xfc\n-old\n+new\n")


def test_files_that_become_one_file_are_told(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "base" / name).write_text("same\n")
        os.utime(tmp_path / "base" / name, (1, 1))
    os.link(tmp_path / "base/c", tmp_path / "base/d")
    workspace = _over(tmp_path)
    for first, second in (("a", "b"), ("c", "d")):
        (tmp_path / "upper" / first).write_text("same\n")
        os.utime(tmp_path / "upper" / first, (1, 1))
        os.link(tmp_path / "upper" / first, tmp_path / "upper" / second)
    assert [(each.path, str(each.kind)) for each in workspace.changes()] == [("b", "modified")]
    assert workspace.diff() == "file b: becomes one file with a, by a hard link\n"
    workspace.commit()
    assert os.path.samefile(tmp_path / "base/a", tmp_path / "base/b"), "the control: it is what a commit does"
    assert not workspace.changes()
