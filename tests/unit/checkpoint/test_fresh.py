"""A whole tree is written into an empty directory as the manifest says it, and errors name the path."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ringfence.checkpoint import entry as entries
from ringfence.checkpoint.fresh import write_tree
from ringfence.checkpoint.scan import OF_BASE, Scan
from ringfence.checkpoint.tree import Tree


@pytest.fixture
def source(tmp_path: Path) -> Path:
    top = tmp_path / "from"
    (top / "a" / "b" / "empty").mkdir(parents=True)
    (top / "a" / "file").write_bytes(b"x" * 200_000)
    (top / "a" / "b" / "small").write_text("text")
    os.link(top / "a" / "b" / "small", top / "z")
    with (top / "sparse").open("wb") as file:
        file.truncate(50 << 20)
        file.seek(40 << 20)
        file.write(b"end")
    (top / "link").symlink_to("a/file")
    (top / "dangling").symlink_to("nowhere")
    (top / "a" / "b" / "small").chmod(0o751)
    (top / "a" / "b").chmod(0o750)
    os.utime(top / "a", ns=(5, 10**18))
    return top


def _index(path: Path) -> dict[str, entries.Entry]:
    tree = Tree(str(path))
    try:
        return entries.of_index(Scan(tree).below("", OF_BASE))
    finally:
        tree.close()


def _written(source: Path, target: Path, **wanted: entries.Entry) -> None:
    target.mkdir()
    trees = Tree(str(source)), Tree(str(target))
    try:
        write_tree(trees[1], {**_index(source), **wanted}, trees[0].read)
    finally:
        for tree in trees:
            tree.close()


def test_what_is_written_is_what_was_read(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "to"
    _written(source, target)
    assert _index(target) == _index(source)
    for name in ("a/file", "a/b/small", "sparse"):
        assert (target / name).read_bytes() == (source / name).read_bytes()
    assert os.path.samefile(target / "z", target / "a/b/small") and not os.path.samefile(target / "z", source / "z")
    assert os.stat(target / "sparse").st_blocks * 512 < 1 << 20


def test_other_kinds_are_left_out_and_an_error_names_the_path(source: Path, tmp_path: Path) -> None:
    _written(source, tmp_path / "to", fifo=entries.Entry(kind=entries.FIFO))
    assert not any(stat.S_ISFIFO(os.lstat(path).st_mode) for path in (tmp_path / "to").rglob("*"))
    with pytest.raises(FileNotFoundError) as error:
        _written(source, tmp_path / "two", **{"missing/x": entries.Entry(kind=entries.FILE)})
    assert error.value.filename == f"{tmp_path / 'two'}/missing/x"
