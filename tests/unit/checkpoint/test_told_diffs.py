"""What a program writes into names, links and files must not look like more of the diff than it is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

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
    for name in (r'"b/quote\"and\\"', r'"b/tab\011"', "b/plain ü", r'"b/\377"', r'"empty\012+evil": added'):
        assert name in diff


def test_a_link_writes_no_line_of_its_own(tmp_path: Path) -> None:
    workspace = _over(tmp_path)
    (tmp_path / "upper/link").symlink_to(FORGED)
    assert _heads(workspace.diff()) == ["+++ b/link", "@@ -0,0 +1,6 @@"]


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
