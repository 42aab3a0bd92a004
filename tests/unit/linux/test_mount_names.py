"""By which other mounts a path is reached, as the mount table tells it."""

from __future__ import annotations

import pytest

from ringfence.linux import mount_names

_TABLE = rb"""22 1 254:0 / / rw - ext4 /dev/vda rw
23 22 0:20 / /proc rw - proc proc rw
24 22 254:0 /srv/data /opt/a\040copy rw - ext4 /dev/vda rw
25 22 254:0 /srv/data/key /opt/key rw - ext4 /dev/vda rw
26 22 254:1 / /home rw - ext4 /dev/vdb rw
27 22 254:1 /me /work rw - ext4 /dev/vdb rw
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
        ("/home/me/x", {"/work/x", "/twice/x"}),
        ("/twice/x", {"/work/x", "/home/me/x"}),
        ("/home", set()),
    ],
)
def test_a_path_has_the_names_that_other_mounts_give_it(path: str, names: set[str]) -> None:
    assert set(mount_names.others((path,), _TABLE)) == names
