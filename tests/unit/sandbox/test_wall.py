"""Which rules Landlock gets behind the mounts: what they open, and how near they are to what is opened."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import ringfence
from ringfence import IsolationLevel, SandboxPolicy
from ringfence.kernel import landlock
from ringfence.sandbox.hidden import HiddenPaths
from ringfence.sandbox.root import HostMount, RootSpec, WorkspaceMount
from ringfence.sandbox.wall import wall

ABI = 9
READ = sum(landlock.FILE_RIGHTS[name][0] for name in landlock.READ)


def root_spec(*shown: HostMount, workspace: str = "") -> RootSpec:
    return RootSpec(
        shown=shown, workspaces=(WorkspaceMount(path=workspace),) if workspace else (), folder="/",
        hidden=HiddenPaths(), links=(("/lib", "usr/lib"),), user="user", uid=1000, gid=1000, tmp_bytes=0, proc_files=(),
        proc_folders=(),
        etc=(HostMount(path="/etc/ssl/certs", mode="ro", folder=True),), copies=(),
    )  # fmt: skip


def folder(path: str, mode: str = "ro") -> HostMount:
    return HostMount(path=path, mode=mode, folder=True)


def rules(seen: RootSpec, *shared: str) -> dict[str, int]:
    _, _, rows, _ = wall(seen, list(shared), ABI)
    return {path: on_folder for path, on_folder, _ in rows}  # type: ignore[attr-defined]


def test_landlock_lets_no_rule_above_a_shared_directory_reach_its_sockets() -> None:
    bit = landlock.FILE_RIGHTS["resolve_unix"][0]
    found = rules(root_spec(folder("/srv", "rw"), workspace="/workspace"), "/tmp/shared", "/srv")
    reaching = {path for path, on_folder in found.items() if on_folder & bit}
    assert {"/tmp", "/tmp/shared", "/srv"}.isdisjoint(reaching) and {"/workspace", "/var/tmp"} <= reaching


def test_a_shown_directory_has_a_rule_of_its_own_that_opens_no_more_than_the_root_does() -> None:
    found = rules(root_spec(folder("/usr"), folder("/home/somebody/tools")))
    assert found["/usr"] == found["/home/somebody/tools"] == found["/"] == READ


def test_there_is_no_such_rule_where_the_way_to_it_is_not_our_own() -> None:
    """A rule whose path can't be opened would end the start of the job: below a link, and where a guest has been."""
    below = ("/usr/share/closed", "/lib/firmware", "/tmp/shown", "/srv/desk/tools", "/srv/shared/tools", "/proc/self")
    alone = HostMount(path="/srv/file", mode="ro", folder=False)
    seen = root_spec(folder("/usr"), folder("/srv/shared", "rw"), alone, *map(folder, below), workspace="/srv/desk")
    found = rules(seen, "/srv/shared")
    assert found.keys().isdisjoint({*below, "/srv/file", "/etc/ssl/certs"})
    assert found["/srv/desk"] & ~READ and found["/srv/shared"] & ~READ


@pytest.mark.system
@pytest.mark.privileges
def test_a_guest_that_moves_what_is_above_a_shown_directory_keeps_no_visit_out(tmp_path: Path) -> None:
    """The directory lies below /tmp, where the guest may rename what leads to it."""
    shown = tmp_path / "above/shown"
    shown.mkdir(parents=True)
    (shown / "file").write_text("shown\n")
    policy = SandboxPolicy(isolation=IsolationLevel.STRICT, readable_paths=(str(shown), sys.prefix))
    with ringfence.open(policy) as box:
        assert box.run(["cat", str(shown / "file")]).stdout == b"shown\n"
        box.run(["sh", "-c", f"cd /tmp && for each in *; do mv $each moved; ln -s / $each; done; ls {shown}"])
        assert box.run(["true"]).rc == 0
