"""A directory that is mounted at two places has two names, and both are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.model import mounted_names

ROWS = """\
20 1 8:1 / / rw - ext4 /dev/sda1 rw
21 20 8:2 / /data rw - ext4 /dev/sdb1 rw
22 20 8:2 /home /home rw - ext4 /dev/sdb1 rw
23 20 8:2 /home/me /srv/with\\040blank rw - ext4 /dev/sdb1 rw
24 20 8:2 /home/me/state/ringfence/usage /usage rw - ext4 /dev/sdb1 rw
25 20 8:2 /other /other rw - ext4 /dev/sdb1 rw
26 20 8:2 /home/me/state/ringfencers /near rw - ext4 /dev/sdb1 rw
27 20 0:9 /home /memory rw - tmpfs tmpfs rw
"""


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(mounted_names, "_TABLE", str(tmp_path / "mountinfo"))
    (tmp_path / "mountinfo").write_text(ROWS)
    return tmp_path / "mountinfo"


def test_every_place_where_it_or_a_part_of_it_is_mounted_is_told() -> None:
    assert mounted_names.every_name("/home/me/state/ringfence") == (
        "/home/me/state/ringfence",
        "/data/home/me/state/ringfence",
        "/srv/with blank/state/ringfence",
        "/usage",
    )


def test_what_is_mounted_once_has_one_name() -> None:
    assert mounted_names.every_name("/root/x") == ("/root/x",)


def test_without_a_table_a_path_is_its_only_name(table: Path) -> None:
    table.unlink()
    assert mounted_names.every_name("/home/me") == ("/home/me",)


def test_another_folder_that_covers_a_name_is_not_taken_for_it(table: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "inner").mkdir(parents=True)
    table.write_text(f"20 1 8:1 / {tmp_path}/one rw\n21 1 8:1 / {tmp_path}/two rw\n")
    assert mounted_names.every_name(f"{tmp_path}/one/inner") == (f"{tmp_path}/one/inner",)
    (tmp_path / "two/inner").rmdir()
    (tmp_path / "two/inner").symlink_to(tmp_path / "one/inner")
    assert len(mounted_names.every_name(f"{tmp_path}/one/inner")) == 2


ALIASES = rb"""22 1 254:0 / / rw - ext4 /dev/vda rw
23 22 0:20 / /proc rw - proc proc rw
24 22 254:0 /srv/data /opt/a\040copy rw - ext4 /dev/vda rw
25 22 254:0 /srv/data/key /opt/key rw - ext4 /dev/vda rw
26 22 254:1 / /home rw - ext4 /dev/vdb rw
27 22 254:1 /me /place rw - ext4 /dev/vdb rw
28 22 254:0 /srv/data /dev/copy rw - ext4 /dev/vda rw
29 22 254:2 / /twice rw - ext4 /dev/vdc rw
30 29 254:1 /me /twice rw - ext4 /dev/vdb rw
"""


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/srv/data/key", {"/opt/a copy/key", "/opt/key"}),
        ("/opt/key", {"/opt/a copy/key", "/srv/data/key"}),
        ("/srv/data", {"/opt/a copy"}),
        ("/srv/database", set()),
        ("/srv", set()),
        ("/home/me/x", {"/place/x", "/twice/x"}),
        ("/twice/x", {"/place/x", "/home/me/x"}),
        ("/home", set()),
    ],
)
def test_a_path_has_the_names_that_other_mounts_give_it(path: str, names: set[str]) -> None:
    assert set(mounted_names.others((path,), ALIASES)) == names
