"""What a sandbox is shown of the host on its own account: what the program needs, and nothing around it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringfence.sandbox import host
from ringfence.sandbox.hiding import MOST_MOUNTS

pytestmark = pytest.mark.privileges


def _proc(root: Path, settings: dict[str, str]) -> str:
    """A /proc of a host whose kernel has user namespaces, with these files below it."""
    for name, text in {"self/ns/user": "", "self/uid_map": "0 0 4294967295", **settings}.items():
        path = root / "proc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return str(root)


LIMIT, SWITCH, APPARMOR = (f"sys/{name}" for name in (
    "user/max_user_namespaces", "kernel/unprivileged_userns_clone", "kernel/apparmor_restrict_unprivileged_userns"
))  # fmt: skip
LABEL = "self/attr/current"


@pytest.mark.parametrize(
    ("settings", "user", "word"),
    [
        ({LIMIT: "0"}, 1000, "max_user_namespaces"),
        ({LIMIT: "0"}, 0, "max_user_namespaces"),
        ({LIMIT: "9", SWITCH: "0"}, 1000, "unprivileged_userns_clone"),
        ({LIMIT: "9", SWITCH: "0", "self/uid_map": "0 1000 1"}, 0, "unprivileged_userns_clone"),
        ({LIMIT: "9", SWITCH: "1", APPARMOR: "1"}, 1000, "apparmor_restrict_unprivileged_userns"),
        ({LIMIT: "9", APPARMOR: "1", LABEL: "unconfined"}, 1000, "apparmor_restrict_unprivileged_userns"),
    ],
)
def test_what_blocks_user_namespaces_is_named_with_the_command_that_lifts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], user: int, word: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    blocked = host.user_namespaces_blocked(_proc(tmp_path, settings))
    assert blocked is not None
    assert word in blocked[0]
    assert blocked[1].startswith("sudo sysctl -w ")
    assert word in blocked[1]


@pytest.mark.parametrize(
    ("settings", "user"),
    [
        ({}, 1000),
        ({LIMIT: "9", SWITCH: "1", APPARMOR: "0"}, 1000),
        ({LIMIT: "9", SWITCH: "0", APPARMOR: "1"}, 0),
        ({APPARMOR: "1", LABEL: "ringfence (unconfined)"}, 1000),
    ],
)
def test_what_does_not_block_them_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], user: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert host.user_namespaces_blocked(_proc(tmp_path, settings)) is None


def test_a_kernel_without_user_namespaces_is_named(tmp_path: Path) -> None:
    blocked = host.user_namespaces_blocked(str(tmp_path))
    assert blocked is not None
    assert "CONFIG_USER_NS" in blocked[1]


def test_asking_whether_a_filter_closes_them_makes_none() -> None:
    before = os.readlink("/proc/self/ns/user")
    assert host.user_namespaces_blocked() is None
    assert os.readlink("/proc/self/ns/user") == before


def test_a_hidden_path_is_known_by_the_names_that_the_kernel_meets(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to("real")
    (tmp_path / "real" / "link").symlink_to("/etc/hostname")
    real = tmp_path.resolve() / "real"
    assert host.every_name((str(tmp_path / "alias" / "link"),)) == (str(real / "link"), "/etc/hostname")


def test_names_beside_a_missing_folder_are_those_of_the_nearest_that_is_there(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text("")
    assert host.names_in([str(tmp_path)]) == 3
    assert host.names_in([str(tmp_path / "nowhere"), str(tmp_path / "nowhere" / "deep"), str(tmp_path)]) == 3
    assert host.names_in([str(tmp_path / "one" / "deep")]) > MOST_MOUNTS, "a file is in the way"
