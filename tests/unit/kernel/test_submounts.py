"""Which mounts lie below a directory, as the kernel tells it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringfence.kernel.mount import submounts
from ringfence.model import mounted_names

_TABLE = (
    rb"""22 1 254:0 / / rw - ext4 /dev/vda rw
23 22 0:20 / /proc rw - proc proc rw
24 22 0:21 / /srv/with\040blank\134and\011more rw - tmpfs none rw
25 22 0:22 / /misc rw shared:1 master:2 - autofs none rw
"""
)


def test_names_are_read_as_they_are() -> None:
    points = submounts.read(_TABLE)
    assert points[24] == ("/srv/with blank\\and\tmore", True)
    assert submounts.never_shown(points) == ["/proc", "/misc"]


@pytest.mark.parametrize("byte", [b"\r", b"\v", b"\f", b"\x1c", b"\x85", b"\xe2\x80\xa8"])
def test_a_name_is_cut_at_no_byte_but_a_line_end(byte: bytes) -> None:
    """The kernel writes blanks, tabs, line ends and backslashes in another way, and nothing else."""
    points = submounts.read(_TABLE + b"26 22 0:23 / /srv/one" + byte + b"26 22 0:23 / /two rw - tmpfs none rw\n")
    assert len(points) == 5 and points[26][0] == os.fsdecode(b"/srv/one" + byte + b"26")
    table = _TABLE + b"26 22 254:0 /x /srv/one" + byte + b"two rw - ext4 none rw\n"
    assert mounted_names.others(("/x",), table) == (os.fsdecode(b"/srv/one" + byte + b"two"),)


def test_mounts_of_this_host_are_found_where_a_path_leads_to_them() -> None:
    points = submounts.read(Path("/proc/self/mountinfo").read_bytes())
    assert "/proc" in submounts.below("/", points)
    assert submounts.below("/proc/self/task", points) == []
    number, (point, shown) = next((key, value) for key, value in points.items() if value[0] == "/proc")
    assert submounts.below("/", {number + 100_000: (point, shown)}) == [], "another mount lies over it"


def test_a_directory_is_taken_apart_down_to_its_mounts_and_no_further(tmp_path: Path) -> None:
    for name in ("a/mounted/inner", "a/beside/deep", "shown/inner", "whole"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "a" / "fifo")
    points = [f"{tmp_path}/a/mounted"]
    descriptor = os.open(tmp_path, os.O_PATH)
    parts = list(submounts.Directory(descriptor).taken_apart(points, [f"{tmp_path}/shown"]))
    os.close(descriptor)
    assert {part.below: part.kind for part in parts} == {
        "a": "place", "a/mounted": "folder", "a/beside": "folder", "a/fifo": "absent", "shown": "place",
        "whole": "folder", "file": "file", "link": "link",
    }  # fmt: skip
