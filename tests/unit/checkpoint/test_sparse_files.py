"""A copy of a file with holes takes no more of the disk than the file did, and its digest does not depend on that."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from ringfence.checkpoint import content
from ringfence.checkpoint.workspace import Workspace, open_overlay, open_snapshot

PIECE, BLOCK, COUNT = 1 << 16, 1 << 12, 64
SLACK_BLOCKS = 128
"""In units of 512 bytes: what a file system keeps of its own, a sixteenth of what the pieces would take."""
DIGEST = "0e3e1fbfe7f77ae93ec5f073d6fb98a358b6684b6552ac4e5b2c70560bcc94ee"
"""Of ``thin``, from when copies were written in whole pieces: contents that were kept then must be found again."""


def thin(path: Path) -> os.stat_result:
    """One block of data in each piece, and an end that fills no block."""
    with path.open("wb", buffering=0) as file:
        for number in range(COUNT):
            os.pwrite(file.fileno(), b"x%d" % number, number * PIECE)
        file.truncate(COUNT * PIECE + 1000)
    return path.stat()


def dense(path: Path) -> os.stat_result:
    path.write_bytes(random.Random(1).randbytes(COUNT * PIECE))
    return path.stat()


def copied(source: Path, target: Path) -> str:
    with source.open("rb") as reader, target.open("w+b", buffering=0) as writer:
        return content.copy(reader.fileno(), writer.fileno())


def workspace_of(kind: str, top: Path) -> tuple[Workspace, Path]:
    """One, and where a program of it would write."""
    for name in ("base", "upper"):
        (top / name).mkdir()
    if kind == "snapshot":
        return open_snapshot(str(top / "base"), str(top / "store")), top / "store/work"
    return open_overlay(str(top / "upper"), str(top / "base"), str(top / "store")), top / "upper"


def test_a_copy_takes_no_more_blocks_and_has_the_digest_that_it_had(tmp_path: Path) -> None:
    before = thin(tmp_path / "thin")
    assert copied(tmp_path / "thin", tmp_path / "copy") == DIGEST
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "thin").read_bytes()
    assert (tmp_path / "copy").stat().st_blocks <= before.st_blocks + SLACK_BLOCKS
    before = dense(tmp_path / "dense")
    copied(tmp_path / "dense", tmp_path / "whole")
    blocks = (tmp_path / "whole").stat().st_blocks
    assert before.st_blocks <= blocks + SLACK_BLOCKS and blocks * 512 >= COUNT * PIECE, "the control: data is written"


def test_a_copy_whose_digest_nobody_asks_for_keeps_its_holes_too(tmp_path: Path) -> None:
    before = thin(tmp_path / "thin")
    with (tmp_path / "thin").open("rb") as reader, (tmp_path / "copy").open("wb", buffering=0) as writer:
        content.pour(reader.fileno(), writer.fileno())
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "thin").read_bytes()
    assert (tmp_path / "copy").stat().st_blocks <= before.st_blocks + SLACK_BLOCKS


@pytest.mark.parametrize("seed", range(20))
def test_any_mixture_of_zeros_and_data_is_copied_byte_for_byte(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    parts = (bytes(chance.choice((1, 100, BLOCK, PIECE))), chance.randbytes(chance.choice((1, BLOCK, BLOCK + 1))))
    data = b"".join(chance.choice(parts) for _ in range(60))
    (tmp_path / "from").write_bytes(data)
    digest = copied(tmp_path / "from", tmp_path / "to")
    assert (tmp_path / "to").read_bytes() == data
    assert copied(tmp_path / "to", tmp_path / "again") == digest


@pytest.mark.parametrize("kind", ["overlay", "snapshot"])
def test_a_commit_writes_no_more_than_the_file_took(kind: str, tmp_path: Path) -> None:
    workspace, seen = workspace_of(kind, tmp_path)
    before = thin(seen / "thin")
    data = (seen / "thin").read_bytes()
    workspace.commit()
    assert (tmp_path / "base/thin").stat().st_blocks <= before.st_blocks + SLACK_BLOCKS
    assert (tmp_path / "base/thin").read_bytes() == data


@pytest.mark.parametrize("kind", ["overlay", "snapshot"])
def test_a_checkpoint_and_a_rollback_write_no_more_than_the_file_took(kind: str, tmp_path: Path) -> None:
    workspace, seen = workspace_of(kind, tmp_path)
    before = thin(seen / "thin")
    data = (seen / "thin").read_bytes()
    empty = workspace.store.used_bytes()
    made = workspace.create_checkpoint()
    assert made.layer["thin"].digest == DIGEST
    assert workspace.store.used_bytes() - empty <= (before.st_blocks + SLACK_BLOCKS) * 512
    (seen / "thin").unlink()
    workspace.rollback_to_checkpoint(made.checkpoint_id)
    assert (seen / "thin").stat().st_blocks <= before.st_blocks + SLACK_BLOCKS
    assert (seen / "thin").read_bytes() == data
