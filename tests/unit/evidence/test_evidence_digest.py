"""Digests: the labelled digest's rule, and trees that hold things nobody should open."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
from pathlib import Path

import pytest

from ringfence.errors import EvidenceError
from ringfence.evidence.digest import file_digest, labelled_digest, tree_digest
from ringfence.evidence.inputs import file_input, image_input, inputs_document, tree_input


def test_a_labelled_digest_is_sorted_and_nul_separated() -> None:
    expected = hashlib.sha256(b"a\x001\x00b\x002\x00").hexdigest()
    assert labelled_digest([(b"b", b"2"), (b"a", b"1")]) == expected


@pytest.mark.parametrize("pairs", [[(b"a", b"1"), (b"a", b"2")], [(b"a\0", b"")], [(b"a", b"\0")]])
def test_an_ambiguous_labelled_digest_is_refused(pairs: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(EvidenceError):
        labelled_digest(pairs)


def make_tree(root: Path) -> None:
    (root / "sub").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "sub" / "file").write_bytes(b"content")
    (root / "run.sh").write_bytes(b"#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("/etc/passwd")


def test_a_tree_digest_is_what_the_document_says(tmp_path: Path) -> None:
    make_tree(tmp_path / "t")

    def sha(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()

    text = (
        "empty\0dir:\0"
        f"link\0link:{sha(b'/etc/passwd')}\0"
        f"run.sh\0exec:{sha(b'#!/bin/sh' + bytes([10]))}\0"
        "sub\0dir:\0"
        f"sub/file\0file:{sha(b'content')}\0"
    )
    found = tree_digest(str(tmp_path / "t"))
    assert found.sha256 == sha(text.encode())
    assert (found.files, found.size_bytes) == (2, len(b"content") + len(b"#!/bin/sh\n"))


def changes(root: Path) -> dict[str, object]:
    return {
        "content": lambda: (root / "sub" / "file").write_bytes(b"Content"),
        "name": lambda: (root / "sub" / "file").rename(root / "sub" / "File"),
        "execute bit": lambda: (root / "run.sh").chmod(0o644),
        "link target": lambda: ((root / "link").unlink(), (root / "link").symlink_to("/etc/shadow")),
        "link to copy": lambda: ((root / "link").unlink(), (root / "link").write_bytes(b"/etc/passwd")),
        "empty directory": lambda: (root / "empty").rmdir(),
        "new file": lambda: (root / "new").write_bytes(b""),
    }


@pytest.mark.parametrize("what", list(changes(Path())))
def test_every_change_of_a_tree_changes_its_digest(tmp_path: Path, what: str) -> None:
    make_tree(tmp_path / "t")
    before = tree_digest(str(tmp_path / "t"))
    assert tree_digest(str(tmp_path / "t")) == before
    changes(tmp_path / "t")[what]()  # type: ignore[operator]
    assert tree_digest(str(tmp_path / "t")).sha256 != before.sha256


def test_a_linked_file_outside_is_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"1")
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "link").symlink_to(secret)
    before = tree_digest(str(tmp_path / "t"))
    secret.write_bytes(b"2")
    assert tree_digest(str(tmp_path / "t")) == before
    with pytest.raises(EvidenceError):
        file_digest(str(tmp_path / "t" / "link"))


def test_a_fifo_or_socket_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    os.mkfifo(tmp_path / "t" / "pipe")
    for read in (lambda: tree_digest(str(tmp_path / "t")), lambda: file_digest(str(tmp_path / "t" / "pipe"))):
        with pytest.raises(EvidenceError):
            read()
    (tmp_path / "t" / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "t" / "socket"))
        with pytest.raises(EvidenceError, match="neither file"):
            tree_digest(str(tmp_path / "t"))


@pytest.mark.system
def test_a_tree_deeper_than_the_recursion_limit_is_hashed(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    try:
        assert len(tree_digest(str(tmp_path)).sha256) == 64
    finally:
        # pytest's own cleaning recurses, and would fail on what this left behind
        subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)


def test_a_name_that_is_not_utf_8_is_hashed_as_bytes(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff")).write_bytes(b"x")
    value = b"file:" + hashlib.sha256(b"x").hexdigest().encode()
    assert tree_digest(str(tmp_path)).sha256 == labelled_digest([(b"\xff", value)])


def test_inputs_are_sorted_and_content_addressed(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    document = inputs_document(
        [tree_input("task", "t", str(tmp_path)), file_input("agent", "a", str(tmp_path / "f"))],
        ["B", "A", "B"],
    )
    assert [entry["role"] for entry in document["inputs"]] == ["agent", "task"]
    assert document["inputs"][0]["sha256"] == hashlib.sha256(b"x").hexdigest()
    assert document["environment_variables"] == ["A", "B"]


def test_an_image_is_bound_by_its_digest_and_never_by_a_tag() -> None:
    assert image_input("base", "sha256:" + "a" * 64).sha256 == "a" * 64
    with pytest.raises(EvidenceError):
        image_input("base", "debian:12")
