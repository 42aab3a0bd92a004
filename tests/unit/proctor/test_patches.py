"""The strict reader of patches: what git writes is applied as git does it, and hostile patches are refused by name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ringfence.proctor.foreign import patches
from ringfence.proctor.foreign.patches import Content, FilePatch, PatchError, applied, read_patch

OLD = b"one\ntwo\nthree\nfour\nfive\n"
HEAD = "diff --git a/f b/f\n--- a/f\n+++ b/f\n"
HUNK = "@@ -2,3 +2,3 @@ def x():\n two\n-three\n+3\n four\n"


def _applied(patch: str | bytes, files: dict[str, bytes] | None = None) -> dict[str, bytes | None]:
    have = {"f": OLD} if files is None else files
    found = applied(read_patch(patch), lambda path: Content(have[path]) if path in have else None)
    return {path: content and content.data for path, content in found.items()}


def test_a_change_a_new_file_and_a_removed_one() -> None:
    text = HEAD + HUNK + (
        "diff --git a/new.py b/new.py\nnew file mode 100755\nindex 0000000..1111111\n--- /dev/null\n+++ b/new.py\n"
        "@@ -0,0 +1,2 @@\n+a\n+b\n"
        "diff --git a/gone b/gone\ndeleted file mode 100644\n--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    )  # fmt: skip
    assert _applied(text, {"f": OLD, "gone": b"x\n"}) == {
        "f": b"one\ntwo\n3\nfour\nfive\n", "new.py": b"a\nb\n", "gone": None,
    }  # fmt: skip
    assert [each.mode for each in read_patch(text)] == ["", "100755", ""]


@pytest.mark.parametrize(("patch", "files", "expected"), [
    ("--- a/f\n+++ b/f\n" + HUNK, None, {"f": b"one\ntwo\n3\nfour\nfive\n"}),
    (HEAD + HUNK.rstrip("\n"), None, {"f": b"one\ntwo\n3\nfour\nfive\n"}),
    (HEAD.replace("+++ b/f", "+++ b/f\t2024-01-01 00:00:00") + HUNK, None, {"f": b"one\ntwo\n3\nfour\nfive\n"}),
    (HEAD + HUNK, {"f": b"zero\n" * 4 + OLD}, {"f": b"zero\n" * 4 + b"one\ntwo\n3\nfour\nfive\n"}),
    ("Some words.\n\n" + HEAD + HUNK + "-- \n2.40\n", None, {"f": b"one\ntwo\n3\nfour\nfive\n"}),
    (HEAD + "@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n", {"f": b"a\n\nb\n"}, {"f": b"a\n\nc\n"}),
    (HEAD + "@@ -1 +1 @@\n-a\r\n+b\r\n", {"f": b"a\r\n"}, {"f": b"b\r\n"}),
    (HEAD + "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n", {"f": b"a"}, {"f": b"b\n"}),
    (HEAD + "@@ -1 +1 @@\n-a\n+b\n\\ No newline at end of file\n", {"f": b"a\n"}, {"f": b"b"}),
    (HEAD + "@@ -2,0 +3 @@\n+new\n", None, {"f": b"one\ntwo\nnew\nthree\nfour\nfive\n"}),
    ("diff --git a/f b/g/h\nsimilarity index 90%\nrename from f\nrename to g/h\n--- a/f\n+++ b/g/h\n" + HUNK, None,
     {"f": None, "g/h": b"one\ntwo\n3\nfour\nfive\n"}),
    ("diff --git a/f b/g\nsimilarity index 100%\nrename from f\nrename to g\n", None, {"f": None, "g": OLD}),
    ("diff --git a/f b/g\nsimilarity index 100%\ncopy from f\ncopy to g\n", None, {"g": OLD}),
    ("diff --git a/e b/e\nnew file mode 100644\nindex 000..e69\n", {}, {"e": b""}),
    ('diff --git "a/\\303\\244 b" "b/\\303\\244 b"\nnew file mode 100644\n--- /dev/null\n'
     '+++ "b/\\303\\244 b"\n@@ -0,0 +1 @@\n+x\n', {}, {"ä b": b"x\n"}),
    ("", None, {}),
], ids=["without git's line", "no last line end", "a date", "moved", "words around", "an empty line", "CR LF in a file",
        "no line end before", "no line end after", "no context", "renamed and changed", "renamed", "copied",
        "empty file", "name in quotes", "nothing"])  # fmt: skip
def test_what_git_writes_is_applied(patch: str, files: dict[str, bytes] | None, expected: object) -> None:
    assert _applied(patch, files) == expected


def _with_name(name: str) -> str:
    return f"diff --git a/{name} b/{name}\nnew file mode 100644\n--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+x\n"


@pytest.mark.parametrize(("patch", "words"), [
    (_with_name("../up"), "is outside the repository"),
    (_with_name("/etc/passwd"), "is outside the repository"),
    (_with_name("a/./b"), "is outside the repository"),
    (_with_name("a//b"), "is outside the repository"),
    (_with_name("a/../../b"), "is outside the repository"),
    ("--- /dev/null\n+++ b/../x\n@@ -0,0 +1 @@\n+x\n", "is outside the repository"),
    ("diff --git a/f b/f\nrename from f\nrename to ../x\n", "is outside the repository"),
    (_with_name(".git/hooks/post-checkout"), "git's own"),
    (_with_name("sub/.GIT/config"), "git's own"),
    (_with_name("git~1/config"), "git's own"),
    (_with_name("l").replace("100644", "120000"), "a symbolic link is not applied"),
    (_with_name("s").replace("100644", "160000"), "a submodule is not applied"),
    (_with_name("s").replace("100644", "104755"), "mode '104755' is not applied"),
    ("diff --git a/f b/f\nold mode 100644\nnew mode 120000\n", "a symbolic link"),
    ("diff --git a/f b/f\nindex 11..22 120000\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n", "a symbolic link"),
    ("diff --git a/f b/f\nindex 11..22 100644\nGIT binary patch\nliteral 1\n", "f: a binary patch"),
    ("diff --git a/f b/f\nBinary files a/f and b/f differ\n", "f: a binary patch"),
    (HEAD.replace("\n", "\r\n") + HUNK.replace("\n", "\r\n"), "CR LF"),
    ("--- a/f\n+++ b/f\n@@ -1,x +1 @@\n", "does not begin a hunk"),
    ("--- a/f\n+++ b/f\n@@ -1,9999999999 +1 @@\n", "does not begin a hunk"),
    (HEAD + "@@ -1,9 +1,9 @@\n one\n", "cut short"),
    (HEAD + "@@ -1,2 +1,2 @@\n one\n*two\n", "does not match its hunk's header"),
    (HEAD + "@@ -1 +1 @@\n\\ No newline at end of file\n-one\n+1\n", "a no-newline mark without a line"),
    (HUNK, "without a file name"),
    ("--- f\n+++ f\n" + HUNK, "not a path of the form"),
    ("diff --git a/f b/f\n--- a/f\n+++ b/g\n" + HUNK, "two names"),
    ('--- "a/\\777"\n+++ b/f\n' + HUNK, "quoted name"),
    (HEAD + HUNK.replace("three", "drei"), "does not fit"),
    (HEAD + HUNK + HUNK, "does not fit"),
    (HEAD.replace("f\n", "missing\n").replace("b/f", "b/missing") + HUNK, "no such file"),
    (_with_name("f"), "already exists"),
    ("diff --git a/f b/f\ndeleted file mode 100644\n--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n",
     "its content differs"),
])  # fmt: skip
def test_what_is_refused_is_named(patch: str, words: str) -> None:
    with pytest.raises(PatchError, match=words):
        _applied(patch)


def test_lines_that_are_all_alike_do_not_hold_us() -> None:
    same = b"x\n" * 20_000
    hunk = "@@ -900000,20000 +1,20000 @@\n" + " x\n" * 19_999 + "-y\n+z\n"
    with pytest.raises(PatchError, match="does not fit"):
        _applied(HEAD + hunk, {"f": same + same})


def test_a_file_that_is_patched_twice_has_both() -> None:
    second = HEAD + "@@ -1 +1 @@\n-one\n+1\n"
    assert _applied(HEAD + HUNK + second) == {"f": b"1\ntwo\n3\nfour\nfive\n"}


def _files(patches_: list[FilePatch]) -> list[str]:
    return [each.path for each in patches_]


def test_a_name_with_blanks_is_told_by_its_halves() -> None:
    text = "diff --git a/my file b/my file\nold mode 100644\nnew mode 100755\n"
    assert _files(read_patch(text)) == ["my file"]
    (made,) = applied(read_patch(text), lambda _: Content(b"x")).values()
    assert made is not None and made.executable and made.data == b"x"


@pytest.mark.parametrize("kind", ["link", "link above", "folder", "missing"])
def test_the_program_follows_no_link_and_changes_all_or_nothing(kind: str, tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "repo"
    folder.mkdir()
    outside.mkdir()
    (outside / "f").write_bytes(OLD)
    (folder / "first").write_bytes(b"a\n")
    if kind == "link":
        (folder / "f").symlink_to(outside / "f")
    if kind == "folder":
        (folder / "f").mkdir()
    name = "sub/f" if kind == "link above" else "f"
    if kind == "link above":
        (folder / "sub").symlink_to(outside)
    first = "--- a/first\n+++ b/first\n@@ -1 +1 @@\n-a\n+b\n"
    (tmp_path / "p").write_text(first + f"--- a/{name}\n+++ b/{name}\n{HUNK}")
    assert patches.main([str(tmp_path / "p"), str(folder)]) == 1
    assert (folder / "first").read_bytes() == b"a\n" and (outside / "f").read_bytes() == OLD


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.system
def test_it_agrees_with_git(tmp_path: Path) -> None:
    before = {"a.py": "x = 1\n" * 30, "b/c.txt": "one\ntwo\n", "gone": "x\n", "moved.py": "y\n" * 20}
    after = {"a.py": "x = 1\n" * 10 + "z = 2\n" + "x = 1\n" * 20, "b/c.txt": "one\nzwei", "new/ä.py": "n\n",
             "there.py": "y\n" * 20 + "w\n"}  # fmt: skip
    for folder, files in (("old", before), ("repo", before)):
        _write(tmp_path / folder, files)
    git = ["git", "-C", str(tmp_path / "repo"), "-c", "core.quotePath=true", "-c", "core.autocrlf=false"]
    for words in (["init", "--quiet"], ["add", "--all"]):
        subprocess.run([*git, *words], check=True)
    tree = subprocess.run([*git, "write-tree"], check=True, capture_output=True, text=True).stdout.strip()
    for name in before:
        (tmp_path / "repo" / name).unlink()
    _write(tmp_path / "repo", after)
    subprocess.run([*git, "add", "--all"], check=True)
    text = subprocess.run([*git, "diff", "--cached", "-M", tree], check=True, capture_output=True).stdout
    assert b"rename from moved.py" in text and b'"b/new/\\303\\244.py"' in text
    (tmp_path / "p").write_bytes(text)
    assert patches.main([str(tmp_path / "p"), str(tmp_path / "old")]) == 0
    left = {str(path.relative_to(tmp_path / "old")): path.read_text() for path in (tmp_path / "old").rglob("*")
            if path.is_file()}  # fmt: skip
    assert left == after
